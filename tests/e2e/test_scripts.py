"""Scripts that misbehave: each ends for the right reason, says so, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from remora import Client
from remora.states import EndReason, JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, until
from tests.e2e.scripts import DAEMON, ENDLESS, LOUD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def submit(service: Embedded, folder: Path, *words: str) -> str:
    """Submit a command with the folder as its code; the job's id."""
    answer = service.remora("submit", "-q", *words, folder=folder)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def text(client: Client, job_id: str, stream: str | None = None) -> str:
    return "\n".join(line.text for line in client.logs(job_id) if stream in (None, line.stream))


@pytest.mark.soak
def test_an_exit_code_is_reported(service: Embedded, client: Client, folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit(3)")
    followed = service.remora("submit", "-f", "--retries", "0", "--", "python", "train.py", folder=folder)
    assert followed.code == 10
    assert "failed" in followed.out.splitlines()[-1]
    shown = service.remora("show", "last").out
    assert "exit code 3" in shown
    assert "exit_code" in shown
    job = client.find("last")
    assert (job.state, job.reason) == (JobState.FAILED, EndReason.EXIT_CODE)
    (attempt,) = client.attempts(job.id)
    assert attempt.exit_code == 3
    assert service.remora("wait", "last").code == 10


def test_a_failing_script_is_tried_again_as_often_as_asked_and_its_traceback_is_in_the_log(
    service: Embedded, client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text("raise RuntimeError('the loss is infinite')")
    job_id = submit(service, folder, "--retries", "1", "--", "python", "train.py")
    assert client.wait(job_id, PATIENCE_S).state is JobState.FAILED
    ends = [(one.end_reason, one.exit_code) for one in client.attempts(job_id)]
    assert ends == [(EndReason.EXIT_CODE, 1)] * 2
    for attempt in ("1", "2"):
        printed = service.remora("logs", job_id, "--attempt", attempt)
        assert "Traceback (most recent call last):" in printed.out
        assert "RuntimeError: the loss is infinite" in printed.out


@pytest.mark.soak
@pytest.mark.backend("command", "unmodified script")
def test_a_loud_script_is_kept_within_limits(service: Embedded, client: Client, folder: Path) -> None:
    (folder / "train.py").write_text(LOUD)
    job_id = submit(service, folder, "--backend", "command", "--", "python", "train.py")
    assert client.wait(job_id, PATIENCE_S).state is JobState.SUCCEEDED
    long, odd, last = text(client, job_id, "stdout").splitlines()
    assert long.startswith("x" * 10_000)
    assert "more bytes of this line were cut" in long
    assert len(long) < 20_000
    assert odd == "caf\ufffd \ufffd \ufffd"
    assert last == "no end"
    assert service.remora("logs", job_id).out.splitlines()[1] == "[0] caf\ufffd \ufffd \ufffd"


@pytest.mark.soak
def test_a_script_that_never_returns_is_ended_at_its_limit(
    service: Embedded, client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text(ENDLESS)
    job_id = submit(service, folder, "--run-time", "3s", "--", "python", "train.py")
    waited = service.remora("wait", job_id)
    assert waited.code == 10
    assert client.job(job_id).reason == "run_time_exceeded"
    assert "it waits" in text(client, job_id)
    nothing_is_left(service, job_id)


@pytest.mark.soak
def test_a_daemon_does_not_outlive_its_job(
    service: Embedded, client: Client, folder: Path, tmp_path: Path
) -> None:
    (folder / "train.py").write_text(DAEMON)
    pid = tmp_path / "pid"
    job_id = submit(service, folder, "--", "python", "train.py", str(pid))
    assert client.wait(job_id, PATIENCE_S).state is JobState.SUCCEEDED
    assert "the daemon runs" in text(client, job_id, "stdout")
    assert not psutil.pid_exists(int(pid.read_text()))
    nothing_is_left(service, job_id)


def test_a_running_job_is_cancelled(service: Embedded, client: Client, folder: Path) -> None:
    (folder / "train.py").write_text(ENDLESS)
    job_id = submit(service, folder, "--workers", "2", "--", "python", "train.py")
    until(lambda: text(client, job_id).count("it waits") == 2, "both ranks run")
    assert service.remora("cancel", job_id).code == 0
    assert service.remora("wait", job_id, "--timeout", "60s").code == 12
    job = client.job(job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled")
    assert service.remora("cancel", job_id).code == 0, "asking again is fine"
    nothing_is_left(service, job_id)


@pytest.mark.soak
def test_a_command_that_is_not_there_is_not_tried_again(
    service: Embedded, client: Client, folder: Path
) -> None:
    job_id = submit(service, folder, "--", "trane", "model.py")
    assert client.wait(job_id, PATIENCE_S).state is JobState.FAILED
    (attempt,) = client.attempts(job_id)
    assert attempt.end_reason is EndReason.START_FAILED
    assert "trane" in (attempt.message or "")


def test_a_job_that_is_too_big_says_so_and_stops_no_other_job(
    service: Embedded, client: Client, folder: Path
) -> None:
    too_big = submit(service, folder, "--cpus", "64", "--", "python", "-V")
    until(lambda: client.job(too_big).reason == "waiting_for_nodes", "it says why it waits")
    assert "no node of the pools has 64 CPU" in (client.job(too_big).message or "")
    fits = submit(service, folder, "--", "python", "-V")
    assert client.wait(fits, PATIENCE_S).state is JobState.SUCCEEDED
    assert client.job(too_big).state is JobState.QUEUED
    gave_up = service.remora("wait", too_big, "--timeout", "100ms")
    assert gave_up.code == 6
    assert service.remora("cancel", too_big).code == 0
    assert service.remora("wait", too_big).code == 12


def nothing_is_left(service: Embedded, job_id: str) -> None:
    left = JobProcesses(service.home, job_id).left
    until(lambda: not left(), "no process of the job is left", 20.0)

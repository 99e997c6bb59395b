"""A job that is followed: in a pipe, on a terminal, until Ctrl-C or until its reader has enough."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import psutil
import pytest

from remora import JobState
from remora.cli.exits import ExitCode
from remora.views import Job, MetricPoint
from tests.command_line import ROOT, Cli
from tests.unit.remora.fake_service import FakeService


def test_follow_in_a_pipe_prints_events_and_steps(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.progress.LOOK_S", 0)
    monkeypatch.setattr("remora.cli.progress.REPORT_S", 0)
    _play(service)
    assert cli("submit", "--no-code", "-f", "--", "true") == ExitCode.JOB_FAILED
    reported = [line.split("  ", 1)[-1].strip() for line in cli.out.splitlines()]
    assert reported[1:] == [
        "attempt.started           It happened.",
        "step 1/4, loss 0.5, 2 workers",
        "step 2/4, loss not finite, 1 worker",
        "job.failed                It happened.",
        "step 4/4, loss 0.125, 0 workers",
        cli.out.splitlines()[-1].split("  ")[-1],
    ]
    _play(service)
    assert cli("submit", "--no-code", "-f", "--json", "--", "true") == ExitCode.JOB_FAILED
    lines = [json.loads(line) for line in cli.out.splitlines()]
    assert [line.get("kind", line.get("state")) for line in lines] == [
        "attempt.started",
        "job.failed",
        "failed",
    ]


def _play(service: FakeService) -> None:
    """Let the next job live a short life, one scene at each look at it."""

    def scene(
        kind: str | None, step: int, loss: float | None, workers: int, state: JobState
    ) -> Callable[[Job], None]:
        def happen(job: Job) -> None:
            if kind:
                service.add_event(job, kind)
            point = MetricPoint(step=step, at=1, attempt=1, world_size=workers, values={"loss": loss})
            service.metrics.append(point)
            service.change(job, state=state, step=step, total_steps=4, world_size=workers)

        return happen

    service.metrics = []
    service.scenes = [
        scene("attempt.started", 1, 0.5, 2, JobState.RUNNING),
        scene(None, 2, None, 1, JobState.RUNNING),
        scene("job.failed", 4, 0.125, 0, JobState.FAILED),
    ]


def test_a_terminal_shows_a_bar_and_a_table(service: FakeService) -> None:
    _play(service)
    code, shown = _on_terminal("submit", "--no-code", "-f", "--name", "seen", "--", "true")
    assert code == ExitCode.JOB_FAILED
    assert "attempt.started" in shown
    assert "step 4/4, loss 0.125, 0 workers" in shown
    assert "━" in shown
    code, shown = _on_terminal("list")
    assert code == 0
    assert "seen" in shown
    assert "─" in shown


def _on_terminal(*arguments: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        _command(*arguments),
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "160", "TERM": "xterm"},
        cwd=ROOT,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(ours)
    return process.wait(timeout=20), shown.decode()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", f"from remora.cli.main import run; run({list(arguments)!r})"]


def _wait_until_it_waits(process: subprocess.Popen[str]) -> None:
    """Python does not see a signal that comes in the instant before a system call until that call returns."""
    pause = threading.Event()
    while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
        pause.wait(0.01)


def test_ctrl_c_detaches_and_says_how_to_come_back(service: FakeService) -> None:
    job = service.add_job()
    service.add_log(job, "first line")
    process = subprocess.Popen(
        _command("logs", "-f", job.id), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] first line\n"
    _wait_until_it_waits(process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.DETACHED
    assert said == (
        f"\nDetached; the job {job.id} goes on. Come back: remora logs -f {job.id}  End it: remora cancel {job.id}\n"
    )


def test_a_reader_that_has_enough_is_no_error_message(service: FakeService) -> None:
    job = service.add_job(state=JobState.SUCCEEDED)
    for _ in range(3000):
        service.add_log(job, "x" * 100)
    process = subprocess.Popen(
        _command("logs", job.id), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=20) == ExitCode.ERROR

"""What other people's scripts and services say reaches the terminal as text, in every command that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora import JobState
from remora.cli.exits import ExitCode
from remora.views import Attempt, Checkpoint, MetricPoint
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService, problem

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\u202e\x9b5n\x7f[bold]b[/bold]\x08"
SHOWN = "a\\u202e\\x7f[bold]b[/bold]\\x08"
UNSAFE = set("\x1b\x07\x08\u202e\x9b\x7f\r")


@pytest.fixture
def job(service: FakeService) -> str:
    """A job all of whose texts are hostile."""
    made = service.add_job(HOSTILE, JobState.FAILED, message=HOSTILE, why_short=HOSTILE, project=HOSTILE)
    service.change(made, spec={"command": [HOSTILE], "code": HOSTILE, "resources": {"cpus": HOSTILE}})
    service.add_event(made, "job.failed", HOSTILE)
    service.add_log(made, HOSTILE)
    service.add_log(made, " 10%\r 20%\r100%")
    point = MetricPoint(step=1, at=1.0, attempt=1, world_size=1, values={HOSTILE: 1.0})
    service.metrics = [point]
    service.attempts = [
        Attempt(id="att_1", job_id=made.id, attempt=1, state="ended", created_at=1.0, message=HOSTILE)
    ]
    return made.id


COMMANDS = [
    ["list"], ["show"], ["logs"], ["logs", "--rank", "0"], ["events"], ["metrics"], ["metrics", "-o", "-"], ["wait"],
]  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_prints_what_a_terminal_obeys(cli: Cli, job: str, words: list[str], as_json: bool) -> None:
    command, *options = words
    named = [] if command == "list" else [job]
    cli(command, *named, *options, *(["--json"] if as_json else []))
    assert "[bold]b[/bold]" in cli.out.lower()
    # A line of CSV ends with both.
    assert not UNSAFE & set((cli.out + cli.err).replace("\r\n", "\n"))


def test_logs_and_events_are_shown_as_text(cli: Cli, job: str) -> None:
    assert cli("logs", job) == ExitCode.OK
    assert cli.out.splitlines() == [f"[0] {SHOWN}", "[0] 100%"]
    assert cli("events", job) == ExitCode.OK
    assert cli.out.endswith(f"  {SHOWN}\n")


def test_raw_leaves_them_as_they_are(cli: Cli, job: str) -> None:
    assert cli("logs", job, "--raw") == ExitCode.OK
    assert cli.out == f"[0] {HOSTILE}\n[0]  10%\r 20%\r100%\n"
    assert cli("events", job, "--raw") == ExitCode.OK
    assert cli.out.endswith(f"  {HOSTILE}\n")


def test_json_means_what_was_said(cli: Cli, job: str) -> None:
    assert cli("logs", job, "--json") == ExitCode.OK
    assert json.loads(cli.out.splitlines()[0])["text"] == HOSTILE


def test_errors_of_a_service_are_shown_as_text(cli: Cli, service: FakeService) -> None:
    service.faults = [problem(422, HOSTILE, HOSTILE, hint=HOSTILE)]
    assert cli("list") == ExitCode.USAGE
    assert SHOWN in cli.err
    assert not UNSAFE & set(cli.out + cli.err)


def test_errors_about_a_file_are_shown_as_text(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"command": "true", HOSTILE: 1, "name": HOSTILE}))
    assert cli("submit", str(file)) == ExitCode.USAGE
    assert not UNSAFE & set(cli.out + cli.err)
    assert cli("submit", "--env", HOSTILE, "--", "true") == ExitCode.USAGE
    assert not UNSAFE & set(cli.out + cli.err)
    assert cli(HOSTILE) == ExitCode.USAGE
    assert not UNSAFE & set(cli.out + cli.err)
    assert not service.requests


def test_a_job_that_is_followed_is_shown_as_text(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.progress.LOOK_S", 0)
    monkeypatch.setattr("remora.cli.progress.REPORT_S", 0)

    def end(job: object) -> None:
        made = service.jobs[job.id]  # type: ignore[attr-defined]
        service.add_event(made, "job.failed", HOSTILE)
        point = MetricPoint(step=1, at=1.0, attempt=1, world_size=1, values={HOSTILE: 1.0})
        service.metrics = [point]
        service.change(made, state=JobState.FAILED, step=1, message=HOSTILE)

    service.scenes = [end]
    assert cli("submit", "--no-code", "-f", "--", "true") == ExitCode.JOB_FAILED
    assert cli.out.count(SHOWN) == 2
    assert not UNSAFE & set(cli.out + cli.err)


def test_checkpoints_are_shown_as_text(cli: Cli, service: FakeService, job: str) -> None:
    service.checkpoints = [
        Checkpoint(
            step=1, attempt=1, world_size=1, size_bytes=1, committed_at=1.0, location=HOSTILE, files={}
        )
    ]
    assert cli("checkpoints", job) == ExitCode.OK
    assert not UNSAFE & set(cli.out + cli.err)

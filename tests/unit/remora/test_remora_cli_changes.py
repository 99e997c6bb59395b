"""Commands with which owners change their jobs, as their users see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora.cli.exits import ExitCode
from remora.states import JobState
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService


def test_labels_are_set_and_removed(cli: Cli, service: FakeService) -> None:
    job = service.add_job(labels={"team": "vision", "old": "1"})
    assert cli("label", "last", "team=a=b", "old-", "new=") == ExitCode.OK
    assert cli.out == f"{job.id}  new= team=a=b\n"
    assert service.jobs[job.id].labels == {"team": "a=b", "new": ""}
    assert cli("label", "last", "team") == ExitCode.USAGE
    assert "the label 'team': expected NAME=VALUE" in cli.err
    assert cli("show", "last") == ExitCode.OK
    assert "new= team=a=b" in cli.out


def test_jobs_are_listed_and_submitted_by_label(cli: Cli, service: FakeService) -> None:
    assert cli("list", "--label", "team=vision") == ExitCode.OK
    assert service.requests[-1].query["label"] == "team=vision"
    assert cli.err.startswith("There are no such jobs.") or "There are no such jobs." in cli.out
    assert cli("list", "-l", "team") == ExitCode.OK
    assert service.requests[-1].query["label"] == "team"
    assert (
        cli("submit", "--no-code", "-q", "-l", "team=vision", "--label", "run=3", "--", "true") == ExitCode.OK
    )
    (job,) = service.jobs.values()
    assert job.spec["labels"] == {"team": "vision", "run": "3"}
    assert cli("submit", "--no-code", "-l", "team", "--", "true") == ExitCode.USAGE


def test_ended_jobs_are_deleted_when_it_is_confirmed(cli: Cli, service: FakeService) -> None:
    first = service.add_job("a", JobState.SUCCEEDED)
    second = service.add_job("b", JobState.FAILED)
    assert cli("delete", first.id) == ExitCode.USAGE
    assert "add --yes" in cli.err
    assert cli("delete", first.id, second.id, "--yes") == ExitCode.OK
    assert service.jobs == {}
    assert cli.out.splitlines() == [f"{first.id}  a  is deleted", f"{second.id}  b  is deleted"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_job_that_runs_is_not_deleted(cli: Cli, service: FakeService, as_json: bool) -> None:
    job = service.add_job()
    assert cli("delete", job.id, "--yes", *(["--json"] if as_json else [])) == ExitCode.ERROR
    assert cli.err == "remora: the job is running; cancel it first\n"


def test_a_job_is_paused_and_resumed(cli: Cli, service: FakeService) -> None:
    job = service.add_job()
    assert cli("pause", "last") == ExitCode.OK
    assert service.jobs[job.id].state is JobState.PAUSED
    assert "paused" in cli.out
    assert cli("resume", "last", "--json") == ExitCode.OK
    assert cli.json["state"] == "queued"


@pytest.mark.parametrize(
    ("written", "sent"),
    [("3", {"min": 3, "max": 3}), ("2:4", {"min": 2, "max": 4}), ("2:", {"min": 2}), (":4", {"max": 4})],
)
def test_a_job_is_resized(cli: Cli, service: FakeService, written: str, sent: dict[str, int]) -> None:
    job = service.add_job()
    assert cli("resize", "last", written) == ExitCode.OK
    assert json.loads(service.requests[-1].body) == sent
    assert service.jobs[job.id].spec["workers"].items() >= sent.items()


@pytest.mark.parametrize("written", ["x", ":", "1:2:3", "-1"])
def test_another_number_of_workers_is_a_number_or_a_range(
    cli: Cli, service: FakeService, written: str
) -> None:
    service.add_job()
    assert cli("resize", "last", "--", written) == ExitCode.USAGE
    assert "expected a number such as 2, or a range" in cli.err


def test_a_job_is_cloned_with_other_values(cli: Cli, service: FakeService) -> None:
    job = service.add_job()
    wanted = ("--set", "workers.max=4", "--set", "arguments.name=a=b", "--set", "limits.budget=null")
    assert cli("clone", job.id, *wanted, "-q") == ExitCode.OK
    sent = json.loads(service.requests[-1].body)
    assert sent == {"set": {"workers.max": 4, "arguments.name": "a=b", "limits.budget": None}}
    assert "idempotency-key" in service.requests[-1].headers
    assert cli.out.strip() in service.jobs
    assert cli("clone", job.id, "--set", "workers") == ExitCode.USAGE


def test_a_schedule_is_submitted_shown_and_deleted(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text('command: python train.py\nschedule: {cron: "0 3 * * *", zone: Europe/Berlin}\n')
    assert cli("submit", str(file)) == ExitCode.OK
    (made,) = service.schedules.values()
    assert cli.out.startswith(f"{made.id}  train  next at ")
    assert "idempotency-key" in service.requests[-1].headers
    assert cli("schedules") == ExitCode.OK
    assert "0 3 * * * Europe/Berlin" in cli.out
    assert cli("schedules", "show", made.id) == ExitCode.OK
    assert "job_x" in cli.out
    assert cli("schedules", "delete", made.id) == ExitCode.OK
    assert service.schedules == {}
    assert cli("schedules", "show", made.id) == ExitCode.NOT_FOUND
    file.write_text('command: x\nschedule: "0 25 * * *"\n')
    assert cli("submit", str(file)) == ExitCode.USAGE
    assert cli.err == "remora: schedule.cron: '25' is no hour; it goes from 0 to 23\n"

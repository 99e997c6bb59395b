"""`remora profile` and the client's calls for it, against a service whose profiles a test makes up."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from remora.cli.exits import ExitCode
from remora.views import Profile
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService

TRACE = b"a compressed trace"


def profile_of(state: str, **fields: Any) -> Profile:
    known: dict[str, Any] = {"number": 2, "attempt": 1, "rank": 1, "steps": 5, "requested_at": 1000.0}
    return Profile(state=state, **known, **fields)


def ready(digest: str | None = None) -> Profile:
    stored = {"size_bytes": len(TRACE), "sha256": digest or hashlib.sha256(TRACE).hexdigest()}
    return profile_of("ready", ended_at=1010.0, profiled_steps=5, **stored)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remora.cli.profiles._PAUSE_S", 0.001)


def test_the_trace_is_a_file_once_it_is_there(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    job = service.add_job()
    before = profile_of("ready", ended_at=1.0).model_copy(update={"number": 1})
    service.profiles = [[before, profile_of(one)] for one in ("requested", "running")] + [[before, ready()]]
    service.trace = TRACE
    target = tmp_path / "new" / "trace.json.gz"
    words = ("profile", "last", "--steps", "5", "--rank", "1", "-o", str(target))
    assert cli(*words) == 0, cli.err
    assert target.read_bytes() == TRACE
    assert cli.out.startswith(f"5 steps, 18 B: {target}\n")
    (asked,) = [one for one in service.requests if one.method == "POST"]
    assert (asked.path, json.loads(asked.body)) == (f"/v1/jobs/{job.id}/profiles", {"steps": 5, "rank": 1})
    assert cli(*words) == ExitCode.USAGE
    assert "is there already" in cli.err
    assert len([one for one in service.requests if one.method == "POST"]) == 1, "nothing more was asked for"


def test_a_profile_that_fails_says_why_without_control_characters(cli: Cli, service: FakeService) -> None:
    service.add_job()
    why = "its script has not imported PyTorch \x1b]0;owned\x07"
    service.profiles = [[profile_of("failed", ended_at=1.0, message=why)]]
    assert cli("profile", "last") == ExitCode.ERROR
    assert "There is no profile of rank 1: its script has not imported PyTorch" in cli.err
    assert "\x1b" not in cli.err


def test_who_does_not_wait_longer_hears_that_it_goes_on(cli: Cli, service: FakeService) -> None:
    service.add_job()
    service.profiles = [[profile_of("running")]]
    assert cli("profile", "last", "--wait", "1") == ExitCode.ERROR
    assert "It has not ended within 1 s; it goes on" in cli.err


def test_a_damaged_trace_is_no_file(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    service.add_job()
    service.profiles = [[ready("0" * 64)]]
    service.trace = TRACE
    assert cli("profile", "last", "-o", str(tmp_path / "trace")) == ExitCode.ERROR
    assert "arrived damaged" in cli.err
    assert list(tmp_path.iterdir()) == []

"""A sidecar of the command: what follows when it fails, or when the driver is gone."""

from __future__ import annotations

import threading

import psutil
import pytest

from tests.unit.trainers.supervisor_stage import Driver, Stage
from trainers.backends.backend import Backend, LaunchContext, Sidecar
from trainers.supervisor import supervisor as module
from trainers.supervisor.assignment import ChildFailed


class WithSidecar(Backend):
    """A command with a shell that runs `script` as its sidecar."""

    def __init__(self, script: str, *, begins: bool) -> None:
        self.script = script
        self.begins = begins
        #: What of the job is at fault when it fails at the start.
        self.fault: str | None = None
        self.has_returned = threading.Event()

    def sidecar(self, launch: LaunchContext) -> Sidecar | None:
        return Sidecar(command=["sh", "-c", self.script], environment=launch.environment)

    def has_started(self, launch: LaunchContext) -> bool:
        return self.begins

    def blame(self, launch: LaunchContext) -> str | None:
        return self.fault

    def returned(self, launch: LaunchContext) -> None:
        self.has_returned.set()


def with_sidecar(monkeypatch: pytest.MonkeyPatch, script: str, *, begins: bool) -> WithSidecar:
    backend = WithSidecar(script, begins=begins)
    monkeypatch.setattr(module, "backend_of", lambda _: backend)
    return backend


def test_one_that_fails_before_the_command_began_is_trouble_and_not_the_jobs_fault(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_sidecar(monkeypatch, "echo the port is taken >&2; exit 1", begins=False)
    stage.start(command=["sleep", "60"])
    assert stage.end() == {"type": "trouble", "message": "sh ended with exit_code 1: the port is taken"}
    assert isinstance(stage.outcome, ChildFailed)
    assert stage.driver.all("exit") == []


def test_one_that_the_job_itself_keeps_from_starting_is_not_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_sidecar(monkeypatch, "exit 1", begins=False).fault = "the job asks for a network that is not there"
    stage.start(command=["sleep", "60"])
    end = stage.end()
    assert end == {
        "type": "exit",
        "stopped": False,
        "start_failed": "the job asks for a network that is not there",
    }
    assert stage.driver.all("trouble") == []


def test_one_that_fails_later_ends_the_command(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with_sidecar(monkeypatch, "exit 1", begins=True)
    stage.start(command=["sleep", "60"])
    assert stage.end() == {"type": "exit", "stopped": False, "signal": 9}


def test_one_that_never_ends_does_not_outlive_the_driver(
    driver: Driver, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = with_sidecar(monkeypatch, "echo $$; exec sleep 60", begins=True)
    running = stage.start(command=["true"])
    pid = int(driver.wait_for("log")["text"])
    assert backend.has_returned.wait(20.0)
    driver.is_dead = True
    running._outbox.put({"type": "hello"})
    stage.end()
    assert not psutil.pid_exists(pid)

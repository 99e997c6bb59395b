"""The present service and drivers of other releases, on Ray: the one before is kept, an unknown one is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from remora.states import EndReason, JobState
from service.installation.backups import back_up, restore
from service.installation.layout import Layout
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from tests.integration.trainers import recorded_driver
from tests.integration.trainers.lab import Lab
from tests.service_fakes import World
from trainers import driver_actors
from trainers.launch import RayLauncher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Service(World):
    """A service whose nodes are played, and whose drivers are actors of Ray."""

    def take_over(self) -> None:
        """A controller of the present release acts from now on, which knows nothing of the drivers."""
        self.launcher = RayLauncher(ready_drivers=0, prestarts=False)  # type: ignore[assignment]
        self.controller = self.new_controller()
        # Where another one acted before, its lease has to pass first.
        self.controller.tick(self.now)
        self.now += self.settings.lease_s

    def until(self, seen: Callable[[], Any], what: str) -> Any:
        """Ticks until it is so."""
        pause, deadline = threading.Event(), time.monotonic() + 60.0
        while not (value := seen()):
            assert time.monotonic() < deadline, what
            self.tick()
            pause.wait(0.02)
        return value


@pytest.fixture
def service(lab: Lab, tmp_path: Path) -> Service:
    del lab
    url = f"sqlite:///{tmp_path / 'service.db'}"
    database = Database(url)
    migrate(database)
    home = tmp_path / "home"
    return Service(database, Settings(home=home, database_url=url, nodes=2, node_cpus=1, lease_s=5.0))


def driver_of(attempt_id: str) -> Any:
    return driver_actors.find(driver_actors.name_of(attempt_id))


def asked(attempt_id: str) -> list[str]:
    """The calls that a recorded driver has had."""
    calls: list[str] = ray.get(driver_of(attempt_id).calls.remote(), timeout=60.0)
    return calls


def test_a_driver_of_the_release_before_goes_on_under_this_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_actors, "Driver", recorded_driver.Driver)
    service.take_over()
    job_id = service.submit()
    service.until(lambda: service.job(job_id).step == 2, "what it reported is taken")
    (attempt,) = service.attempts(job_id)
    # Another controller, as after an upgrade: it finds the driver under its name.
    service.take_over()
    ray.get(driver_of(attempt.id).grow.remote(7), timeout=60.0)
    service.until(lambda: service.job(job_id).step == 7, "what it reports to another controller is taken")
    service.cancel(job_id)
    service.until(lambda: service.job(job_id).state is JobState.CANCELLED, "it takes a request to stop")
    (ended,) = service.attempts(job_id)
    assert ended.end_reason is EndReason.CANCELLED
    service.until(lambda: driver_of(attempt.id) is None, "and its process ends")
    assert service.job(job_id).repeated_steps == 0


@pytest.mark.soak
def test_a_driver_of_an_unknown_release_is_replaced_and_nothing_runs_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_actors, "Driver", recorded_driver.LaterDriver)
    service.take_over()
    job_id = service.submit()
    first = service.until(lambda: service.attempts(job_id), "it starts")[0]
    service.until(lambda: driver_of(first.id) is not None, "it has a driver")
    monkeypatch.setattr(driver_actors, "Driver", recorded_driver.Driver)
    service.take_over()
    second = service.until(lambda: service.attempts(job_id)[1:], "another attempt follows")[0]
    assert driver_of(first.id) is None, "the first driver is gone before there is another one"
    service.until(lambda: service.job(job_id).step == 2, "the job goes on")
    ended, _ = service.attempts(job_id)
    assert (ended.end_reason, ended.message) == (
        EndReason.DRIVER_LOST,
        "The driver of this attempt speaks protocol 99, and this release protocols 1 and 2: another driver goes on from"
        " the newest checkpoint.",
    )
    assert asked(second.id).count("start") == 1
    service.cancel(job_id)
    service.until(lambda: service.job(job_id).state is JobState.CANCELLED, "it ends")
    service.until(lambda: driver_of(second.id) is None, "and nothing is left")


@pytest.mark.soak
def test_the_driver_of_a_job_that_an_older_backup_does_not_know_is_ended(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_actors, "Driver", recorded_driver.Driver)
    layout = Layout(tmp_path / "installed")
    layout.settings.parent.mkdir(parents=True)
    layout.settings.write_text(f"REMORA_DATABASE_URL={service.settings.database_url}\n")
    service.take_over()
    known = service.submit()
    service.until(lambda: service.job(known).step == 2, "the first job trains")
    back_up(layout, tmp_path / "older.tar", release="1.0-a", at="then")
    later = service.submit()
    service.until(lambda: service.job(later).step == 2, "the second job trains")
    (first,), (stray,) = service.attempts(known), service.attempts(later)
    service.database.close()
    restore(layout, tmp_path / "older.tar")
    restored = Service(Database(service.settings.database_url), service.settings)
    restored.now = service.now
    restored.take_over()
    restored.until(lambda: driver_of(stray.id) is None, "the driver of the unknown job is ended")
    ray.get(driver_of(first.id).grow.remote(9), timeout=60.0)
    restored.until(lambda: restored.job(known).step == 9, "the job that the backup knows goes on")
    assert len(restored.attempts(known)) == 1
    assert driver_actors.attempts() == [first.id]
    restored.cancel(known)
    restored.until(lambda: driver_of(first.id) is None, "it ends")

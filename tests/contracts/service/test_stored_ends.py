"""An attempt that had ended before its driver was lost has ended, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remora.states import EndReason, JobState
from service.settings import Settings
from service.store.database import Database
from tests.service_fakes import FakeDriver, World
from trainers.plan import DriverGone

pytestmark = pytest.mark.postgresql_in_soak

DIED = DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt died.")
COMPLETED = {"end_reason": "completed", "message": "The command returned 0 on every rank.", "exit_code": 0}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    """A service with one node."""
    return World(database, Settings(home=tmp_path, nodes=1, lease_s=5.0))


def training(world: World) -> tuple[str, FakeDriver]:
    """A job whose workers train."""
    job_id = world.submit(retry_limit=0)
    for _ in world.ticks_until("the job is admitted"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", state="running", world_size=1)
    world.tick()
    return job_id, driver


def store_end(world: World, driver: FakeDriver, *rows: list[Any], end: dict[str, Any] = COMPLETED) -> None:
    """As the driver does before it reports its end."""
    content = [
        *rows,
        [0, world.now, "progress", {"world_size": 0, "workers": {}}],
        [0, world.now, "ended", end],
    ]
    world.launcher.stored_ends[driver.plan.attempt_id] = json.dumps(content).encode()


@pytest.mark.parametrize("reason", [EndReason.DRIVER_LOST, EndReason.HEAD_LOST])
def test_what_it_stored_is_taken_and_the_job_does_not_run_again(world: World, reason: EndReason) -> None:
    job_id, driver = training(world)
    seq = world.attempts(job_id)[0].last_record_seq
    event = {"kind": "attempt.note", "message": "The last thing that it reported.", "data": {}}
    # Between the two were lines and metrics, or what was stored after a backup that is in place now.
    store_end(world, driver, [seq, world.now, "event", {}], [seq + 7, world.now, "event", event])
    driver.gone = DriverGone(reason, "It died.")
    world.tick(20)
    job, (attempt,) = world.job(job_id), world.attempts(job_id)
    assert (job.state, attempt.end_reason, attempt.exit_code) == (JobState.SUCCEEDED, EndReason.COMPLETED, 0)
    assert attempt.last_record_seq == seq + 9, "each record once, the one that was stored already not again"
    assert len(world.launcher.history) == 1


def test_one_that_stored_no_end_is_lost_and_runs_again(world: World) -> None:
    job_id, driver = training(world)
    driver.gone = DIED
    world.tick()
    assert world.attempts(job_id)[0].end_reason is EndReason.DRIVER_LOST
    assert world.job(job_id).state is JobState.QUEUED


def test_until_it_is_known_nothing_is_decided(world: World) -> None:
    job_id, driver = training(world)
    store_end(world, driver)
    driver.gone = DIED
    world.launcher.reads_ends_later = True
    world.tick(5)
    assert world.attempts(job_id)[0].ended_at is None
    world.launcher.reads_ends_later = False
    world.launcher.failing["stored_end"] = ConnectionError("no storage")
    world.tick(5)
    assert world.attempts(job_id)[0].ended_at is None
    del world.launcher.failing["stored_end"]
    world.tick()
    assert world.job(job_id).state is JobState.SUCCEEDED


def test_a_controller_that_was_lost_before_it_knew_of_the_driver_changes_nothing(world: World) -> None:
    job_id = world.submit(retry_limit=0)
    world.launcher.is_mute = True
    for _ in world.ticks_until("a driver has the plan"):
        if world.launcher.history:
            break
    driver = world.launcher.driver_of(job_id)
    assert world.attempts(job_id)[0].launched_at is None
    store_end(world, driver)
    del world.launcher.drivers[driver.plan.attempt_id]
    world.launcher.is_mute = False
    world.succeed()
    world.tick(20)
    assert world.job(job_id).state is JobState.SUCCEEDED
    assert len(world.launcher.history) == 1


def test_a_command_that_failed_uses_up_its_retry(world: World) -> None:
    job_id, driver = training(world)
    store_end(world, driver, end={"end_reason": "exit_code", "message": "It returned 1.", "exit_code": 1})
    driver.gone = DIED
    world.tick(20)
    assert world.job(job_id).state is JobState.FAILED
    assert world.attempts(job_id)[0].end_reason is EndReason.EXIT_CODE


def test_an_end_that_this_release_does_not_know_is_a_lost_driver(world: World) -> None:
    job_id, driver = training(world)
    store_end(
        world, driver, end={"end_reason": "a reason of another release", "message": "", "exit_code": None}
    )
    driver.gone = DIED
    world.tick()
    assert world.attempts(job_id)[0].end_reason is EndReason.DRIVER_LOST

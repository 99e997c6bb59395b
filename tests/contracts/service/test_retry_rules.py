"""Which exit codes and which lines of the log lead to another attempt, on SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora.spec.spec import JobSpec
from remora.states import JobState
from service.settings import Settings
from service.store.database import Database
from tests.service_fakes import FakeDriver, World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, Settings(home=tmp_path, nodes=1, node_cpus=1, lease_s=5.0))


def begun(world: World, **retry: Any) -> tuple[str, FakeDriver]:
    spec = JobSpec.from_mapping({"command": "python train.py", "retry": retry})
    job_id = world.submit(spec=spec.to_mapping())
    for _ in world.ticks_until("it starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    return job_id, world.launcher.driver_of(job_id)


def fail(driver: FakeDriver, code: int) -> None:
    driver.report("ended", end_reason="exit_code", message="It ended.", exit_code=code)


def test_a_code_that_is_not_listed_ends_the_job(world: World) -> None:
    job_id, driver = begun(world, on_exit_codes=[75, "128-255"])
    fail(driver, 3)
    world.tick()
    job = world.job(job_id)
    assert (job.state, job.reason, job.user_failures) == (JobState.FAILED, "exit_code", 0)
    assert job.message == "It ended; it is not retried: not among retry.on_exit_codes (75, 128 to 255)"


def test_a_code_that_is_listed_is_retried(world: World) -> None:
    job_id, driver = begun(world, on_exit_codes=[75, "128-255"])
    fail(driver, 130)
    world.tick()
    job = world.job(job_id)
    assert (job.state, job.user_failures) == (JobState.QUEUED, 1)


def test_a_line_of_the_log_is_remembered_although_the_controller_dies_before_the_end(world: World) -> None:
    job_id, driver = begun(world, on_log_patterns=["NCCL error"])
    driver.report("log", rank=0, stream="stderr", text="step 3\nNCCL error: unhandled\nbye")
    world.tick()
    assert world.attempts(job_id)[0].log_match == "NCCL error"
    world.succeed()
    fail(driver, 1)
    world.tick()
    assert world.job(job_id).state is JobState.QUEUED
    for _ in world.ticks_until("the second attempt"):
        if world.job(job_id).attempt == 2 and world.launcher.drivers:
            break
    fail(world.launcher.driver_of(job_id), 1)
    world.tick()
    assert world.job(job_id).state is JobState.FAILED, "the line was one of the first attempt"


def test_what_we_say_in_the_log_is_no_line_of_the_script(world: World) -> None:
    job_id, driver = begun(world, on_log_patterns=["NCCL error"])
    driver.report("log", rank=0, stream="remora", text="NCCL error")
    fail(driver, 1)
    world.tick()
    assert world.job(job_id).state is JobState.FAILED

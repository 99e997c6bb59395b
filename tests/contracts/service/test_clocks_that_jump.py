"""The clock of a controller's machine is set, an hour forth or back: the lease does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.states import EndReason
from service.settings import Settings
from service.store import job_history
from service.store.database import Database
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

HOUR = 3600.0
BOTH_WAYS = pytest.mark.parametrize("by_s", [HOUR, -HOUR], ids=["forth", "back"])


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    world = World(database, Settings(home=tmp_path, nodes=1, node_cpus=1, lease_s=5.0))
    world.now = 1_000_000.0
    world.tick()
    return world


@BOTH_WAYS
def test_who_waits_takes_over_as_soon_as_ever_from_one_that_died_before_the_clock_was_set(
    world: World, by_s: float
) -> None:
    former = world.controller
    world.set_clock(by_s)
    other = world.succeed()
    assert other.tick(world.now)
    assert not former.tick(world.now)


@BOTH_WAYS
def test_who_acts_goes_on_and_who_waits_stands_by(world: World, by_s: float) -> None:
    other, lease = world.new_controller(), world.controller.lease
    assert not other.tick(world.now)
    world.set_clock(by_s)
    for _ in range(40):
        assert not other.tick(world.now), "the one that acts has just renewed its lease"
        world.tick()
    assert world.controller.lease == lease


@BOTH_WAYS
def test_one_whose_own_clock_is_wrong_is_followed_in_time(world: World, by_s: float) -> None:
    """The clock was wrong when the lease was renewed for the last time, and is set right afterwards."""
    world.set_clock(by_s)
    world.tick()
    world.set_clock(-by_s)
    assert world.succeed().tick(world.now)


@BOTH_WAYS
def test_the_cloud_is_looked_at_as_often_as_before(world: World, by_s: float) -> None:
    world.observation_interval_s = 2.0
    world.controller.use(world.connect())
    world.tick()
    world.set_clock(by_s)
    before = world.cluster.looks
    world.now += 2.0
    world.tick()
    assert world.cluster.looks == before + 1


@BOTH_WAYS
def test_a_job_may_train_as_long_as_it_may_whatever_the_clock_of_its_driver_says(
    world: World, by_s: float
) -> None:
    job_id = world.submit(run_time_s=600.0)
    for _ in world.ticks_until("the job's driver runs"):
        if world.launcher.drivers:
            break
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now + by_s, state="running", world_size=1)
    world.tick()
    world.now += 590.0
    world.tick()
    assert driver.stop_reason is None
    world.now += 15.0
    world.tick(2)
    assert driver.stop_reason is EndReason.RUN_TIME_EXCEEDED


def test_a_driver_whose_clock_is_ahead_makes_no_time_lost_that_was_not(world: World) -> None:
    job_id = world.submit()
    for _ in world.ticks_until("the job's driver runs"):
        if world.launcher.drivers:
            break
    first = world.launcher.driver_of(job_id)
    first.report("progress", state="running", world_size=1)
    first.report("metric", at=world.now, step=5, values={}, world_size=1)
    world.tick()
    first.report("ended", at=world.now, end_reason="node_lost", message="gone", exit_code=None)
    for _ in world.ticks_until("the next attempt runs"):
        if world.attempts(job_id)[-1].attempt == 2 and world.launcher.drivers:
            break
    second = world.launcher.driver_of(job_id)
    second.report("progress", state="running", world_size=1)
    second.report("metric", at=world.now + 3600.0, step=6, values={}, world_size=1)
    world.tick()
    assert 0.0 < world.job(job_id).lost_s < 1800.0


@BOTH_WAYS
def test_a_checkpoint_is_as_old_as_it_is_whatever_the_clock_of_its_driver_says(
    world: World, by_s: float
) -> None:
    job_id = world.submit()
    for _ in world.ticks_until("the job's driver runs"):
        if world.launcher.drivers:
            break
    attempt_at = world.attempts(job_id)[-1].created_at
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", state="running", world_size=1)
    driver.report(
        "checkpoint",
        at=world.now + by_s,
        step=5,
        world_size=1,
        size_bytes=1,
        location="checkpoints/5",
        files={"a": 1},
        committed_at=world.now + by_s,
    )
    world.tick()
    (stored,) = world.database.query(lambda c: job_history.newest_checkpoints(c, [job_id])).values()
    assert attempt_at <= stored <= world.now


@BOTH_WAYS
def test_who_is_silent_holds_its_lease_no_longer_than_it_lasts(world: World, by_s: float) -> None:
    world.set_clock(by_s)
    assert world.controller.lease is not None
    world.now += world.settings.lease_s
    assert world.controller.lease is None

"""A budget that is spent pauses jobs: what is reported of it, what ends it, and that it ends by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from remora.states import AttemptState, EndReason, JobState
from service.queue import lifecycle
from service.settings import Settings
from service.store import job_history
from service.store import jobs as job_store
from service.store.database import Database
from tests.contracts.service.buying import MIXED, STEPS, apply, buying_world, in_steps, living
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))


def events_of(world: World, job_id: str, *kinds: str) -> list[tuple[str, str]]:
    events = world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 1000))
    return [(event.kind, event.message) for event in events if event.kind in kinds]


def nodes_go(world: World, job_id: str) -> None:
    """The last of its nodes is drained: it has its checkpoint, and no worker group any more."""
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="starting", world_size=0, workers={})


def paused(world: World) -> str:
    """A job that the budget has stopped."""
    job_id, _ = in_steps(world)
    nodes_go(world, job_id)
    for _ in world.ticks_until("it is paused"):
        if world.job(job_id).state is JobState.PAUSED:
            break
    world.tick()
    return job_id


def test_it_says_which_budget_since_when_and_what_ends_it(world: World) -> None:
    job_id, _ = in_steps(world)
    assert world.job(job_id).state is JobState.RUNNING, (
        "until its nodes go, it has its workers and its checkpoint"
    )
    nodes_go(world, job_id)
    before = world.now
    world.tick(4)
    job = world.job(job_id)
    assert (job.state, job.reason) == (JobState.PAUSED, "waiting_for_budget")
    assert job.paused_at is not None
    assert before < job.paused_at <= world.now
    assert job.message is not None
    assert "of 0.20 USD of the day are spent" in job.message
    tomorrow = datetime.fromtimestamp(world.now, UTC).date() + timedelta(days=1)
    assert f"until {tomorrow.isoformat()} 00:00:00 UTC, when the next day begins" in job.message
    assert "remora policy apply" in job.message
    (attempt,) = world.attempts(job_id)
    assert (attempt.state, attempt.end_reason) == (AttemptState.ENDED, EndReason.EVICTED)
    assert (job.losses, job.user_failures) == (0, 0)
    assert [kind for kind, _ in events_of(world, job_id, "job.paused", "job.queued")] == [
        "job.queued",
        "job.paused",
    ]


def test_it_goes_on_by_itself_on_the_next_day(world: World) -> None:
    job_id = paused(world)
    version = world.job(job_id).version
    world.now += 600.0
    world.tick(10)
    assert world.job(job_id).version == version, "nothing is written while nothing changes"
    world.now += 86_400.0
    for _ in world.ticks_until("it goes on"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    assert [one.attempt for one in world.attempts(job_id)] == [1, 2]
    job = world.job(job_id)
    assert (job.paused_at, job.losses, job.budget_step) == (None, 0, None)
    assert events_of(world, job_id, "job.queued")[-1][1] == "the cluster's budget allows it again: it goes on"


def test_it_goes_on_when_an_operator_gives_more_money(world: World) -> None:
    job_id = paused(world)
    apply(world, MIXED + STEPS.format(usd=20))
    for _ in world.ticks_until("it goes on"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    assert len(living(world)) > 0


def test_it_goes_on_when_the_budget_is_taken_out_of_the_policies(world: World) -> None:
    job_id = paused(world)
    apply(world, MIXED)
    for _ in world.ticks_until("it goes on"):
        if world.job(job_id).state is JobState.ADMITTED:
            break


def test_a_job_that_its_owner_has_paused_too_does_not_go_on_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = paused(world)
    looked = job_store.paused_jobs

    def ask(connection: sa.Connection) -> None:
        job = job_store.lock_job(connection, job_id)
        assert job is not None
        job_store.save(connection, job, lifecycle.request_pause(job, world.now))

    def look(connection: sa.Connection, cluster: str) -> dict[str, str | None]:
        """Its owner asks right after the look."""
        found = looked(connection, cluster)
        if job_id in found:
            world.database.transact(ask)
        return found

    monkeypatch.setattr(job_store, "paused_jobs", look)
    world.now += 86_400.0
    world.tick(10)
    job = world.job(job_id)
    assert (job.state, job.reason) == (JobState.PAUSED, "paused_by_owner")
    assert "remora resume" in str(job.message)
    assert len(world.attempts(job_id)) == 1, "it did not go on for a moment either"


def test_it_is_cancelled_while_it_is_paused(world: World) -> None:
    job_id = paused(world)
    world.cancel(job_id)
    job = world.job(job_id)
    assert (job.state, job.message, job.paused_at) == (
        JobState.CANCELLED,
        "cancelled while it was paused",
        None,
    )


def test_time_in_a_pause_is_neither_lost_nor_waited(world: World) -> None:
    job_id = paused(world)
    lost_s = world.job(job_id).lost_s
    world.now += 86_400.0
    for _ in world.ticks_until("it goes on"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=1, step=5)
    world.tick()
    assert world.job(job_id).lost_s - lost_s < 600.0
    assert world.job(job_id).trained_s < 86_400.0


def test_a_controller_that_died_between_two_writes_loses_nothing(world: World) -> None:
    job_id, _ = in_steps(world)
    nodes_go(world, job_id)
    # The attempt was asked to stop, and its driver does not know it yet.
    world.launcher.loses_stops = True
    world.tick()
    assert world.attempts(job_id)[0].stop_reason is EndReason.EVICTED
    world.launcher.loses_stops = False
    world.succeed()
    for _ in world.ticks_until("it is paused"):
        if world.job(job_id).state is JobState.PAUSED:
            break
    world.succeed()
    world.now += 86_400.0
    for _ in world.ticks_until("it goes on"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    assert len(world.attempts(job_id)) == 2


def test_a_job_that_waits_for_another_attempt_is_paused_too(world: World) -> None:
    job_id, _ = in_steps(world)
    world.launcher.driver_of(job_id).report("ended", end_reason="node_lost", message="lost", exit_code=None)
    world.tick(3)
    assert world.job(job_id).state is JobState.PAUSED
    assert world.job(job_id).losses == 1


def test_what_ended_before_the_budget_was_spent_is_paused_as_well(world: World) -> None:
    job_id = paused(world)

    def queued_before(connection: object) -> None:
        job = job_store.lock_job(connection, job_id)  # type: ignore[arg-type]
        assert job is not None
        job_store.save(connection, job, lifecycle.resume(job, world.now))  # type: ignore[arg-type]

    world.database.transact(queued_before)
    assert world.job(job_id).state is JobState.QUEUED
    world.tick(2)
    assert world.job(job_id).state is JobState.PAUSED


def test_a_job_that_has_never_begun_goes_on_waiting(world: World) -> None:
    paused(world)
    new_id = world.submit(wait_time_s=100.0)
    world.tick(3)
    job = world.job(new_id)
    assert job.state is JobState.QUEUED
    assert "the budget has reached pause" in str(job.message)
    world.now += 101.0
    world.tick(2)
    assert world.job(new_id).reason == "wait_time_exceeded"


def test_a_driver_that_stores_a_last_checkpoint_is_given_time(world: World) -> None:
    job_id, _ = in_steps(world)
    nodes_go(world, job_id)
    world.launcher.driver_of(job_id).obeys = False
    world.tick(2)
    world.now += 60.0
    world.tick(2)
    assert world.launcher.killed == []
    world.now += 600.0
    world.tick(2)
    assert len(world.launcher.killed) > 0
    assert world.job(job_id).state is JobState.PAUSED

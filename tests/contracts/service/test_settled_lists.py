"""What is made of a reading of a storage: which attempts it counts for, what it changes, and what it reports."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import EndReason
from service.queue import lifecycle
from service.queue.driver_records import CheckpointListRecord
from service.queue.rows import AttemptRow
from service.settings import Settings
from service.store import checkpoints, job_history, jobs
from service.store.checkpoints import ended_attempts
from service.store.database import Database
from service.store.ids import new_id
from service.store.tables import jobs as jobs_table
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

NOW = 5000.0


class Settled:
    """A job whose attempts end one after the other, and what is found in its storage after them."""

    def __init__(self, database: Database, tmp_path: Path) -> None:
        self.world = World(database, Settings(home=tmp_path, nodes=1, node_cpus=1))
        self.database = database
        self.job_id = self.world.submit()

    def end(self) -> AttemptRow:
        """One more attempt begins, ends and is released."""

        def work(connection: sa.Connection) -> AttemptRow:
            job = jobs.lock_job(connection, self.job_id)
            assert job is not None
            begun = lifecycle.start_attempt(job, new_id("att", NOW + job.attempt), NOW)
            assert begun.attempt is not None
            ended = lifecycle.end_attempt(begun.job, begun.attempt, EndReason.NODE_LOST, "lost", NOW)
            assert ended.attempt is not None
            jobs.save(connection, job, replace(ended, attempt=lifecycle.released(ended.attempt, NOW)))
            return ended.attempt

        return self.database.transact(work)

    def settle(self, *found: tuple[AttemptRow, CheckpointListRecord | None]) -> None:
        by_id = {attempt.id: listed for attempt, listed in found}
        self.database.transact(partial(checkpoints.settle, found=by_id, now=NOW))

    @property
    def locations(self) -> dict[int, str]:
        rows = self.database.query(lambda c: job_history.job_checkpoints(c, self.job_id))
        return {one.step: one.location for one in rows}

    @property
    def are_listed(self) -> list[bool]:
        """Of the attempts, oldest first."""
        found = sorted(self.world.attempts(self.job_id), key=lambda one: one.attempt)
        return [one.listed_at is not None for one in found]


@pytest.fixture
def settled(database: Database, tmp_path: Path) -> Settled:
    return Settled(database, tmp_path)


def listed(location: str, *steps: int, **changed: Any) -> CheckpointListRecord:
    """A storage with these steps below a location."""
    row = {"attempt": 1, "world_size": 1, "size_bytes": 1, "files": {"w": 1}, "committed_at": 1.0, **changed}
    return CheckpointListRecord.model_validate(
        {"checkpoints": [{**row, "step": step, "location": f"{location}-{step}"} for step in steps]}
    )


def test_a_checkpoint_of_the_same_step_in_another_place_takes_the_place_of_the_one_before(
    settled: Settled,
) -> None:
    settled.settle((settled.end(), listed("first", 10, 20)))
    settled.settle((settled.end(), listed("second", 20)))
    assert settled.locations == {20: "second-20"}
    page = settled.database.query(lambda c: job_history.page_of_events(c, settled.job_id, 0, 1000))
    reported = [(one.kind, one.data["step"]) for one in page if one.kind.startswith("checkpoint.")]
    committed, deleted = "checkpoint.committed", "checkpoint.deleted"
    assert reported == [(committed, 10), (committed, 20), (deleted, 10), (committed, 20)]


def test_a_driver_whose_clock_is_ahead_commits_nothing_in_the_future(settled: Settled) -> None:
    settled.settle((settled.end(), listed("here", 10, committed_at=NOW + 3600.0)))
    (row,) = settled.database.query(lambda c: job_history.job_checkpoints(c, settled.job_id))
    assert row.committed_at == NOW


def test_of_several_attempts_the_newest_counts_and_is_settled_first(settled: Settled) -> None:
    before, newest = settled.end(), settled.end()
    settled.settle((before, listed("before", 10)), (newest, listed("newest", 20)))
    assert settled.locations == {20: "newest-20"}
    assert settled.world.job(settled.job_id).checkpoint_step == 20
    assert settled.are_listed == [False, True]


def test_what_was_read_after_an_attempt_counts_no_more_when_there_is_a_newer_one(settled: Settled) -> None:
    before, _ = settled.end(), settled.end()
    settled.settle((before, listed("before", 10)))
    assert settled.locations == {}
    assert settled.are_listed == [True, False]


def test_an_attempt_is_settled_once(settled: Settled) -> None:
    attempt = settled.end()
    settled.settle((attempt, listed("first", 10)))
    settled.settle((attempt, listed("late", 20)))
    assert settled.locations == {10: "first-10"}


def test_a_job_that_retention_has_emptied_stays_empty(settled: Settled) -> None:
    attempt = settled.end()
    pruned = sa.update(jobs_table).where(jobs_table.c.id == settled.job_id).values(pruned_at=NOW)
    settled.database.transact(lambda connection: connection.execute(pruned))
    settled.settle((attempt, listed("before", 10)))
    assert settled.locations == {}
    assert settled.are_listed == [True]


def test_nothing_found_out_leaves_the_list_as_it_is(settled: Settled) -> None:
    settled.settle((settled.end(), listed("first", 10)))
    settled.settle((settled.end(), None))
    assert settled.locations == {10: "first-10"}
    assert settled.world.job(settled.job_id).checkpoint_step == 10
    assert settled.are_listed == [True, True]


def test_the_newest_attempts_are_asked_about_first_and_not_too_many_at_once(settled: Settled) -> None:
    ended = [settled.end() for _ in range(3)]
    found = settled.database.query(lambda c: ended_attempts(c, "default", 2))
    assert [one.id for _, one in found.unlisted] == [ended[2].id, ended[1].id]

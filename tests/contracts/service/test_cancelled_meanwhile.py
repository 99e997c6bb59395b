"""A job that is cancelled after a loop has read it, and before the loop writes, is left alone; others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remora.spec.spec import JobSpec
from remora.states import JobState, NodeState
from service.loops import dispatch
from service.loops.tick import Tick
from service.queue.rows import JobRow
from service.settings import Settings
from service.store.database import Database
from tests.contracts.service.buying import buying_world, train
from tests.service_fakes import World


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    """Three nodes of one processor are ready."""
    world = World(database, Settings(home=tmp_path, nodes=3, node_cpus=1, lease_s=5.0))
    for _ in world.ticks_until("three ready nodes"):
        if [node.state for node in world.nodes()] == [NodeState.READY] * 3:
            break
    return world


class Owner:
    """Cancels a job right before a tick's write of some number, and keeps an eye on what the tick says."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
        self._world, self._log = world, log
        self._write = Tick.apply
        self._before: Callable[[], None] = lambda: None
        self._left = 0
        owner = self

        def write(tick: Tick, work: Any) -> Any:
            owner._left -= 1
            if owner._left == 0:
                owner._before()
            return owner._write(tick, work)

        monkeypatch.setattr(Tick, "apply", write)

    def cancels_at(self, write: int, job_id: str) -> bool:
        """One tick, in which the job is cancelled before that write; False when it has not that many writes."""
        self._before, self._left = (lambda: self._world.cancel(job_id)), write
        self._log.clear()
        self._world.tick()
        errors = [one for one in self._log.records if one.exc_info is not None]
        assert errors == [], "no loop stumbles over it"
        return self._left <= 0


@pytest.fixture
def owner(world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Owner:
    return Owner(world, monkeypatch, caplog)


def check_cancelled(world: World, job_id: str) -> None:
    """It is over, or is as soon as its attempt is."""
    world.tick(4)
    job = world.job(job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled")
    assert job_id not in {driver.plan.job_id for driver in world.launcher.drivers.values()}


def test_one_that_starts(world: World, owner: Owner) -> None:
    for write in range(1, 100):
        cancelled, other = world.submit(), world.submit()
        is_over = not owner.cancels_at(write, cancelled)
        assert world.job(other).state is JobState.ADMITTED, f"cancelled before write {write}"
        if is_over:
            world.cancel(cancelled)
        world.cancel(other)
        check_cancelled(world, cancelled)
        check_cancelled(world, other)
        if is_over:
            return


def test_one_that_has_a_new_reason_why_it_waits(world: World, owner: Owner) -> None:
    for write in range(1, 100):
        cancelled, other = (world.submit(min_workers=4, max_workers=4) for _ in range(2))
        is_over = not owner.cancels_at(write, cancelled)
        assert "capacity for 3" in str(world.job(other).message), f"cancelled before write {write}"
        if is_over:
            world.cancel(cancelled)
        world.cancel(other)
        check_cancelled(world, cancelled)
        if is_over:
            return


def test_one_that_has_waited_too_long(world: World, owner: Owner) -> None:
    for write in range(1, 100):
        cancelled, other = (world.submit(min_workers=4, max_workers=4, wait_time_s=10.0) for _ in range(2))
        world.tick()
        world.now += 20.0
        is_over = not owner.cancels_at(write, cancelled)
        assert (world.job(other).state, world.job(other).reason) == (JobState.FAILED, "wait_time_exceeded")
        # It depends on which write came first.
        assert world.job(cancelled).reason in ("cancelled", "wait_time_exceeded")
        if is_over:
            return


def test_one_that_has_spent_its_budget(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    spec = JobSpec.from_mapping({"command": "python train.py", "limits": {"budget": 0.01}}).to_mapping()
    job_id = world.submit(spec=spec)
    for _ in world.ticks_until("the job starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    world.now += 1000.0
    ended = {"end_reason": "node_lost", "message": "all nodes are gone", "exit_code": None}
    world.launcher.driver_of(job_id).report("ended", **ended)
    end_spent, cancelled = dispatch._end_spent, list[str]()

    def cancel_first(tick: Tick, job: JobRow) -> None:
        world.cancel(job.id)
        cancelled.append(job.id)
        end_spent(tick, job)

    monkeypatch.setattr(dispatch, "_end_spent", cancel_first)
    for _ in world.ticks_until("its budget is looked at"):
        if cancelled:
            break
    assert (world.job(job_id).state, cancelled) == (JobState.CANCELLED, [job_id])
    assert [one for one in caplog.records if one.exc_info is not None] == []

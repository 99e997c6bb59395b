"""Who gets what from whom when a new group has met."""

from __future__ import annotations

import pytest

from remora.torch.state_sync import SyncPlan, WorkersDiffer, WorkerState, plan_sync


def states(*steps: int, fresh: bool = False) -> list[WorkerState]:
    return [WorkerState(step, fresh, 1) for step in steps]


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        (states(5, 5, 5), SyncPlan(5, 0, (), ())),
        (states(4, 5, 5), SyncPlan(5, 1, (0,), ())),
        (states(5, 4, -1), SyncPlan(5, 0, (1,), (2,))),
        (states(-1, 5), SyncPlan(5, 1, (), (0,))),
        (states(0, 0, 0, fresh=True), SyncPlan(0, 0, (), (1, 2))),
        (states(0, -1, fresh=True), SyncPlan(0, 0, (), (1,))),
        ([WorkerState(0, True, 1), WorkerState(0, False, 1)], SyncPlan(0, 1, (), (0,))),
        ([WorkerState(0, True, 1), WorkerState(1, False, 1)], SyncPlan(1, 1, (), (0,))),
    ],
)
def test_the_most_advanced_worker_gives_to_those_who_lack(given: list[WorkerState], plan: SyncPlan) -> None:
    assert plan_sync(given) == plan


def test_that_no_worker_has_a_state_is_reported() -> None:
    with pytest.raises(WorkersDiffer, match="resume from a checkpoint"):
        plan_sync(states(-1, -1))


def test_more_than_a_step_apart_is_reported() -> None:
    with pytest.raises(WorkersDiffer, match="more than one step apart"):
        plan_sync(states(3, 5))


def test_different_scripts_are_reported_by_rank() -> None:
    with pytest.raises(WorkersDiffer, match="rank 1 runs another model or other settings"):
        plan_sync([WorkerState(0, True, 1), WorkerState(0, True, 2)])

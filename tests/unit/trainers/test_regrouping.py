"""A worker group changes in place: ranks are assigned again, and a worker that has the state leads."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.spec.worker_sizes import WorkerSizes
from trainers.driver.regrouping import PARK_CAP_S, PARK_S, Pace, Regrouping, WorkerLocation, assign_ranks

NODES = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12)


@given(nodes=NODES, seed=st.integers())
def test_ranks_are_what_torchrun_promises(nodes: list[str], seed: int) -> None:
    slots = random.Random(seed).sample(range(100), len(nodes))
    assigned = assign_ranks(
        [WorkerLocation(slot, node, "10.0.0.1", slot) for slot, node in zip(slots, nodes, strict=True)]
    )
    assert [one.local_rank for one in assigned] == slots, "local ranks are as they were"
    assert [one.slot for one in assigned] == slots
    assert [one.rank for one in assigned] == list(range(len(nodes)))
    assert {one.world_size for one in assigned} == {len(nodes)}
    assert {one.num_nodes for one in assigned} == {len(set(nodes))}
    assert {one.node_rank for one in assigned} == set(range(len(set(nodes))))
    for node in set(nodes):
        mine = [one for one, where in zip(assigned, nodes, strict=True) if where == node]
        assert {one.local_world_size for one in mine} == {len(mine)}
        assert len({one.node_rank for one in mine}) == 1


def change(*staying: int, cause: str = "loss") -> Regrouping:
    return Regrouping(generation=1, cause=cause, began_at=0.0, staying=list(staying))


def at_least(workers: int) -> WorkerSizes:
    return WorkerSizes(workers, 4096)


def test_a_group_is_ready_when_all_that_go_on_are_parked() -> None:
    regrouping = change(0, 1, 2)
    regrouping.lose({1})
    assert regrouping.missing == {0, 2}
    regrouping.park(0, 10)
    assert not regrouping.is_ready(at_least(1))
    regrouping.park(2, 10)
    assert regrouping.is_ready(at_least(2))
    assert not regrouping.is_ready(at_least(3)), "too few are left"
    assert (regrouping.staying, regrouping.leaving) == ([0, 2], {1})


def test_a_worker_that_is_lost_while_it_was_waited_for_is_not_waited_for() -> None:
    regrouping = change(0, 1)
    regrouping.park(0, 10)
    assert regrouping.missing == {1}
    regrouping.lose({1})
    assert regrouping.is_ready(at_least(1))


def test_newcomers_follow_and_never_lead() -> None:
    regrouping = change(4, 5, cause="grow")
    for slot in (6, 4, 6):
        regrouping.admit(slot)
    assert regrouping.staying == [4, 5, 6]
    regrouping.park(6, -1)
    regrouping.park(4, -1)
    regrouping.park(5, 10)
    assert regrouping.next_members(at_least(1)) == [5, 4, 6], "rank 0 holds the state"


def test_of_those_with_the_state_one_that_stays_leads() -> None:
    regrouping = change(4, 5, 6)
    regrouping.on_demand = {6, 7}
    regrouping.admit(7)
    for slot, step in ((4, 10), (5, 10), (6, 10), (7, -1)):
        regrouping.park(slot, step)
    assert regrouping.next_members(at_least(1)) == [6, 4, 5, 7], "7 has no state to lead with"


def test_without_a_state_there_is_no_newest_step() -> None:
    for regrouping in (change(), change(4, 5)):
        assert (regrouping.newest_step, regrouping.has_state) == (-1, False)
    regrouping.park(4, -1)
    assert (regrouping.newest_step, regrouping.has_state, regrouping.is_hopeless) == (-1, False, False)
    regrouping.park(5, -1)
    assert regrouping.is_hopeless


@pytest.mark.parametrize("step", [0, 1, 10])
def test_a_state_before_the_first_step_leads_like_any_other(step: int) -> None:
    regrouping = change(4, 5)
    regrouping.on_demand = {4}
    regrouping.park(4, -1)
    regrouping.park(5, step)
    assert regrouping.has_state
    assert not regrouping.is_hopeless
    assert regrouping.next_members(at_least(2)) == [5, 4], "4 is safer, and has no state to lead with"


def test_a_worker_that_left_is_not_admitted_again() -> None:
    regrouping = change(0, 1)
    regrouping.lose({1})
    regrouping.admit(1)
    assert regrouping.staying == [0]


@pytest.mark.parametrize(("step", "has_state"), [(-1, False), (0, True), (7, True)])
def test_without_a_state_in_memory_no_group_follows(step: int, has_state: bool) -> None:
    regrouping = change(0, 1)
    regrouping.park(0, step)
    regrouping.park(1, -1)
    assert (regrouping.has_state, regrouping.is_ready(at_least(1))) == (has_state, has_state)
    regrouping.lose({0})
    assert not regrouping.is_ready(at_least(1)), "the only one who had it is gone"


def test_too_few_wait_for_others_only_while_they_hold_the_state() -> None:
    regrouping = change(0, 1)
    regrouping.park(0, 10)
    assert not regrouping.is_short(at_least(3)), "one is still under way"
    regrouping.park(1, 10)
    assert regrouping.is_short(at_least(3))
    assert not regrouping.is_short(at_least(2))
    regrouping.lose({0, 1})
    assert not regrouping.is_short(at_least(3))
    assert regrouping.is_hopeless


@pytest.mark.parametrize(
    ("steps", "min_workers", "next_members", "why"),
    [
        ({0: 10, 1: 10, 2: 10}, 1, [0, 2], "it is left behind"),
        ({0: 10, 1: 10, 2: 10}, 3, [0, 1, 2], "the others are too few"),
        ({0: 10, 1: 11, 2: 10}, 1, [0, 1, 2], "it alone holds the newest step"),
        ({0: -1, 1: 10, 2: -1}, 1, [1, 0, 2], "it alone holds a state"),
        ({0: 11, 1: 10, 2: -1}, 1, [0, 2], "another one is ahead of it"),
    ],
)
def test_a_worker_whose_node_drains_stays_only_where_it_is_needed(
    steps: dict[int, int], min_workers: int, next_members: list[int], why: str
) -> None:
    regrouping = change(0, 1, 2, cause="drain")
    regrouping.draining = {1}
    for slot, step in steps.items():
        regrouping.park(slot, step)
    assert regrouping.next_members(at_least(min_workers)) == next_members, why


@given(
    steps=st.dictionaries(st.integers(0, 6), st.integers(-1, 3), min_size=1),
    draining=st.sets(st.integers(0, 6)),
    min_workers=st.integers(1, 4),
)
def test_for_any_parked_workers_there_is_a_group_or_a_reason_for_none(
    steps: dict[int, int], draining: set[int], min_workers: int
) -> None:
    regrouping = change(*steps)
    regrouping.draining = draining
    for slot, step in steps.items():
        regrouping.park(slot, step)
    next_members = regrouping.next_members(at_least(min_workers))
    assert [bool(next_members), regrouping.is_short(at_least(min_workers)), regrouping.is_hopeless].count(
        True
    ) == 1
    if next_members:
        assert len(next_members) >= min_workers
        assert max(steps[slot] for slot in next_members) == max(steps.values()), "no step is lost"
        assert steps[next_members[0]] >= 0, "rank 0 holds a state"
        assert set(steps) - set(next_members) <= draining, "no other worker is left behind"


def test_three_survivors_of_a_layout_of_two_train_with_two() -> None:
    sizes = WorkerSizes(2, 4, multiple_of=2)
    regrouping = change(0, 1, 2)
    regrouping.park(0, 9)
    regrouping.park(1, 10)
    regrouping.park(2, 10)
    assert regrouping.next_members(sizes) == [1, 2], "those with the newest state"
    regrouping.lose({2})
    assert regrouping.next_members(sizes) == [0, 1]
    regrouping.lose({0})
    assert regrouping.is_short(sizes), "one alone does not hold a whole model"


def test_patience_grows_with_the_length_of_steps() -> None:
    pace = Pace()
    assert pace.patience_s == PARK_S
    pace.step(100.0)
    pace.step(101.0)
    assert pace.patience_s == PARK_S, "short steps need no more than the least"
    pace.step(141.0)
    assert pace.patience_s == 120.0
    pace.pause()
    pace.step(9000.0)
    assert pace.patience_s == 120.0, "a pause is no step"
    pace.step(19000.0)
    assert pace.patience_s == PARK_CAP_S

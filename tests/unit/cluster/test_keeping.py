"""For which job a node is kept, and when that ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.policies.policies import CapacityRule
from cluster.scheduling.actions import Launch
from cluster.scheduling.keeping import KEPT_S, kept_nodes
from cluster.scheduling.planner import plan
from cluster.scheduling.view import JobDemand, NodeView
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import NOW, ON_DEMAND, SPOT, job, node, rules, said_to, view


def kept(
    nodes: list[NodeView], *jobs: JobDemand, now: float = NOW, start_up_s: float = 300.0
) -> dict[str, str]:
    return kept_nodes(nodes, {one.id: one for one in jobs}, now, start_up_s)


def own(name: str = "n", **changes: Any) -> NodeView:
    return node(name, **{"bought_for": "j", "ready_at": NOW - 10.0, **changes})


@pytest.mark.parametrize(
    "state", [NodeState.REQUESTED, NodeState.LAUNCHED, NodeState.JOINED, NodeState.READY]
)
def test_it_is_kept_for_a_job_that_waits_from_its_order_on(state: NodeState) -> None:
    ready_at = NOW if state is NodeState.READY else None
    assert kept([own(state=state, ready_at=ready_at)], job()) == {"n": "j"}


@pytest.mark.parametrize(
    "changes",
    [
        {"bought_for": None},
        {"bought_for": "other"},
        {"state": NodeState.DRAINING},
        {"state": NodeState.TERMINATING},
        {"state": NodeState.GONE},
        {"jobs": {"other": 1}},
        {"ready_at": NOW - KEPT_S},
    ],
    ids=str,
)
def test_it_is_kept_for_no_job(changes: dict[str, Any]) -> None:
    assert kept([own(**changes)], job()) == {}


def test_a_job_that_is_not_asked_about_has_nothing_kept_for_it() -> None:
    assert kept([own()], job("other")) == {}


@pytest.mark.parametrize(("held", "is_kept"), [(0, True), (1, True), (2, False), (3, False)])
def test_it_is_kept_until_the_job_has_its_smallest_group(held: int, is_kept: bool) -> None:
    there = [node(f"w{at}", jobs={"j": 1}) for at in range(held)]
    runs = job(workers=(2, 4), is_running=True)
    assert kept([own(), *there], runs) == ({"n": "j"} if is_kept else {})


def test_workers_on_nodes_that_go_do_not_count() -> None:
    going = [node(f"w{at}", jobs={"j": 1}, state=NodeState.DRAINING) for at in range(2)]
    assert kept([own(), *going], job(workers=2, is_running=True)) == {"n": "j"}


@pytest.mark.parametrize("deadline_at", [None, NOW + 1000.0])
@pytest.mark.parametrize("offering", [SPOT.id, ON_DEMAND.id])
@pytest.mark.parametrize("runs_on", [SPOT.id, ON_DEMAND.id, ""])
@pytest.mark.parametrize("state", [NodeState.READY, NodeState.DRAINING])
def test_it_is_kept_for_a_job_with_a_deadline_that_moves_to_it_from_spot(
    deadline_at: float | None, offering: str, runs_on: str, state: NodeState
) -> None:
    runs = job(workers=(1, 4), is_running=True, deadline_at=deadline_at)
    others = [
        node("a", jobs={"j": 1}, offering=ON_DEMAND.id),
        node("b", jobs={"j": 1}, offering=runs_on, state=state),
    ]
    is_kept = deadline_at is not None and offering == ON_DEMAND.id and runs_on == SPOT.id
    assert kept([own(offering=offering), *others], runs) == ({"n": "j"} if is_kept else {})


def test_where_machines_start_slowly_it_is_kept_for_longer() -> None:
    one = own(ready_at=NOW)
    assert kept([one], job(), now=NOW + 1999.0, start_up_s=1000.0) == {"n": "j"}
    assert kept([one], job(), now=NOW + 2000.0, start_up_s=1000.0) == {}


@pytest.mark.parametrize("strict_order", [True, False])
def test_a_job_may_grow_onto_all_that_was_bought_for_it_before_others_begin_there(strict_order: bool) -> None:
    own = [node(f"n{at}", bought_for="grows") for at in range(3)]
    asked = view([job("grows", (1, 3), place=1), job("next", place=2)], own, strict_order=strict_order)
    (launch,) = [one for one in plan(asked, rules(max_nodes=9), NOW) if isinstance(one, Launch)]
    assert launch.job_id == "next"


def test_no_job_grows_onto_what_is_kept_for_one_behind_it_but_one_that_is_next_begins_there() -> None:
    own = [node(f"n{at}", bought_for="behind") for at in range(2)]
    behind = job("behind", 3, place=1)
    grows = job("first", (1, 2), is_running=True)
    asked = view([grows, behind], [node("w", jobs={"first": 1}), *own], strict_order=True)
    said = said_to(plan(asked, rules(max_nodes=3), NOW), "first")
    assert said == "there is no capacity for 1 worker: pool 'p' may have 3 nodes"
    asked = view([job("first", 2), behind], own, strict_order=True)
    said = said_to(plan(asked, rules(max_nodes=2), NOW), "first")
    assert said == "there is capacity for it on nodes that are ready"


@pytest.mark.parametrize(
    "placement", [{"zones": ("2",)}, {"pools": ("q",)}, {"capacity": CapacityRule.ON_DEMAND}], ids=str
)
def test_what_is_kept_for_a_job_behind_is_no_capacity_for_one_that_may_not_use_it(
    placement: dict[str, Any],
) -> None:
    jobs = [job("first", place=1, **placement), job("behind", place=2)]
    own = [node("n", offering=SPOT.id, bought_for="behind")]
    said = said_to(plan(view(jobs, own, strict_order=True), rules(max_nodes=1), NOW), "first")
    assert said.startswith("there is no ")


def test_capacity_that_a_job_leaves_on_its_own_node_is_found_by_the_next_one_as_large_as_one_that_found_none() -> (
    None
):
    sold = [replace(SPOT, has_fabric=True)]
    large = node("n", bought_for="small", resources={"GPU": 4.0}, fabric="d1")
    queue = [("early", 2), ("small", 1), ("late", 2)]
    jobs = [job(name, size, needs_fabric=True, place=at) for at, (name, size) in enumerate(queue)]
    planned = plan(view(jobs, [large], sold), rules(max_nodes=1), NOW)
    assert said_to(planned, "early") == "there is no capacity for 2 workers: pool 'p' may have 1 node"
    for name in ("small", "late"):
        assert said_to(planned, name) == "there is capacity for it on nodes that are ready"

"""How nodes go: a member is drained first, whatever seems to be on it, and ended once Ray has nothing there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cluster.policies.policies import Policies
from cluster.scheduling.actions import Action, Drain, Terminate, Wait
from cluster.scheduling.health import DRAIN_S
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView, JobDemand, NodeView, Spending
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import NOW, job, node, offering

#: It was given work that no driver has reported yet.
STARTED_ON = {"is_in_use": True, "idle_since": None}


def done(
    nodes: Sequence[NodeView], jobs: Sequence[JobDemand] = (), spent: float = 0.0, **pool: Any
) -> list[Action]:
    """What is done to the nodes of the one pool `p`, which can buy no more; a budget of 10 USD a day is shrunk at 9."""
    rules = Policies.model_validate(
        {
            "pools": {"p": {"sizes": ["a"], "zones": ["1"], **pool}},
            "budget": {"usd_per_day": 10, "steps": {"shrink": 0.9}},
        }
    )
    view = ClusterView(
        jobs=tuple(jobs), nodes=tuple(nodes), offerings=(offering(),), spent=Spending(today=spent)
    )
    return [action for action in plan(view, rules, NOW) if isinstance(action, Drain | Terminate)]


@pytest.mark.parametrize("seen", [{"idle_since": NOW - 1}, STARTED_ON])
def test_a_member_is_drained_whether_or_not_work_on_it_is_known(seen: dict[str, Any]) -> None:
    (too_many,) = done([node(**seen)], max_nodes=0, drain_s=60)
    assert isinstance(too_many, Drain)
    assert too_many.deadline_at == NOW + 60
    (homeless,) = done([node(pool="no-such-pool", **seen)])
    assert isinstance(homeless, Drain)
    assert homeless.deadline_at == NOW + DRAIN_S


def test_what_has_not_joined_is_ended_without_a_drain() -> None:
    starts = node(state=NodeState.LAUNCHED, is_member=False, created_at=NOW - 1, idle_since=None)
    assert [type(one) for one in done([starts], max_nodes=0)] == [Terminate]
    assert [type(one) for one in done([replace(starts, pool="no-such-pool")])] == [Terminate]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({}, "it is drained, and nothing runs on it any more"),
        ({"is_in_use": True}, None),
        ({"jobs": {"j": 1}, "is_in_use": True}, None),
        ({"jobs": {"j": 1}}, None),
        ({"is_noticed": False}, None),
        ({"is_in_use": True, "deadline_at": NOW}, "its drain deadline passed"),
        ({"is_noticed": False, "is_member": False}, "it is drained, and Ray has let it go"),
    ],
)
def test_a_drain_ends_once_ray_knows_of_it_and_has_nothing_there_or_at_its_deadline(
    seen: dict[str, Any], reason: str | None
) -> None:
    leaving = node(**{"state": NodeState.DRAINING, "deadline_at": NOW + 60, **seen})
    ends = [Terminate(node_id="n", reason=reason)] if reason else []
    assert done([leaving]) == ends


def test_nodes_that_no_job_uses_go_before_those_on_which_workers_start() -> None:
    there = [node("s1", **STARTED_ON), node("idle", created_at=NOW - 5000), node("s2", **STARTED_ON)]
    (drain,) = done(there, [job(workers=2, is_running=True)], max_nodes=2)
    assert drain.node_id == "idle"


def test_a_group_that_starts_is_packed_where_it_starts() -> None:
    """So that the nodes beside it count as unused, and not its own."""
    there = [node("idle", idle_since=NOW - 9999), node("s1", **STARTED_ON), node("s2", **STARTED_ON)]
    (drain,) = done(there, [job(workers=2, is_running=True)])
    assert drain.node_id == "idle"


def test_a_budget_that_shrinks_leaves_the_nodes_on_which_a_smallest_group_starts() -> None:
    starting = [node(f"s{at}", **STARTED_ON) for at in range(2)]
    group = job(workers=2, is_running=True)
    reported = replace(group, noticed_step="shrink")
    assert done(starting, [reported], spent=9.5) == []
    (drain,) = done([*starting, node("idle")], [reported], spent=9.5)
    assert drain.node_id == "idle"


def test_a_node_in_use_by_an_unknown_program_waits_to_be_unused() -> None:
    policies = Policies.model_validate({"pools": {"p": {"sizes": ["a"], "zones": ["1"]}}})
    view = ClusterView(nodes=(node(**STARTED_ON),))
    (wait,) = plan(view, policies, NOW)
    assert isinstance(wait, Wait)
    assert wait.reason == "it is not needed any more; it goes once it has been unused for long enough"

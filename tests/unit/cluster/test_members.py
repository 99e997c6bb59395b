"""Which of several Ray nodes with the same node id counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from cluster.ray.heartbeats import AgentStatus, Heartbeat
from cluster.ray.members import MemberNode, chosen, doubtful, is_given_away

OLD = MemberNode(node_id="node_a", ray_node_id="old", address="10.0.0.4", is_alive=True, is_draining=False)
NEW = replace(OLD, ray_node_id="new")
BEGAN_AT = {"old": 100.0, "new": 200.0}


def counts(*members: MemberNode) -> str:
    """Ray's id of the one that counts, in whatever order Ray lists them."""
    (found,) = {
        member.ray_node_id for order in permutations(members) for member in chosen(order, BEGAN_AT).values()
    }
    return found


def dead(member: MemberNode) -> MemberNode:
    return replace(member, is_alive=False)


def draining(member: MemberNode) -> MemberNode:
    return replace(member, is_draining=True, deadline_at=500.0)


def test_the_one_that_lives_counts_whichever_began_first() -> None:
    assert counts(dead(OLD), NEW) == "new"
    assert counts(OLD, dead(NEW)) == "old", "it came back for a moment only"


def test_of_two_that_live_or_two_that_are_dead_the_newest_counts() -> None:
    assert counts(OLD, NEW) == "new"
    assert counts(dead(OLD), dead(NEW)) == "new"


def test_a_drain_counts_for_the_one_that_takes_work() -> None:
    assert counts(OLD, draining(NEW)) == "new"
    assert counts(draining(OLD), NEW) == "new", "that one is not drained yet"
    assert counts(dead(draining(OLD)), NEW) == "new"


def test_ghosts_before_it_change_nothing() -> None:
    first = replace(OLD, ray_node_id="first")
    assert counts(dead(first), OLD, NEW) == "new"
    assert counts(dead(first), OLD, dead(NEW)) == "old"


@pytest.mark.parametrize(
    ("members", "is_so"),
    [
        ((), False),
        ((OLD, dead(NEW)), False),
        ((dead(OLD), dead(NEW)), False),
        ((OLD, replace(NEW, node_id="node_b")), False),
        ((OLD, NEW), True),
    ],
)
def test_only_two_that_live_under_one_id_leave_a_doubt(members: tuple[MemberNode, ...], is_so: bool) -> None:
    assert doubtful(members) is is_so


def test_nodes_do_not_stand_for_each_other() -> None:
    other = replace(NEW, node_id="node_b", is_alive=False)
    assert chosen([OLD, other], BEGAN_AT) == {"node_a": OLD, "node_b": other}


def test_the_agent_s_reason_is_reported_while_its_node_drains() -> None:
    agent = AgentStatus(heartbeat=Heartbeat(at=1.0, leaves="Preempt by the cloud"))
    assert replace(draining(OLD), agent=agent).leaves == "Preempt by the cloud"
    assert replace(OLD, agent=agent).leaves is None
    assert replace(OLD, agent=agent, is_alive=False).leaves == "Preempt by the cloud"
    assert draining(OLD).leaves is None


@pytest.mark.parametrize(
    ("free", "is_in_use"),
    [
        ({"CPU": 4.0, "GPU": 1.0, "object_store_memory": 100.0}, False),
        ({"CPU": 3.99999999, "GPU": 1.0, "object_store_memory": 7.0}, False),
        ({"CPU": 4.0, "GPU": 0.5, "object_store_memory": 100.0}, True),
        ({"CPU": 4.0, "object_store_memory": 100.0}, True),
        (None, False),
    ],
)
def test_a_node_is_in_use_when_ray_has_given_some_of_it_away_besides_memory_for_objects(
    free: dict[str, float] | None, is_in_use: bool
) -> None:
    brings = {"CPU": 4.0, "GPU": 1.0, "object_store_memory": 100.0}
    assert is_given_away(brings, free) is is_in_use

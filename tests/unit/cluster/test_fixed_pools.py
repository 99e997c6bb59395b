"""The planner: what it decides, and that a cluster which follows it comes to rest at its size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.fixed_pools import (
    CREATE_TIMEOUT_S,
    JOIN_TIMEOUT_S,
    LONGEST_PAUSE_S,
    ClusterView,
    Launch,
    PlannedNode,
    PoolView,
    Terminate,
    launch_not_before,
    plan,
)
from remora.states import NodeState

NOW = 1_000_000.0
POOL = PoolView(name="local", size=2, resources={"CPU": 1.0})


def node(name: str, **changes: Any) -> PlannedNode:
    ready = PlannedNode(
        id=name,
        pool="local",
        state=NodeState.READY,
        created_at=NOW - 100,
        provided=True,
        is_running=True,
        is_member=True,
    )
    return replace(ready, **changes)


def launched(name: str, **changes: Any) -> PlannedNode:
    return node(name, **{"state": NodeState.LAUNCHED, "is_member": False, "created_at": NOW - 1, **changes})


def actions(*nodes: PlannedNode, pool: PoolView = POOL) -> list[Launch | Terminate]:
    return plan(ClusterView(pools=(pool,), nodes=nodes), NOW)


def launches(*nodes: PlannedNode) -> int:
    return sum(isinstance(action, Launch) for action in actions(*nodes))


def ended(*nodes: PlannedNode) -> list[str]:
    return [action.node_id for action in actions(*nodes) if isinstance(action, Terminate)]


def test_an_empty_pool_is_filled() -> None:
    first, second = actions()
    assert (
        first
        == second
        == Launch(pool="local", resources={"CPU": 1.0}, reason="pool 'local' has 0 of 2 nodes")
    )


def test_a_full_pool_is_left_alone() -> None:
    assert actions(node("a"), node("b")) == []
    assert actions(node("a"), launched("b")) == []
    assert actions(node("a"), node("b", state=NodeState.REQUESTED, provided=False, is_member=False,
                                   is_running=False, created_at=NOW)) == []  # fmt: skip


def test_a_dead_machine_is_terminated_and_replaced_in_the_same_plan() -> None:
    end, launch = actions(node("a"), node("b", is_running=False, is_member=False))
    assert end == Terminate(node_id="b", reason="its machine stopped")
    assert isinstance(launch, Launch)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_member": False},
        {"is_running": False},
        {"provided": False, "is_running": False},
        {"state": NodeState.JOINED, "is_member": False},
        {"state": NodeState.DRAINING, "deadline_at": NOW},
        {"state": NodeState.TERMINATING},
        {"pool": "no-such-pool"},
        {"state": NodeState.GONE},
        {"state": NodeState.FAILED, "is_member": False},
    ],
)
def test_what_has_to_go(changes: dict[str, Any]) -> None:
    assert ended(node("a"), node("b"), node("c", **changes)) == ["c"]


def test_a_draining_node_stays_until_its_deadline_while_its_replacement_starts() -> None:
    draining = node("b", state=NodeState.DRAINING, deadline_at=NOW + 20)
    assert ended(node("a"), draining) == []
    assert launches(node("a"), draining) == 1


def test_a_node_that_never_joins_is_given_up_after_its_time() -> None:
    assert ended(node("a"), launched("b", created_at=NOW - JOIN_TIMEOUT_S)) == []
    (end, *_) = actions(node("a"), launched("b", created_at=NOW - JOIN_TIMEOUT_S - 0.1))
    assert end == Terminate(
        node_id="b", reason="it did not join the Ray cluster within 60 s", is_failure=True
    )


def test_a_wish_that_never_reached_the_provider_is_given_up() -> None:
    lost = launched("b", state=NodeState.REQUESTED, provided=False, is_running=False)
    assert ended(node("a"), replace(lost, created_at=NOW - CREATE_TIMEOUT_S)) == []
    assert ended(node("a"), replace(lost, created_at=NOW - CREATE_TIMEOUT_S - 0.1)) == ["b"]


def test_too_many_nodes_lose_the_newest_idle_one_first() -> None:
    old, new = node("old", created_at=NOW - 90), node("new", created_at=NOW - 10)
    busy = node("busy", created_at=NOW - 5, is_busy=True)
    assert ended(old, new, busy) == ["new"]
    assert ended(replace(old, is_busy=True), replace(new, is_busy=True), busy) == ["busy"]
    assert launches(old, new, busy) == 0


def test_a_pool_of_size_zero_ends_everything() -> None:
    empty = replace(POOL, size=0)
    assert actions(pool=empty) == []
    assert [type(a) for a in actions(node("a"), node("b"), pool=empty)] == [Terminate, Terminate]


def failed(name: str, age_s: float) -> PlannedNode:
    return launched(name, state=NodeState.FAILED, provided=False, is_running=False, created_at=NOW - age_s)


def test_failed_starts_slow_a_pool_down_and_one_success_ends_that() -> None:
    three = [failed("x", 9.0), failed("y", 5.0), failed("z", 3.9)]
    assert launches(*three) == 0
    assert launches(*three[:2], failed("z", 4.0)) == 1, "one try at a time"
    assert launches(*three, launched("t", created_at=NOW)) == 0, "that try is on its way"
    assert launches(*three, node("a", created_at=NOW - 1)) == 1, "one joined since: full speed"


def test_a_start_that_dies_slows_down_at_once() -> None:
    dying = launched("b", is_running=False, created_at=NOW - 0.5)
    assert actions(dying) == [
        Terminate(node_id="b", reason="its machine stopped", is_failure=True),
    ]


@given(st.lists(st.floats(0, 10_000), max_size=60))
def test_the_pause_is_bounded_however_often_a_pool_fails(ages: list[float]) -> None:
    nodes = [failed(f"n{number}", age_s) for number, age_s in enumerate(ages)]
    assert launch_not_before(nodes) <= NOW + LONGEST_PAUSE_S


class World:
    """Nodes and a clock that do what plans say, with faults from outside; a model of provider and Ray."""

    def __init__(self, size: int) -> None:
        self.pool = replace(POOL, size=size)
        self.nodes: list[PlannedNode] = []
        self.now = NOW
        self.count = 0

    def tick(self) -> list[Launch | Terminate]:
        self.now += 1.0
        # What was launched before has joined by now.
        self.nodes = [
            replace(n, state=NodeState.READY, is_member=True)
            if n.state is NodeState.LAUNCHED and n.is_running
            else n
            for n in self.nodes
        ]
        todo = plan(ClusterView(pools=(self.pool,), nodes=tuple(self.nodes)), self.now)
        for action in todo:
            self.apply(action)
        return todo

    def apply(self, action: Launch | Terminate) -> None:
        if isinstance(action, Launch):
            self.count += 1
            self.nodes.append(launched(f"n{self.count}", created_at=self.now))
            return
        end = NodeState.FAILED if action.is_failure else NodeState.GONE
        self.nodes = [
            replace(n, state=end, provided=False, is_running=False, is_member=False)
            if n.id == action.node_id
            else n
            for n in self.nodes
        ]

    def alive(self) -> list[PlannedNode]:
        return [n for n in self.nodes if n.is_running and n.state is not NodeState.DRAINING]

    def hit(self, fault: str, choice: int) -> None:
        targets = self.alive()
        if not targets:
            return
        target = targets[choice % len(targets)]
        changes: dict[str, Any] = {
            "die": {"is_running": False, "is_member": False},
            "vanish": {"provided": False, "is_running": False, "is_member": False},
            "leave": {"is_member": False},
            "drain": {"state": NodeState.DRAINING, "deadline_at": self.now + 5},
        }[fault]
        self.nodes = [replace(n, **changes) if n.id == target.id else n for n in self.nodes]


faults = st.tuples(st.sampled_from(["die", "vanish", "leave", "drain", "resize", "rest"]), st.integers(0, 8))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 6), st.lists(faults, max_size=25))
def test_whatever_happens_the_cluster_never_exceeds_its_size_and_comes_to_rest(
    size: int, story: list[tuple[str, int]]
) -> None:
    world = World(size)
    for fault, choice in story:
        if fault == "resize":
            world.pool = replace(world.pool, size=choice)
        elif fault != "rest":
            world.hit(fault, choice)
        world.tick()
        assert len(world.alive()) <= world.pool.size
    for _ in range(int(LONGEST_PAUSE_S) * 2):
        world.tick()
    assert len(world.alive()) == world.pool.size
    assert world.tick() == [], "at rest nothing is launched and ended in turns"

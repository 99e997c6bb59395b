"""All workers of a job that asks for InfiniBand go to one fabric domain; its message says when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.view import JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.queue.demand import demand_of, is_domain_lost, placement_in
from service.queue.lifecycle import start_attempt
from service.queue.rows import AttemptRow, JobRow, NodeRow
from tests.service_fakes import job_row
from tests.unit.service import queue_worlds
from tests.unit.service.queue_worlds import Decided, ready, running

GPU = {"GPU": 1.0}
FAST = Offering(
    size="fast", zone=None, capacity=CapacityType.SPOT, resources=GPU, price_per_hour=4.0, has_fabric=True
)
POOL = PoolSize("p", 8, GPU, with_fabric=(FAST,))


def job(least: int = 2, most: int = 4, **placement: Any) -> JobRow:
    """A job of workers with one GPU each that InfiniBand has to join."""
    spec = {"placement": {"fabric": "infiniband", **placement}}
    return job_row(min_workers=least, max_workers=most, worker_resources=GPU, spec=spec)


def domain(name: str | None, nodes: int, gpus: float = 1.0, **more: Any) -> list[NodeView]:
    """Ready nodes of one fabric domain."""
    return [ready(f"{name}-{at}", "p", {"GPU": gpus}, fabric=name, **more) for at in range(nodes)]


def decide(queue: list[JobRow], nodes: list[NodeView], *others: JobDemand) -> Decided:
    return queue_worlds.decide(queue, others, nodes, [POOL])


class TestTheChoice:
    def test_workers_are_not_spread_over_two_domains(self) -> None:
        wide = job(least=3, most=3)
        apart = decide([wide], [*domain("a", 2), *domain("b", 2), *domain(None, 3)])
        assert apart.starts == ()
        assert apart.waits[0].reason == (
            "waits for nodes: it needs 3 workers of 1 GPU in one fabric domain and the 4 ready nodes with InfiniBand "
            "have capacity for 2"
        )
        together = decide([wide], [*domain("a", 2), *domain("b", 3)])
        assert (together.starts, together.fabrics) == ((wide.id,), {wide.id: "b"})

    @pytest.mark.parametrize(
        ("sizes", "chosen"),
        [
            ({"a": 2, "b": 6}, "b"),  # more of its workers
            ({"a": 9, "b": 4, "c": 5}, "b"),  # the least is left over
            ({"b": 4, "a": 4}, "a"),  # the same for everybody who asks
        ],
    )
    def test_the_most_workers_then_the_smallest_domain_that_holds_them(
        self, sizes: dict[str, int], chosen: str
    ) -> None:
        one = job(least=2, most=4)
        there = [node for name, nodes in sizes.items() for node in domain(name, nodes)]
        assert decide([one], there).fabrics == {one.id: chosen}

    def test_nodes_that_were_bought_for_it_come_first_if_they_are_enough(self) -> None:
        one = job(least=2, most=4)
        for own, chosen in ((2, "own"), (1, "other")):
            there = [*domain("other", 4), *domain("own", own, bought_for=one.id)]
            assert decide([one], there).fabrics == {one.id: chosen}

    def test_what_runs_keeps_capacity_to_grow_in_its_own_domain_only(self) -> None:
        placement = replace(job(least=1, most=3).facts.placement, fabric="a")
        runs = running(WorkerSizes(3, 3), GPU, placement)
        waiting = job(least=2, most=2)
        first, *others = domain("a", 3)
        there = [replace(first, jobs={"runs": 1}), *others, *domain("b", 2)]
        assert decide([waiting], there, runs).fabrics == {waiting.id: "b"}
        assert decide([waiting], there[:3], runs).starts == ()

    def test_two_jobs_do_not_get_the_same_nodes(self) -> None:
        first, second, third = job(2, 2), job(2, 2), job(2, 2)
        decision = decide([first, second, third], [*domain("a", 2), *domain("b", 3)])
        assert decision.fabrics == {first.id: "a", second.id: "b"}
        assert decision.waits[0].reason == (
            "is next: it needs 2 workers of 1 GPU in one fabric domain and other jobs leave capacity for 1"
        )

    def test_who_asks_for_nothing_runs_anywhere_and_is_bound_to_nothing(self) -> None:
        free = job_row(min_workers=4, max_workers=4, worker_resources=GPU)
        decision = decide([free], [*domain("a", 2), *domain(None, 2)])
        assert (decision.starts, decision.fabrics) == ((free.id,), {})

    names = st.sampled_from([None, "a", "b", "c"])
    nodes = st.lists(st.tuples(names, st.sampled_from([0.0, 1.0, 2.0, 4.0])), max_size=8)
    demands = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.booleans()), max_size=5)

    @settings(derandomize=True)
    @given(nodes, demands)
    def test_a_job_that_starts_has_a_domain_with_capacity_for_all_workers_that_are_bound_to_it(
        self, nodes: list[tuple[str | None, float]], demands: list[tuple[int, int, bool]]
    ) -> None:
        there = [ready(f"n{at}", "p", {"GPU": gpus}, fabric=name) for at, (name, gpus) in enumerate(nodes)]
        queue = [
            job(least, least + more)
            if is_joined
            else job_row(min_workers=least, max_workers=least + more, worker_resources=GPU)
            for least, more, is_joined in demands
        ]
        decision = decide(queue, there)
        started = {one.id: one for one in queue if one.id in decision.starts}
        joined = {name for name, one in started.items() if one.facts.placement.needs_fabric}
        assert decision.fabrics.keys() == joined
        for name in {"a", "b", "c"}:
            bound = sum(
                started[one].min_workers for one, fabric in decision.fabrics.items() if fabric == name
            )
            assert bound <= sum(node.resources["GPU"] for node in there if node.fabric == name)
        assert sum(one.min_workers for one in started.values()) <= sum(gpus for _, gpus in nodes)


class TestWhoIsToldThatThereIsNone:
    DRY = PoolSize("dry", 8, GPU, ("any",), (CapacityType.ON_DEMAND,))

    @pytest.mark.parametrize(
        ("asked", "pools", "said"),
        [
            (
                {},
                [DRY],
                "no pool buys machines that InfiniBand joins: leave `placement.fabric` out, or have a size with"
                " InfiniBand added to a pool; the pools are dry",
            ),
            (
                {"pools": ["dry"]},
                [DRY, POOL],
                "no pool has nodes of pool dry, with InfiniBand: change `placement`; the pools are dry, p",
            ),
            (
                {"capacity": "on-demand"},
                [POOL],
                "no pool has nodes of on-demand capacity, with InfiniBand: change `placement`; the pools are p",
            ),
        ],
    )
    def test_a_pool_without_it_is_no_place_and_holds_up_no_other_job(
        self, asked: dict[str, Any], pools: list[PoolSize], said: str
    ) -> None:
        never, small = job(**asked), job_row(worker_resources=GPU)
        decision = queue_worlds.decide([never, small], [], domain(None, 3), pools)
        assert decision.starts == (small.id,)
        assert (decision.waits[0].reason, decision.waits[0].is_hopeless) == (said, True)

    def test_one_domain_is_no_larger_than_a_pool(self) -> None:
        two = [PoolSize(name, 3, GPU, with_fabric=(FAST,)) for name in ("p", "q")]
        (wait,) = queue_worlds.decide([job(least=4, most=4)], [], [], two).waits
        assert wait.reason == (
            "it needs 4 workers of 1 GPU in one fabric domain and the complete pools have capacity for 3: "
            "lower `workers.min` or `resources`, or add nodes"
        )
        assert not queue_worlds.decide([job(least=3, most=3)], [], [], two).waits[0].is_hopeless

    def test_a_worker_too_large_for_machines_with_infiniband_says_so(self) -> None:
        large = PoolSize("p", 3, {"GPU": 8.0}, with_fabric=(FAST,))
        wide = replace(job(1, 1), worker_resources={"GPU": 2.0})
        (wait,) = queue_worlds.decide([wide], [], [], [large]).waits
        assert wait.reason.startswith("no node of the pools that InfiniBand joins has 2 GPU for a worker: ")


class TestAnAttempt:
    def test_is_bound_from_its_first_row_on(self) -> None:
        one = job()
        attempt = start_attempt(one, "att_1", 5.0, "a").attempt
        assert attempt is not None
        assert placement_in(one, attempt).labels == {"remora-fabric": ("a",)}
        demand = demand_of(one, attempt, None, 5.0)
        assert (demand.placement.needs_fabric, demand.placement.fabric) == (True, "a")
        assert demand_of(one, None, None, 5.0).placement.fabric is None
        free = job_row()
        assert placement_in(free, replace(attempt, fabric=None)).labels == {}
        assert not demand_of(free, None, None, 5.0).placement.needs_fabric

    BOUND = AttemptRow(
        id="att_1", job_id="job_1", attempt=1, created_at=0.0, fabric="a", workers={"10.0.0.1": 1}
    )

    @pytest.mark.parametrize(
        ("state", "address", "lost"),
        [
            (NodeState.REQUESTED, None, False),
            (NodeState.READY, "10.0.0.2", False),
            (NodeState.DRAINING, "10.0.0.1", False),
            (NodeState.DRAINING, "10.0.0.2", True),
            (NodeState.TERMINATING, "10.0.0.1", True),
            (NodeState.GONE, "10.0.0.1", True),
        ],
    )
    def test_loses_its_domain_with_the_last_node_that_is_of_use_to_it(
        self, state: NodeState, address: str | None, lost: bool
    ) -> None:
        ended_at = 9.0 if state is NodeState.GONE else None
        node = NodeRow(
            id="n", pool="p", created_at=0.0, state=state, address=address, fabric="a", ended_at=ended_at
        )
        other = NodeRow(id="o", pool="p", created_at=0.0, state=NodeState.READY, fabric="b")
        assert is_domain_lost(self.BOUND, [node, other]) is lost
        assert not is_domain_lost(replace(self.BOUND, fabric=None), [node])

    def test_loses_it_when_nothing_is_left_at_all(self) -> None:
        assert is_domain_lost(self.BOUND, [])

"""A limit of workers of a job on one node: where they start, grow, and what is bought for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.actions import Launch, StartJob, Wait
from cluster.scheduling.fitting import at_most, slots
from cluster.scheduling.planner import plan
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.starts import starts
from cluster.scheduling.view import JobDemand, NodeView
from tests.unit.cluster.planner_worlds import NOW, acts, job, node, offering, rules, view

GPU = {"GPU": 1.0}
#: Machines of four GPUs.
LARGE = offering("a", "1", resources={"GPU": 4.0})
POOLS = [PoolSize("p", 4, {"GPU": 4.0})]


def limited(per_node: int, workers: int | tuple[int, int], name: str = "j", **changes: object) -> JobDemand:
    return job(name, workers, worker_resources=at_most(GPU, name, per_node), **changes)


def large(name: str, **changes: object) -> NodeView:
    return node(name, resources={"GPU": 4.0}, offering=LARGE.id, **changes)


def test_workers_are_spread_over_as_many_nodes_as_that_takes() -> None:
    (start,) = starts([limited(1, 3)], [], [large("a"), large("b"), large("c")], POOLS)
    assert isinstance(start, StartJob)
    assert start.workers == (("a", 1), ("b", 1), ("c", 1))


def test_other_jobs_use_what_is_left_of_these_nodes() -> None:
    first, second = starts([limited(2, 2), limited(2, 2, "k")], [], [large("a")], POOLS)
    assert isinstance(first, StartJob)
    assert isinstance(second, StartJob)
    assert first.workers == second.workers == (("a", 2),)


def test_a_job_that_finds_too_few_nodes_says_the_limit() -> None:
    (wait,) = starts([limited(1, 5)], [], [large("a"), large("b")], POOLS)
    assert isinstance(wait, Wait)
    assert "5 workers of 1 GPU, at most 1 on a node" in wait.reason
    assert "the complete pools have capacity for 4" in wait.reason


def test_a_group_does_not_grow_onto_its_own_nodes_which_are_free_for_others() -> None:
    for free in (None, {"GPU": 3.0}):
        running = limited(1, (1, 4), is_running=True)
        (other,) = starts([job("k", 3)], [running], [large("a", jobs={"j": 1}, free=free)], POOLS)
        assert isinstance(other, StartJob)
        assert other.workers == (("a", 3),)


def test_nodes_with_other_work_are_used_before_one_is_bought() -> None:
    busy = large("n", jobs={"other": 1}, free={"GPU": 3.0})
    jobs = [job("other", is_running=True), limited(1, 2)]
    planned = plan(view(jobs, [busy], sold=[LARGE]), rules(max_nodes=5), NOW)
    assert len([one for one in acts(planned) if isinstance(one, Launch)]) == 1


def test_a_node_is_bought_for_each_worker() -> None:
    planned = plan(view([limited(1, 3)], sold=[LARGE]), rules(max_nodes=5), NOW)
    assert len([one for one in acts(planned) if isinstance(one, Launch)]) == 3
    for free in (None, {"GPU": 3.0}):
        running = limited(1, (1, 3), is_running=True)
        planned = plan(
            view([running], [large("n", jobs={"j": 1}, free=free)], sold=[LARGE]), rules(max_nodes=5), NOW
        )
        assert len([one for one in acts(planned) if isinstance(one, Launch)]) == 2


@given(
    per_node=st.integers(1, 5),
    workers=st.integers(1, 12),
    gpus=st.lists(st.integers(0, 6), min_size=1, max_size=6),
)
def test_no_node_has_more_and_no_worker_is_refused_that_fits(
    per_node: int, workers: int, gpus: list[int]
) -> None:
    nodes = [node(f"n{at}", resources={"GPU": float(count)}) for at, count in enumerate(gpus)]
    fitting = sum(min(per_node, count) for count in gpus)
    assert fitting == sum(slots(one.resources, at_most(GPU, "j", per_node)) for one in nodes)
    (decided,) = starts([limited(per_node, workers)], [], nodes, POOLS)
    assert isinstance(decided, StartJob) == (fitting >= workers)
    if isinstance(decided, StartJob):
        assert sum(count for _, count in decided.workers) == workers
        assert max(count for _, count in decided.workers) <= per_node

"""On which nodes the environments of waiting jobs are built."""

from __future__ import annotations

from cluster.scheduling.preparing import MOST_JOBS, nodes_to_prepare
from cluster.scheduling.view import JobDemand, NodeView
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import job, node


def chosen(waiting: list[JobDemand], nodes: list[NodeView]) -> dict[str, tuple[str, ...]]:
    return {one.id: names for one, names in nodes_to_prepare(waiting, nodes)}


def ready(name: str, **changes: object) -> NodeView:
    return node(name, state=NodeState.READY, **changes)


def test_nodes_with_other_work_count_and_free_ones_come_first() -> None:
    nodes = [ready("a", jobs={"other": 1}), ready("b"), ready("c")]
    assert chosen([job(workers=(1, 4))], nodes) == {"j": ("b", "c", "a")}


def test_a_job_is_prepared_on_twice_as_many_nodes_as_it_may_have_workers() -> None:
    nodes = [ready(f"n{at}") for at in range(9)]
    assert chosen([job(workers=(1, 2))], nodes) == {"j": ("n0", "n1", "n2", "n3")}


def test_nodes_that_leave_are_too_small_or_not_allowed_are_left_out() -> None:
    nodes = [
        ready("lost", is_member=False),
        node("leaves", state=NodeState.DRAINING),
        ready("small", resources={"GPU": 0.5}),
        ready("elsewhere", pool="other"),
    ]
    assert chosen([job(pools=("p",))], nodes) == {}
    assert chosen([job(pools=("p",))], [*nodes, ready("fits")]) == {"j": ("fits",)}


def test_few_jobs_are_prepared_in_queue_order() -> None:
    waiting = [job(f"j{at}") for at in range(MOST_JOBS + 5)]
    assert list(chosen(waiting, [ready("n")])) == [f"j{at}" for at in range(MOST_JOBS)]

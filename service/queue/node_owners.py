"""Which nodes are kept for which job, by rows (pure); `cluster.scheduling.keeping` decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cluster.scheduling.keeping import kept_nodes
from cluster.scheduling.view import JobDemand
from service.queue.demand import demand_of, node_view
from service.queue.rows import AttemptRow, JobRow, NodeRow


def owners_of(nodes: Iterable[NodeRow], busy: Mapping[str, Mapping[str, int]]) -> frozenset[str]:
    """Jobs that nodes without workers were bought for; `busy` has the workers of each node, by node and job id."""
    return frozenset(
        node.bought_for
        for node in nodes
        if node.bought_for is not None and node.ended_at is None and node.id not in busy
    )


def kept_for(
    nodes: Sequence[NodeRow],
    busy: Mapping[str, Mapping[str, int]],
    waiting: Iterable[JobRow],
    running: Iterable[tuple[JobRow, AttemptRow]],
    now: float,
    start_up_s: float,
) -> dict[str, str]:
    """The job that each node is kept for, by node id.

    Of the jobs only the owners matter (`owners_of`); waiting ones that could not start are left out by the caller.
    """
    jobs: dict[str, JobDemand] = {job.id: demand_of(job, None, None, now) for job in waiting}
    jobs |= {job.id: demand_of(job, attempt, None, now) for job, attempt in running}
    views = [
        node_view(node, busy.get(node.id, {}))
        for node in nodes
        if node.ended_at is None
        and (node.bought_for in jobs or not jobs.keys().isdisjoint(busy.get(node.id, ())))
    ]
    return kept_nodes(views, jobs, now, start_up_s)

"""Which nodes are reserved (kept) for which job: running groups of other jobs do not grow onto them (pure).

The planner, the queue, the drivers and a replay all use it.  A node is kept for the job that it was bought for while
nothing runs on it and the job has fewer workers than its smallest group, because it waits, starts or lost too many; or,
if it is not a spot node, while a job with a deadline that runs on spot nodes is to move to it.  It is kept from its
order on, so that all of them know of it before it joins, and for `kept_s` after it was ready.

Jobs that end, or that may not start, are not passed; nothing is kept for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cluster.policies.offerings import CapacityType
from cluster.scheduling.drains import workers_on
from cluster.scheduling.slack import STARTS
from cluster.scheduling.view import JobDemand, NodeView

#: Seconds for which a node that is ready is kept at least, however quickly machines start.
KEPT_S = 600.0


def kept_s(start_up_s: float) -> float:
    """Seconds after its readiness for which a node is kept at most.

    A group's last nodes may be ordered a second time: as long as that takes, the first ones are kept.
    """
    return max(KEPT_S, STARTS * start_up_s)


def may_be_kept(node: NodeView, now: float, start_up_s: float) -> bool:
    """The node was bought for a job, nothing runs on it, and it was not ready too long ago."""
    if node.bought_for is None or node.jobs or not node.is_usable:
        return False
    return node.ready_at is None or now - node.ready_at < kept_s(start_up_s)


def owners_of(nodes: Iterable[NodeView]) -> frozenset[str]:
    """Jobs that nodes without workers were bought for, by id; `nodes` are those that have not ended."""
    return frozenset(node.bought_for for node in nodes if node.bought_for is not None and not node.jobs)


def kept_nodes(
    nodes: Collection[NodeView], jobs: Mapping[str, JobDemand], now: float, start_up_s: float
) -> dict[str, str]:
    """The job that each node is kept for, by node id; a node that is kept for none is missing.

    `jobs` are those that wait and may start, and those that run, by id; `nodes` are at least those that were bought for
    one of them and those that one of them has workers on.  Machines take `start_up_s` to start.
    """
    own = [node for node in nodes if may_be_kept(node, now, start_up_s) and node.bought_for in jobs]
    if not own:
        return {}
    held = workers_on(node for node in nodes if node.is_usable)
    on_spot = {
        job_id for node in nodes if node.jobs and node.capacity is CapacityType.SPOT for job_id in node.jobs
    }
    return {
        node.id: job.id
        for node in own
        if node.bought_for is not None
        and (job := jobs[node.bought_for])
        and (held.get(job.id, 0) < job.min_workers or _moves_to(job, node, on_spot))
    }


def _moves_to(job: JobDemand, node: NodeView, on_spot: Collection[str]) -> bool:
    is_moving = job.deadline_at is not None and job.id in on_spot
    return is_moving and node.capacity is CapacityType.ON_DEMAND

"""What a near deadline changes about a waiting job: its place in the queue, and where it may start (pure).

Both follow `cluster.scheduling.slack`, as the planner does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from cluster.policies.offerings import CapacityType, zone_and_capacity
from cluster.policies.placement import Placement
from cluster.policies.policies import CapacityRule
from cluster.scheduling.slack import is_urgent, keeps_off_spot, measured_start_up_s
from cluster.scheduling.view import JobDemand
from remora.states import NodeState
from service.queue.admission import PoolSize
from service.queue.demand import demand_of
from service.queue.rows import JobRow, NodeRow

#: States of a node before it is ready.
_COMING = frozenset({NodeState.REQUESTED, NodeState.LAUNCHED, NodeState.JOINED})


def start_up_s(nodes: Iterable[NodeRow]) -> float:
    """Seconds that machines took from their order to their readiness."""
    return measured_start_up_s((node.created_at, node.ready_at) for node in nodes)


def urgent_jobs(waiting: Iterable[JobRow], now: float, start_up_s: float) -> frozenset[str]:
    """The jobs that come before others of their priority, by id."""
    return frozenset(
        job.id
        for job in waiting
        if job.deadline_at is not None and is_urgent(demand_of(job, None, None, now), now, start_up_s)
    )


def jobs_off_spot(
    waiting: Iterable[JobRow],
    nodes: Iterable[NodeRow],
    pools: Sequence[PoolSize],
    now: float,
    start_up_s: float,
) -> frozenset[str]:
    """The jobs that do not start on spot nodes now, by id."""
    with_deadline = [job for job in waiting if job.deadline_at is not None]
    if not with_deadline:
        return frozenset()
    coming = {
        node.bought_for
        for node in nodes
        if node.state in _COMING and zone_and_capacity(node.offering)[1] is CapacityType.ON_DEMAND
    }
    return frozenset(
        job.id
        for job in with_deadline
        if stays_off_spot(demand_of(job, None, None, now), pools, now, start_up_s, coming)
    )


def stays_off_spot(
    job: JobDemand, pools: Sequence[PoolSize], now: float, start_up_s: float, coming: Container[str | None]
) -> bool:
    """The job does not start on spot nodes now; `coming` names jobs for which on-demand nodes are starting."""
    is_off = keeps_off_spot(job, now, start_up_s, is_coming=job.id in coming)
    return is_off and on_demand_only(job.placement, pools) is not None


def on_demand_only(placement: Placement, pools: Sequence[PoolSize]) -> Placement | None:
    """The placement restricted to on-demand nodes; None where the job or its pools exclude them."""
    if placement.capacity is CapacityRule.SPOT:
        return None
    safe = replace(placement, capacity=CapacityRule.ON_DEMAND)
    return (
        safe
        if any(CapacityType.ON_DEMAND in pool.capacities and pool.may_hold(safe) for pool in pools)
        else None
    )

"""Queues of jobs and nodes that are ready, for the tests of what starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.policies.offerings import CapacityType
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import Policies
from cluster.scheduling.actions import StartJob, Wait
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.quotas import Counting
from cluster.scheduling.starts import starts
from cluster.scheduling.view import JobDemand, NodeView, Spending
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.queue.demand import demand_of
from service.queue.rows import JobRow


def ready(
    name: str,
    pool: str,
    resources: Mapping[str, float],
    zone: str | None = None,
    capacity: CapacityType | None = None,
    **more: Any,
) -> NodeView:
    """A node that is ready."""
    offering = "" if capacity is None else f"a/{zone or 'any'}/{capacity}"
    return NodeView(
        id=name,
        pool=pool,
        state=NodeState.READY,
        created_at=0.0,
        offering=offering,
        resources=resources,
        **more,
    )


def running(
    sizes: WorkerSizes, worker: Mapping[str, float], placement: Placement = ANYWHERE, name: str = "runs"
) -> JobDemand:
    """A job that runs; its workers are those that nodes have of it."""
    return JobDemand(id=name, sizes=sizes, worker_resources=worker, placement=placement, is_running=True)


def waiting(job: JobRow, now: float = 0.0) -> JobDemand:
    """The demand of a job that waits."""
    return demand_of(job, None, None, now)


def used(
    policies: Policies, held: Iterable[tuple[JobRow, int]] = (), spent: Mapping[str, Spending] | None = None
) -> Counting:
    """What jobs that run with that number of workers use of quotas, and what projects have spent."""
    jobs = [(JobDemand(**_fields(job), is_running=True), workers) for job, workers in held]
    return Counting(policies, [job for job, _ in jobs], {job.id: n for job, n in jobs}, spent or {}, 0.0)


def _fields(job: JobRow) -> dict[str, Any]:
    return {
        "id": job.id,
        "project": job.project,
        "sizes": job.facts.sizes,
        "worker_resources": job.worker_resources,
    }


@dataclass(frozen=True)
class Decided:
    """What was decided about a queue."""

    actions: tuple[StartJob | Wait, ...]

    @property
    def starts(self) -> tuple[str, ...]:
        """Ids of the jobs that start, in order."""
        return tuple(one.job_id for one in self.actions if isinstance(one, StartJob))

    @property
    def waits(self) -> list[Wait]:
        """The others."""
        return [one for one in self.actions if isinstance(one, Wait)]

    @property
    def fabrics(self) -> dict[str, str]:
        """Fabric domains of the jobs that start and are bound to one."""
        return {
            one.job_id: one.fabric
            for one in self.actions
            if isinstance(one, StartJob) and one.fabric is not None
        }

    @property
    def on_demand(self) -> set[str]:
        """Jobs that start bound to on-demand nodes."""
        return {one.job_id for one in self.actions if isinstance(one, StartJob) and one.on_demand}


def decide(
    queue: Iterable[JobRow],
    others: Iterable[JobDemand],
    nodes: Sequence[NodeView],
    pools: Sequence[PoolSize],
    **more: Any,
) -> Decided:
    """What is decided about the jobs beside others that run."""
    return Decided(starts([waiting(job) for job in queue], others, nodes, pools, **more))

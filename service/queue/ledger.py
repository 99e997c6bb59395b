"""What a job's workers use of nodes and what that costs: from when to when, and which part of each node (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.scheduling.fitting import dominant_part
from remora.clusters import DEFAULT_CLUSTER
from service.queue.demand import workers_by_node
from service.queue.rows import AttemptRow, JobRow, NodeRow


@dataclass(frozen=True, kw_only=True)
class UseRow:
    """A job's workers on one node while their number does not change; times are seconds since 1970."""

    job_id: str
    node_id: str
    began_at: float
    attempt: int
    workers: int
    pool: str
    #: `Offering.id` of the node; empty when that is not known.
    offering: str
    #: Dominant part of the node that the workers hold, 0 to 1; idle parts are no job's cost.
    part: float
    #: USD for an hour of the whole node.
    price_per_hour: float
    ended_at: float | None = None
    #: That of its job and its node.
    cluster: str = DEFAULT_CLUSTER

    def node_s(self, now: float) -> float:
        """Seconds of a whole node: half a node for an hour is 1800."""
        return self.part * max(0.0, (now if self.ended_at is None else self.ended_at) - self.began_at)

    def cost(self, now: float) -> float:
        """USD."""
        return self.node_s(now) * self.price_per_hour / 3600.0


@dataclass(frozen=True)
class Entries:
    """What is to be written."""

    ended: tuple[UseRow, ...] = ()
    begun: tuple[UseRow, ...] = ()


def entries(
    open_uses: Iterable[UseRow],
    live: Iterable[tuple[JobRow, AttemptRow]],
    nodes: Iterable[NodeRow],
    now: float,
) -> Entries:
    """What changed since the uses were written."""
    known = {node.id: node for node in nodes}
    jobs = {job.id: (job, attempt) for job, attempt in live}
    placed = workers_by_node(known.values(), [attempt for _, attempt in jobs.values()])
    wanted = {
        (job_id, node_id): (count, part)
        for node_id, jobs_on in placed.items()
        for (job_id, count), part in zip(jobs_on.items(), _parts(known[node_id], jobs, jobs_on), strict=True)
    }
    closed: list[UseRow] = []
    for use in open_uses:
        key = (use.job_id, use.node_id)
        current = jobs.get(use.job_id)
        is_attempt = current is not None and current[1].attempt == use.attempt
        if is_attempt and wanted.get(key) == (use.workers, use.part):
            del wanted[key]
            continue
        closed.append(replace(use, ended_at=max(use.began_at, now)))
    begun = [
        _use(*jobs[job_id], known[node_id], count, part, now)
        for (job_id, node_id), (count, part) in wanted.items()
    ]
    return Entries(tuple(closed), tuple(begun))


def _parts(
    node: NodeRow, jobs: Mapping[str, tuple[JobRow, AttemptRow]], jobs_on: Mapping[str, int]
) -> list[float]:
    """Which part of the node each job holds, in their order; 1 in all at most.

    One job may hold most of the GPUs and another one most of the CPUs: together they never pay for more than one node.
    """
    found = [
        dominant_part(node.resources, jobs[job_id][0].worker_resources, n) for job_id, n in jobs_on.items()
    ]
    # Of a node of which nothing is known all is held.
    parts = [min(1.0, 1.0 if part is None else part) for part in found]
    most = max(1.0, sum(parts))
    return [part / most for part in parts]


def _use(job: JobRow, attempt: AttemptRow, node: NodeRow, workers: int, part: float, now: float) -> UseRow:
    return UseRow(
        job_id=job.id,
        node_id=node.id,
        began_at=now,
        attempt=attempt.attempt,
        workers=workers,
        pool=node.pool,
        offering=node.offering,
        part=part,
        price_per_hour=node.price_per_hour,
        cluster=node.cluster,
    )

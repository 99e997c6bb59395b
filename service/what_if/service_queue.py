"""The queue's decisions about jobs of a trace, by the functions that the service itself calls."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from types import MappingProxyType

from cluster.policies.offerings import Offering
from cluster.policies.placement import ANYWHERE
from cluster.policies.policies import Policies, PoolPolicy
from cluster.scheduling.quotas import has_quotas
from cluster.scheduling.view import JobDemand, Spending
from cluster.simulator.ports import FreeCapacity
from cluster.traces.lines import asked_by
from cluster.traces.trace import TraceJob
from remora.spec.worker_sizes import spec_of
from service.queue import retry
from service.queue.admission import PoolSize, admit, blocked_owners
from service.queue.ordering import QueueKey, in_order, queue_key
from service.queue.pools import complete_pools
from service.queue.quotas import quotas_of
from service.queue.ready_nodes import ReadyNode
from service.queue.rows import JobRow
from service.queue.shares import has_shares, shares_of
from service.queue.urgency import stays_off_spot


class ServiceQueue:
    """`cluster.simulator.ports.Queue`, by ordering, admission and retry of the service."""

    def __init__(self, offerings: Sequence[Offering], policies: Policies) -> None:
        self._policies = policies
        self._pools = pool_sizes(offerings, policies)
        self.has_quotas = has_quotas(policies)
        self.counts_projects = self.has_quotas or has_shares(policies)
        self._rows: dict[str, JobRow] = {}
        self._possible: dict[tuple[object, ...], bool] = {}

    def turn(self, job: TraceJob, *, is_urgent: bool = False) -> QueueKey:
        """As `service.queue.ordering` sorts."""
        return queue_key(self._row(job), is_urgent=is_urgent)

    def keeps_off_spot(
        self, job: TraceJob, demand: JobDemand, now: float, start_up_s: float, *, is_coming: bool
    ) -> bool:
        """As `service.queue.urgency` decides."""
        return stays_off_spot(demand, self._pools, now, start_up_s, (job.id,) if is_coming else ())

    def in_turns(
        self,
        waiting: Sequence[TraceJob],
        running: Sequence[tuple[TraceJob, int]],
        urgent: Container[str] = (),
    ) -> Sequence[TraceJob]:
        """As `service.queue.shares` decides."""
        shares = shares_of(
            self._policies, self._pools, [(self._row(job), workers) for job, workers in running]
        )
        jobs = {job.id: job for job in waiting}
        rows = in_order(map(self._row, waiting), math.inf, urgent)
        return [jobs[row.id] for row in (rows if shares is None else shares.order(rows))]

    def held_up(
        self,
        waiting: Sequence[TraceJob],
        owners: Collection[str],
        running: Sequence[tuple[TraceJob, int]],
        spent: Mapping[str, Spending],
    ) -> frozenset[str]:
        """As `service.queue.admission` decides."""
        held = [(self._row(job), workers) for job, workers in running]
        quotas = quotas_of(self._policies, held, spent)
        return blocked_owners(map(self._row, waiting), owners, self._pools, quotas)

    def can_ever_start(self, job: TraceJob) -> bool:
        """False when the queue would call it hopeless."""
        key = (job.sizes, tuple(sorted(job.resources.items())), job.placement, job.project)
        if key not in self._possible:
            quotas = quotas_of(self._policies, (), {}) if self.has_quotas else None
            (wait,) = admit([self._row(job)], (), (), self._pools, quotas=quotas).waits
            self._possible[key] = not wait.is_hopeless
        return self._possible[key]

    def starts(
        self,
        waiting: Sequence[TraceJob],
        free_nodes: Sequence[FreeCapacity],
        running: Sequence[tuple[TraceJob, int]] = (),
        spent: Mapping[str, Spending] | None = None,
        off_spot: Container[str] = (),
        kept: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, str | None]:
        """As `service.queue.admission` decides; `free_nodes` hold free resources only, so that there are no claims."""
        rows = [self._row(job) for job in waiting]
        held = [(self._row(job), workers) for job, workers in running]
        decided = admit(
            rows,
            (),
            [ReadyNode(*node) for node in free_nodes],
            self._pools,
            quotas=quotas_of(self._policies, held, spent or {}) if self.has_quotas else None,
            off_spot=off_spot,
            kept=kept,
            tells_jobs=False,
        )
        return {job_id: decided.fabrics.get(job_id) for job_id in decided.starts}

    def after_loss(self, losses: int, now: float) -> float | None:
        """As `service.queue.retry` decides; a job trains between two losses, so none of them follows another."""
        delay_s = retry.delay_after_loss(losses, streak=1)
        return None if delay_s is None else now + delay_s

    def _row(self, job: TraceJob) -> JobRow:
        row = self._rows.get(job.id)
        if row is None:
            row = self._rows[job.id] = row_of(job)
        return row


def row_of(job: TraceJob) -> JobRow:
    """The job as the queue knows it."""
    placement = {} if job.placement is ANYWHERE else {"placement": asked_by(job.placement)}
    return JobRow(
        id=job.id,
        name=job.id,
        project=job.project,
        priority=job.priority,
        spec=spec_of(job.sizes) | placement,
        min_workers=job.min_workers,
        max_workers=job.max_workers,
        worker_resources=dict(job.resources),
        retry_limit=0,
        backoff_s=0.0,
        run_time_s=None,
        wait_time_s=None,
        created_at=job.at_s,
    )


def pool_sizes(offerings: Sequence[Offering], policies: Policies) -> list[PoolSize]:
    """The complete pools, with as many nodes as each may have at any time."""
    return complete_pools(policies, offerings, _most_nodes)


def _most_nodes(pool: PoolPolicy) -> int:
    return max([pool.max_nodes, *(one.max_nodes or 0 for one in pool.schedules)])

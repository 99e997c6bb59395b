"""Loads the jobs that wait, in queue order, and those that run, as the demands that every decision is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from cluster.lazy_property import lazy
from cluster.policies.offerings import Offering
from cluster.policies.policies import Policies
from cluster.scheduling.fitting import as_shown
from cluster.scheduling.limits import limits_of
from cluster.scheduling.pool_sizes import PoolSize, complete_pools
from cluster.scheduling.queue_order import WINDOW, WINDOW_OF_EACH, in_order
from cluster.scheduling.quotas import Counting, has_quotas
from cluster.scheduling.ray_programs import NO_PROGRAMS, Programs
from cluster.scheduling.shares import has_shares, shares_of
from cluster.scheduling.slack import urgent_among
from cluster.scheduling.view import START_UP_S, JobDemand, Spending
from service.queue.demand import demand_of, start_up_s
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.store import jobs as job_store
from service.store import ledger
from service.store.job_history import newest_checkpoints


@dataclass(frozen=True)
class Workload:
    """The jobs that wait and may start, and the jobs that run."""

    now: float = 0.0
    running: Sequence[tuple[JobRow, AttemptRow]] = ()
    #: Rows of those that wait, by id, and their demands in queue order.
    rows: Mapping[str, JobRow] = field(default_factory=dict)
    waiting: Sequence[JobDemand] = ()
    #: Of those that wait the ones behind which more wait that were not loaded, by id.
    cut_at: frozenset[str] = frozenset()
    #: What there is once each pool has all the nodes that it may have.
    pools: Sequence[PoolSize] = ()
    #: Seconds that machines take to start, as measured lately.
    start_up_s: float = START_UP_S
    #: When the newest checkpoint of running jobs was committed, by job id; seconds since 1970.
    checkpoint_at: Mapping[str, float] = field(default_factory=dict)
    #: USD that jobs with a budget have spent, by job id.
    spent: Mapping[str, float] = field(default_factory=dict)
    #: What Ray programs wait for, in its places among the jobs, and what they hold of nodes.
    programs: Sequence[JobDemand] = ()
    held: Sequence[JobDemand] = ()

    @lazy
    def demands_of_running(self) -> Sequence[JobDemand]:
        """What the jobs that run use and would use."""
        return [
            demand_of(job, one, self.checkpoint_at.get(job.id), self.now, self.spent.get(job.id, 0.0))
            for job, one in self.running
        ]

    @property
    def demands(self) -> tuple[JobDemand, ...]:
        """All of them, those that wait in their places."""
        return (*self.waiting, *self.programs, *self.demands_of_running, *self.held)

    def counting(self, policies: Policies, spent: Mapping[str, Spending]) -> Counting | None:
        """What the jobs that run use of quotas, by the workers that their drivers reported; None: there are no quotas.

        `spent` is what projects have spent.
        """
        if not has_quotas(policies):
            return None
        held = {job.id: attempt.world_size for job, attempt in self.running}
        held |= {one.id: 1 for one in self.held}
        return Counting(policies, [*self.demands_of_running, *self.held], held, spent, self.now)


def load_workload(
    connection: sa.Connection,
    cluster: str,
    policies: Policies,
    offerings: Sequence[Offering],
    nodes: Sequence[NodeRow],
    running: Sequence[tuple[JobRow, AttemptRow]],
    now: float,
    width: int = 1,
    programs: Programs = NO_PROGRAMS,
) -> Workload:
    """The first jobs of a cluster that may start now, next one first, and those that run, beside the nodes in `nodes`.

    Queue and planner load the same: with other pools, projects with shares would have another order.  `width` times as
    many as usual are loaded of those that wait.  What Ray programs wait for has its place among them.
    """
    pools = pool_sizes(policies, as_shown(offerings, nodes), now)
    workload = Workload(
        now=now,
        running=running,
        pools=pools,
        start_up_s=start_up_s(nodes),
        held=tuple(programs.held.values()),
    )
    is_counted = has_shares(policies) or has_quotas(policies)
    if is_counted:
        most = width * WINDOW_OF_EACH
        rows = job_store.queued_jobs_of_each(connection, cluster, now, most)
        per_project = Counter(row.project for row in rows)
        is_cut = {project for project, count in per_project.items() if count >= most}
        cut_at = {row.project: row.id for row in rows if row.project in is_cut}  # the last one of each
    else:
        rows = job_store.queued_jobs(connection, cluster, now, width * WINDOW)
        cut_at = {"": rows[-1].id} if len(rows) >= width * WINDOW else {}
    demands = [*(demand_of(row, None, None, now) for row in rows), *programs.waiting]
    order = in_order(demands, urgent_among(demands, now, workload.start_up_s))
    if has_shares(policies):
        world_sizes = [attempt.world_size for _, attempt in running]
        held = list(zip(workload.demands_of_running, world_sizes, strict=True))
        held += [(one, 1) for one in workload.held]
        if (shares := shares_of(policies, pools, held)) is not None:
            order = shares.order(order)
    placed = [replace(demand, place=place) for place, demand in enumerate(order)]
    return replace(
        workload,
        rows={row.id: row for row in rows},
        waiting=[one for one in placed if not one.is_program],
        programs=[one for one in placed if one.is_program],
        cut_at=frozenset(cut_at.values()),
    )


def with_costs(connection: sa.Connection, workload: Workload) -> Workload:
    """The same with what a plan of purchases needs besides: money spent, and the times of checkpoints."""
    jobs = [*workload.rows.values(), *(job for job, _ in workload.running)]
    spent = ledger.spent(connection, [job.id for job in jobs if job.facts.budget is not None], workload.now)
    waiting = [
        one if one.budget_left is None else replace(one, budget_left=one.budget_left - spent.get(one.id, 0.0))
        for one in workload.waiting
    ]
    saved = newest_checkpoints(connection, [job.id for job, _ in workload.running])
    return replace(workload, waiting=waiting, spent=spent, checkpoint_at=saved)


def pool_sizes(policies: Policies, offerings: Sequence[Offering], now: float) -> list[PoolSize]:
    """How many nodes of which resources each pool has when it is complete, by the limits of this time."""
    return complete_pools(policies, offerings, lambda pool: limits_of(pool, now).max_nodes)

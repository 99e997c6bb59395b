"""Loads the waiting jobs in queue order: by priority, urgency, shares of projects, and age."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cluster.policies.offerings import Offering
from cluster.policies.policies import Policies
from cluster.scheduling.limits import limits_of
from cluster.scheduling.quotas import has_quotas
from service.queue.admission import PoolSize
from service.queue.ordering import in_order
from service.queue.pools import complete_pools
from service.queue.rows import AttemptRow, JobRow
from service.queue.shares import shares_of
from service.queue.urgency import urgent_jobs
from service.store import jobs

#: Jobs that one tick decides about; those behind them go on waiting for their turn.
WINDOW = 200
#: The same of each project, where projects have shares or quotas.
WINDOW_OF_EACH = 50


def jobs_in_order(
    connection: sa.Connection,
    policies: Policies,
    pools: Sequence[PoolSize],
    running: Sequence[tuple[JobRow, AttemptRow]],
    now: float,
    start_up_s: float,
) -> list[JobRow]:
    """The first jobs that may start now, next one first; machines take `start_up_s` to start."""

    def ordered(waiting: list[JobRow]) -> list[JobRow]:
        return in_order(waiting, now, urgent_jobs(waiting, now, start_up_s))

    shares = shares_of(policies, pools, [(job, attempt.world_size) for job, attempt in running])
    if shares is None and not has_quotas(policies):
        return ordered(jobs.queued_jobs(connection, now, WINDOW))
    queue = ordered(jobs.queued_jobs_of_each(connection, now, WINDOW_OF_EACH))
    return queue if shares is None else shares.order(queue)


def pool_sizes(policies: Policies, offerings: Sequence[Offering], now: float) -> list[PoolSize]:
    """How many nodes of which resources each pool has when it is complete, by the limits of this time."""
    return complete_pools(policies, offerings, lambda pool: limits_of(pool, now).max_nodes)

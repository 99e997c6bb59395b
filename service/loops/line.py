"""The jobs that wait, in the order of their turns under the policies in force."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cluster.offerings import Offering
from cluster.planning.limits import limits_of
from cluster.planning.quotas import has_quotas
from cluster.policies import Policies
from service.queue.admission import PoolSize
from service.queue.ordering import in_order
from service.queue.pools import complete_pools
from service.queue.rows import AttemptRow, JobRow
from service.queue.shares import shares_of
from service.store import jobs

#: Jobs that are looked at in one tick; those behind them go on waiting for their turn.
WINDOW = 200
#: The same of each project, where projects have shares or quotas.
WINDOW_OF_EACH = 50


def line(
    connection: sa.Connection,
    policies: Policies,
    pools: Sequence[PoolSize],
    running: Sequence[tuple[JobRow, AttemptRow]],
    now: float,
) -> list[JobRow]:
    """The first jobs that may start now, next one first."""
    shares = shares_of(policies, pools, [(job, attempt.world_size) for job, attempt in running])
    if shares is None and not has_quotas(policies):
        return in_order(jobs.queued_jobs(connection, now, WINDOW), now)
    queue = in_order(jobs.queued_jobs_of_each(connection, now, WINDOW_OF_EACH), now)
    return queue if shares is None else shares.order(queue)


def pool_sizes(policies: Policies, offerings: Sequence[Offering], now: float) -> list[PoolSize]:
    """How many nodes of which resources each pool has when it is complete, by the limits of this time."""
    return complete_pools(policies, offerings, lambda pool: limits_of(pool, now).max_nodes)

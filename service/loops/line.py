"""The jobs that wait, in the order of their turns under the policies in force."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cluster.offerings import Offering
from cluster.placement import bought_by
from cluster.planning.limits import limits_of
from cluster.policies import Policies
from service.queue.admission import PoolSize
from service.queue.ordering import in_order
from service.queue.rows import AttemptRow, JobRow
from service.queue.shares import shares_of
from service.store import jobs

#: Jobs that are looked at in one tick; those behind them go on waiting for their turn.
WINDOW = 200
#: The same of each project, where projects have shares.
WINDOW_OF_EACH = 50


def line(
    connection: sa.Connection,
    policies: Policies,
    pools: Sequence[PoolSize],
    running: Sequence[tuple[JobRow, AttemptRow]],
    now: float,
) -> list[JobRow]:
    """The first jobs that may start now, next one first."""
    shares = shares_of(policies, pools, running)
    if shares is None:
        return in_order(jobs.queued_jobs(connection, now, WINDOW), now)
    return shares.order(in_order(jobs.queued_jobs_of_each(connection, now, WINDOW_OF_EACH), now))


def pool_sizes(policies: Policies, offerings: Sequence[Offering], now: float) -> list[PoolSize]:
    """How many nodes of which resources each pool has when it is complete.

    A pool that is sold several sizes counts as if each of its nodes had the most of every resource.
    """
    sizes: list[PoolSize] = []
    for name, pool in policies.pools.items():
        most: dict[str, float] = {}
        for offering in offerings:
            if offering.size in pool.sizes:
                for resource, amount in offering.resources.items():
                    most[resource] = max(amount, most.get(resource, 0.0))
        size = limits_of(pool, now).max_nodes
        sizes.append(PoolSize(name, size, most, pool.zones, bought_by(pool.capacity)))
    return sizes

"""Which clusters there are, and for how long the controller of each has said nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from cluster.policies.policies import Policies
from remora.clusters import DEFAULT_CLUSTER
from service.api.context import Context
from service.policies_in_force import policies_in_force
from service.store import leases
from service.store.clusters_in_use import clusters_in_use
from service.store.leases import LeaseRow, LeaseWatch


async def controller_ages(context: Context, policies: Policies | None = None) -> dict[str, float | None]:
    """Seconds since the lease of each cluster's controller was renewed; None when no process ever held it.

    The clusters are those of the policies, by default of those in force, and those that still have nodes or jobs.
    """

    def read(connection: sa.Connection) -> tuple[list[str], dict[str, LeaseRow]]:
        named = (policies or policies_in_force(connection, context.settings)).clusters
        clusters = list(dict.fromkeys([*named, *sorted(clusters_in_use(connection))]))
        return clusters, leases.find(connection, [leases.controller_of(one) for one in clusters])

    clusters, rows = await context.database.read(read)
    return {one: _age_s(context, one, rows.get(leases.controller_of(one))) for one in clusters}


def without_controller(context: Context, ages: Mapping[str, float | None]) -> list[str]:
    """The clusters that no controller leads now."""
    most_s = 3 * context.settings.lease_s
    return sorted(name for name, age in ages.items() if age is None or age >= most_s)


def notes_on_clusters(policies: Policies, clusters: Collection[str], not_led: Collection[str]) -> list[str]:
    """What to know of further clusters before a document is applied, one sentence each.

    `clusters` are those of the document and those that are in use, `not_led` those of them without a controller.
    """
    found = [
        f"no controller leads the cluster {name}: its jobs are accepted and wait until one is started"
        for name in not_led
        if name != DEFAULT_CLUSTER
    ]
    left = [name for name in clusters if name not in policies.clusters]
    return found + [
        f"no pool is left in the cluster {name}, which still has nodes or jobs: keep its controller until `remora"
        " nodes` and `remora list` show none of them"
        for name in left
    ]


def _age_s(context: Context, cluster: str, row: LeaseRow | None) -> float | None:
    if row is None:
        return None
    # At the first request there is only the wall clock to compare, its own with that of the owner.
    by_the_clocks_s = max(0.0, context.clock() - row.renewed_at)
    watch = context.leases.setdefault(cluster, LeaseWatch())
    return watch.unchanged_s(row, time.monotonic(), before_s=by_the_clocks_s)

"""What running jobs and Ray programs hold of projects: GPUs as quotas count them, parts of all that there may be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cluster.policies.offerings import Offering
from cluster.policies.policies import Policies, ProjectPolicy
from cluster.scheduling.fitting import as_shown
from cluster.scheduling.limits import limits_of
from cluster.scheduling.pool_sizes import complete_pools
from cluster.scheduling.quotas import Counting
from cluster.scheduling.shares import shares_of
from cluster.scheduling.view import JobDemand
from service.clouds.fixed_pool import local_offerings
from service.queue.demand import demand_of, demand_of_held
from service.settings import Settings
from service.store.clusters_in_use import clusters_in_use
from service.store.jobs import live_attempts
from service.store.nodes import current_nodes
from service.store.policies import newest_market
from service.store.ray_requests import held_on


@dataclass(frozen=True)
class InUse:
    """By project; one that holds nothing is missing."""

    gpus: Mapping[str, float]
    #: The largest part of a resource of the complete pools of its cluster; None: operators gave no project a share, or
    #: what the pools may buy is not known.
    parts: Mapping[str, float] | None


def in_use(
    connection: sa.Connection, settings: Settings, policies: Policies, names: Collection[str], now: float
) -> InUse:
    """What the projects use now, Ray programs as the newest plan counted them; some statements for each cluster."""
    gpus: defaultdict[str, float] = defaultdict(float)
    parts: dict[str, float] = {}
    is_known = False
    # Quotas are counted for projects with a policy alone.
    projects = {**dict.fromkeys(names, ProjectPolicy()), **policies.projects}
    every = policies.model_copy(update={"projects": projects})
    for cluster in sorted({*policies.clusters, *clusters_in_use(connection)}):
        running = [
            (demand_of(job, attempt, None, now), attempt.world_size)
            for job, attempt in live_attempts(connection, cluster)
        ]
        running += [(demand_of_held(row), 1) for row in held_on(connection, cluster)]
        workers = {demand.id: count for demand, count in running}
        counting = Counting(every, [demand for demand, _ in running], workers, {}, now)
        for name in names:
            gpus[name] += counting.gpus_of_project(name)
        found = _held(connection, settings, policies.of_cluster(cluster), cluster, running, now)
        is_known |= found is not None
        for name, part in (found or {}).items():
            if policies.cluster_of(name) == cluster:
                parts[name] = part
    return InUse(gpus, parts if is_known else None)


def _held(
    connection: sa.Connection,
    settings: Settings,
    policies: Policies,
    cluster: str,
    running: Sequence[tuple[JobDemand, int]],
    now: float,
) -> Mapping[str, float] | None:
    """The parts by which the queue orders the projects of a cluster."""
    sold: Sequence[Offering] = local_offerings(settings)
    if settings.cloud != "local":
        _, sold = newest_market(connection, cluster)
    if not sold:
        return None
    shown = as_shown(sold, current_nodes(connection, cluster, now, now))
    pools = complete_pools(policies, shown, lambda pool: limits_of(pool, now).max_nodes)
    shares = shares_of(policies, pools, running)
    return None if shares is None else shares.held

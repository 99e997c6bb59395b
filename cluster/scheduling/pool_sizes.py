"""The complete pools: what there is once each has all the nodes that it may have (pure).

One answer to which jobs can never start: the queue reports it to their owners, and nothing is bought for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import Placement, bought_by
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.scheduling.fitting import Resources, most_workers, slots


@dataclass(frozen=True)
class PoolSize:
    """How many nodes of which resources a pool has when it is complete."""

    name: str
    size: int
    resources: Resources
    #: Where it may have nodes, and of which capacity types; empty: not known, and taken for whatever is asked for.
    zones: tuple[str, ...] = ()
    capacities: tuple[CapacityType, ...] = ()
    #: What it may buy; None: not known, and its nodes are taken to have its `resources`.
    sold: tuple[Offering, ...] | None = None
    #: What it buys of sizes that InfiniBand can join.
    with_fabric: tuple[Offering, ...] = ()

    def may_hold(self, job: Placement) -> bool:
        """The job accepts some of its nodes."""
        if job.needs_fabric:
            return bool(self.joined_for(job))
        return (
            (not job.pools or self.name in job.pools)
            and (not job.zones or not self.zones or not set(job.zones).isdisjoint(self.zones))
            and (not self.capacities or any(job.takes(one) for one in self.capacities))
        )

    def joined_for(self, job: Placement) -> list[Offering]:
        """What it buys that InfiniBand can join and that the job accepts."""
        return [one for one in self.with_fabric if job.allows(self.name, one.zone, one.capacity)]

    def most_workers(self, worker: Resources, job: Placement) -> int:
        """Workers that fit on its nodes that the job accepts, when all of them are empty; within one fabric domain."""
        if job.needs_fabric:
            return most_workers(self.joined_for(job), self.size, worker, in_domain=True)
        if not self.may_hold(job):
            return 0
        if self.sold is None:
            return self.size * slots(self.resources, worker)
        sold = [one for one in self.sold if job.allows(self.name, one.zone, one.capacity)]
        return most_workers(sold, self.size, worker)


def most_in_all(pools: Iterable[PoolSize], worker: Resources, job: Placement) -> int:
    """Workers that fit in the pools when they are complete and empty."""
    most = [pool.most_workers(worker, job) for pool in pools]
    # A fabric domain lies in one pool.
    return max(most, default=0) if job.needs_fabric else sum(most)


def complete_pools(
    policies: Policies, offerings: Sequence[Offering], most_nodes: Callable[[PoolPolicy], int]
) -> list[PoolSize]:
    """How many nodes of which resources each pool has when it is complete; `most_nodes` says how many.

    `resources` of a pool with several sizes are the most of every resource, because shares are counted in them; whether
    a worker fits is decided for each size by itself.
    """
    sizes: list[PoolSize] = []
    for name, pool in policies.pools.items():
        most: dict[str, float] = {}
        for offering in offerings:
            if offering.size in pool.sizes:
                for resource, amount in offering.resources.items():
                    most[resource] = max(amount, most.get(resource, 0.0))
        sold = _sold(pool, offerings)
        capacities = bought_by(pool.capacity)
        sizes.append(
            PoolSize(name, most_nodes(pool), most, pool.zones, capacities, sold, _joined(pool, sold))
        )
    return sizes


def _sold(pool: PoolPolicy, offerings: Sequence[Offering]) -> tuple[Offering, ...]:
    """What the pool may buy."""
    capacities = bought_by(pool.capacity)
    return tuple(
        one
        for one in offerings
        if one.size in pool.sizes and (one.zone or "any") in pool.zones and one.capacity in capacities
    )


def _joined(pool: PoolPolicy, sold: Sequence[Offering]) -> tuple[Offering, ...]:
    """What of it has InfiniBand; spot and on-demand do not meet in one fabric domain."""
    is_mixed = pool.capacity is CapacityRule.MIXED
    return tuple(
        one for one in sold if one.has_fabric and not (is_mixed and one.capacity is CapacityType.SPOT)
    )

"""The complete pools: what there is once each has all the nodes that it may have (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import bought_by
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from service.queue.admission import PoolSize


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

"""What policies may come to at their limits: money without a budget, and more of a quota than there is (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.policies.offerings import Offering
from cluster.policies.placement import bought_by
from cluster.policies.policies import Policies, PoolPolicy


@dataclass(frozen=True)
class QuotaNeed:
    """How much of one quota pools use when each has as many nodes of its first size as it may have."""

    #: As offerings name it.
    quota: str
    units: int
    pools: tuple[str, ...]


def usd_per_hour_without_budget(policies: Policies, catalogue: Iterable[Offering]) -> float:
    """What all nodes cost in an hour at most, each the dearest of its pool; 0 where a budget ends that."""
    if policies.budget.usd_per_day is not None or policies.budget.usd_per_month is not None:
        return 0.0
    sold = tuple(catalogue)
    return sum(
        pool.most_nodes * max((one.price_per_hour for one in _bought(pool, pool.sizes, sold)), default=0.0)
        for pool in policies.pools.values()
    )


def quota_needs(policies: Policies, catalogue: Iterable[Offering]) -> list[QuotaNeed]:
    """What the pools need of each quota, by name.  A pool that buys both capacity types needs all of either."""
    sold = tuple(catalogue)
    units: dict[str, int] = {}
    pools: dict[str, list[str]] = {}
    for name, pool in policies.pools.items():
        own = {
            one.quota: one.quota_units for one in _bought(pool, pool.sizes[:1], sold) if one.quota_units > 0
        }
        for quota, of_one in own.items():
            units[quota] = units.get(quota, 0) + pool.most_nodes * of_one
            pools.setdefault(quota, []).append(name)
    return [QuotaNeed(quota, units[quota], tuple(pools[quota])) for quota in sorted(units) if units[quota]]


def beyond(needs: Iterable[QuotaNeed], limits: Mapping[str, int]) -> list[tuple[QuotaNeed, int]]:
    """Needs that are above their limit, with it; `limits` are by names in lower case, others are not known."""
    found = ((need, limits.get(need.quota.lower())) for need in needs)
    return [(need, limit) for need, limit in found if limit is not None and need.units > limit]


def _bought(pool: PoolPolicy, sizes: Sequence[str], sold: Sequence[Offering]) -> list[Offering]:
    capacities = bought_by(pool.capacity)
    return [one for one in sold if one.size in sizes and one.capacity in capacities]

"""What a cluster's cloud sells to the pools of the policies, as a controller records it for others (pure).

Processes of the API have no access to the cloud: they show what was recorded last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.policies.offerings import CapacityType, Offering, zone_and_capacity
from cluster.policies.placement import bought_by
from cluster.policies.policies import Policies, PoolPolicy

#: Offerings that are recorded at most.
MOST = 1000


def may_buy(policy: PoolPolicy, offering_id: str) -> bool:
    """The pool may ask for this offering."""
    zone, capacity = zone_and_capacity(offering_id)
    is_sold = offering_id.partition("/")[0] in policy.sizes and (zone or "any") in policy.zones
    return is_sold and capacity in bought_by(policy.capacity)


def market_of(policies: Policies, sold: Iterable[Offering], before: Sequence[Offering]) -> list[Offering]:
    """What of all that is sold the pools may buy, by id, at most `MOST`.

    While only an assumed price of an offering is known, it stays as it was recorded `before` with the cloud's own.
    """
    known = {one.id: one for one in before if not one.is_price_assumed}
    by_size: defaultdict[str, list[PoolPolicy]] = defaultdict(list)
    for pool in policies.pools.values():
        for size in pool.sizes:
            by_size[size].append(pool)
    bought = (one for one in sold if any(may_buy(pool, one.id) for pool in by_size.get(one.size, ())))
    found = sorted(bought, key=lambda one: one.id)
    return [known.get(one.id, one) if one.is_price_assumed else one for one in found[:MOST]]


def to_data(market: Iterable[Offering]) -> list[dict[str, Any]]:
    """The offerings as an event holds them."""
    return [
        {
            "offering": one.id,
            "price_per_hour": one.price_per_hour,
            "is_price_assumed": one.is_price_assumed,
            "evictions_per_hour": one.evictions_per_hour,
            "resources": dict(one.resources),
        }
        for one in market
    ]


def from_data(data: Iterable[Mapping[str, Any]]) -> list[Offering]:
    """The offerings of such an event, as far as it describes them."""
    found: list[Offering] = []
    for one in data:
        zone, capacity = zone_and_capacity(one["offering"])
        found.append(
            Offering(
                size=one["offering"].rsplit("/", 2)[0],
                zone=zone,
                capacity=capacity or CapacityType.ON_DEMAND,
                resources=one["resources"],
                price_per_hour=one["price_per_hour"],
                evictions_per_hour=one["evictions_per_hour"],
                is_price_assumed=one["is_price_assumed"],
            )
        )
    return found

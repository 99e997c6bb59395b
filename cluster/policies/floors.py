"""What the nodes that pools never return cost at the least, day by day of the four years of a calendar (pure)."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.policies.cron_fields import ALWAYS, calendar, days, minutes_by_day
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import bought_by
from cluster.policies.policies import CapacityRule, PoolPolicy
from cluster.policies.problems import Path

#: The word for "the cloud chooses".
ANY_ZONE = "any"
#: Days that every month has.
SHORTEST_MONTH_DAYS = 28


@dataclass(frozen=True)
class Floor:
    """One number of nodes that is a minimum for some of the time."""

    path: Path
    usd_per_hour: float
    #: For how many minutes of each of `cluster.policies.cron_fields.days` it holds.
    minutes: Sequence[int]


@dataclass(frozen=True)
class Dearest:
    """The day, or the days, for which a minimum costs most."""

    usd: float
    #: In words: `a day`, `on Saturday 1 January 2028`.
    when: str
    #: The number of nodes that is most of it.
    path: Path


def floors(pools: Mapping[str, PoolPolicy], catalogue: Collection[Offering]) -> list[Floor]:
    """Every minimum that costs something, and when it holds; of schedules that are open together the last one."""
    found: list[Floor] = []
    for name, pool in pools.items():
        path, left = ("pools", name), ALWAYS
        for number, one in reversed(list(enumerate(pool.schedules))):
            if one.min_nodes is None:
                continue
            # To the whole minute, and never more than there is of it.
            whole_s = one.window.lasts_s // 60 * 60
            is_more = one.min_nodes > pool.min_nodes
            lasts_s = whole_s if is_more else one.window.lasts_s
            mine = calendar(one.window.begins, lasts_s) & left if lasts_s else 0
            left &= ~mine
            own = (*path, "schedules", str(number), "min_nodes")
            found.extend(_floor(own, pool, one.min_nodes, catalogue, mine))
        found.extend(_floor((*path, "min_nodes"), pool, pool.min_nodes, catalogue, left))
    return found


def _floor(
    path: Path, pool: PoolPolicy, nodes: int, catalogue: Collection[Offering], minutes: int
) -> Iterator[Floor]:
    usd_per_hour = _usd_per_hour(pool, nodes, catalogue)
    if usd_per_hour and minutes:
        yield Floor(path, usd_per_hour, minutes_by_day(minutes))


def dearest_day(found: Collection[Floor]) -> Dearest | None:
    """The day on which they cost most together; None: nothing is kept."""
    return _dearest(found, days(), "a day", lambda day: f"on {day:%A} {day.day} {day:%B %Y}")


def dearest_month(found: Collection[Floor]) -> Dearest | None:
    """The month whose first 28 days cost most, as every month has those."""
    return _dearest(
        found,
        [day.replace(day=1) if day.day <= SHORTEST_MONTH_DAYS else None for day in days()],
        f"in the {SHORTEST_MONTH_DAYS} days of the shortest month",
        lambda month: f"in the first {SHORTEST_MONTH_DAYS} days of {month:%B %Y}",
    )


def _dearest(
    found: Collection[Floor],
    periods: Sequence[dt.date | None],
    always: str,
    words: Callable[[dt.date], str],
) -> Dearest | None:
    """`periods` says for each day which one it belongs to; None: to none."""
    if not found:
        return None
    by_day = [0.0] * len(periods)
    for floor in found:
        rate = floor.usd_per_hour / 60.0
        by_day = [usd + rate * minutes for usd, minutes in zip(by_day, floor.minutes, strict=True)]
    total: defaultdict[dt.date, float] = defaultdict(float)
    for period, usd in zip(periods, by_day, strict=True):
        if period is not None:
            total[period] += usd
    # To the cent, as it is reported: what fits exactly is not refused for a rounding.
    cents = {period: round(usd, 2) for period, usd in total.items()}
    dearest = max(cents, key=lambda period: (cents[period], -period.toordinal()))
    mine = [number for number, period in enumerate(periods) if period == dearest]
    most = max(found, key=lambda one: (one.usd_per_hour * sum(one.minutes[at] for at in mine), one.path))
    return Dearest(
        usd=cents[dearest],
        when=always if len(set(cents.values())) == 1 else words(dearest),
        path=most.path,
    )


def _usd_per_hour(pool: PoolPolicy, nodes: int, catalogue: Collection[Offering]) -> float:
    """The least USD for an hour of `nodes` nodes of the pool's offerings."""
    core = min(nodes, pool.on_demand_core) if pool.capacity is CapacityRule.MIXED else 0
    on_demand = core * _cheapest(pool, (CapacityType.ON_DEMAND,), catalogue)
    return on_demand + (nodes - core) * _cheapest(pool, bought_by(pool.capacity), catalogue)


def _cheapest(
    pool: PoolPolicy, capacities: Collection[CapacityType], catalogue: Collection[Offering]
) -> float:
    """USD for an hour of the cheapest node of these capacity types in the pool's zones; 0 where none is sold."""
    prices = [
        offering.price_per_hour
        for offering in catalogue
        if offering.size in pool.sizes
        and offering.capacity in capacities
        and (offering.zone or ANY_ZONE) in pool.zones
    ]
    return min(prices, default=0.0)

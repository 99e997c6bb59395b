"""Validates policies against the catalogue and the installed site rules: sizes, zones, prices, names (pure)."""

from __future__ import annotations

import datetime as dt
import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.policies.amd_sizes import why_refused
from cluster.policies.conflicts import DEFAULT
from cluster.policies.cron_fields import ALWAYS, calendar, days, first_year, minutes_by_day
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import bought_by
from cluster.policies.policies import AT_PLACE, CapacityRule, Policies, PoolPolicy
from cluster.policies.policy_problems import Conflict, Path
from remora.clusters import DEFAULT_CLUSTER


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What a document is validated against; None: not known, so it is not checked."""

    catalogue: tuple[Offering, ...] | None = None
    #: The same of clusters whose nodes stand elsewhere, by name; None: all clusters have the one catalogue.
    further: Mapping[str, tuple[Offering, ...] | None] | None = None
    #: Most nodes of a size that there can be, where that is known.
    most_nodes: Mapping[str, int] = field(default_factory=dict)
    #: Names of the site rules that are installed.
    rules: frozenset[str] | None = None

    def catalogue_of(self, cluster: str) -> tuple[Offering, ...] | None:
        """What a cluster can buy; None: not known."""
        is_elsewhere = self.further is not None and cluster != DEFAULT_CLUSTER
        return self.further.get(cluster) if self.further is not None and is_elsewhere else self.catalogue


#: What each cluster can buy, of those of which that is known.
Sold = Mapping[str, tuple[Offering, ...]]


def catalogue_conflicts(policies: Policies, known: ClusterFacts) -> Iterator[Conflict]:
    """Every value that names something that is not there, or more of it than there is."""
    if known.rules is not None:
        yield from _unknown_rules(policies, known.rules)
    for name, pool in policies.pools.items():
        yield from _too_many(("pools", name), pool, known.most_nodes)
    sold = {cluster: known.catalogue_of(cluster) for cluster in policies.clusters}
    are_known = True
    for name, pool in policies.pools.items():
        if (catalogue := sold[pool.cluster]) is not None:
            for conflict in _unknown_offerings(("pools", name), pool, catalogue):
                are_known = False
                yield conflict
    if are_known:
        of_known = {cluster: catalogue for cluster, catalogue in sold.items() if catalogue is not None}
        yield from _gpus_beyond(policies, of_known)
        yield from _never_affordable(policies, of_known)


def _unknown_rules(policies: Policies, rules: Collection[str]) -> Iterator[Conflict]:
    for number, rule in enumerate(policies.rules):
        if rule not in rules:
            installed = f"installed are {', '.join(sorted(rules))}" if rules else "none is installed"
            message = f"no rule {rule!r} is installed in the group remora.rules; {installed}"
            yield Conflict((("rules", str(number)),), message)


def _too_many(path: Path, pool: PoolPolicy, most_nodes: Mapping[str, int]) -> Iterator[Conflict]:
    limits = [most_nodes[size] for size in pool.sizes if size in most_nodes]
    if len(limits) < len(pool.sizes) or pool.max_nodes <= sum(limits):
        return
    default = "" if "max_nodes" in pool.model_fields_set else DEFAULT
    said = f"max_nodes is {pool.max_nodes}{default}"
    message = f"{said}, and of {' and '.join(pool.sizes)} there are {sum(limits)} nodes at most"
    yield Conflict(((*path, "max_nodes"), (*path, "sizes")), message)


def _unknown_offerings(path: Path, pool: PoolPolicy, catalogue: Collection[Offering]) -> Iterator[Conflict]:
    sizes = {offering.size for offering in catalogue}
    places = {size.partition(AT_PLACE)[2] for size in sizes}
    if pool.place is not None and pool.place not in places:
        there = ", ".join(sorted(places - {""})) or "none but the first, which has no name"
        yield Conflict(
            ((*path, "place"),), f"there is no place {pool.place!r} in the file of Azure; known are {there}"
        )
        return
    unknown = [number for number, size in enumerate(pool.sizes) if size not in sizes]
    for number in unknown:
        if (why := why_refused(pool.sizes[number])) is not None:
            yield Conflict(((*path, "sizes", str(number)),), why)
            continue
        near = difflib.get_close_matches(pool.sizes[number], sorted(sizes), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(sizes)[:8])}"
        yield Conflict(((*path, "sizes", str(number)),), f"no size {pool.sizes[number]!r} is known; {hint}")
    if unknown:
        return
    offered = [offering for offering in catalogue if offering.size in pool.sizes]
    zones = {offering.zone for offering in offered if offering.zone is not None}
    for number, zone in enumerate(pool.zones):
        if zone != ANY_ZONE and zone not in zones:
            there = f"they are offered in {', '.join(sorted(zones))}" if zones else "write any"
            message = f"none of the pool's sizes is offered in zone {zone}; {there}"
            yield Conflict(((*path, "zones", str(number)), (*path, "sizes")), message)
    capacities = {offering.capacity for offering in offered}
    for capacity in _needed(pool.capacity):
        if capacity not in capacities:
            message = f"capacity is {pool.capacity}, and none of the pool's sizes is offered as {capacity}"
            yield Conflict(((*path, "capacity"), (*path, "sizes")), message)


def _needed(rule: CapacityRule) -> tuple[CapacityType, ...]:
    """What must be on offer for a rule to buy anything; under `prefer-spot` either suffices."""
    return {
        CapacityRule.SPOT: (CapacityType.SPOT,),
        CapacityRule.ON_DEMAND: (CapacityType.ON_DEMAND,),
        CapacityRule.PREFER_SPOT: (),
        CapacityRule.MIXED: (CapacityType.ON_DEMAND, CapacityType.SPOT),
    }[rule]


def most_of(pool: PoolPolicy) -> int:
    """The highest number of nodes that any hour allows."""
    return max([pool.max_nodes, *(one.max_nodes for one in pool.schedules if one.max_nodes is not None)])


def _gpus_beyond(policies: Policies, sold: Sold) -> Iterator[Conflict]:
    most = {
        cluster: _most_gpus(policies.of_cluster(cluster).pools.values(), sold[cluster]) for cluster in sold
    }
    for name, project in policies.projects.items():
        there = most.get(project.cluster)
        if project.gpus is not None and there is not None and project.gpus > there:
            where = (
                "all pools" if len(policies.clusters) == 1 else f"all pools of the cluster {project.cluster}"
            )
            message = f"gpus is {project.gpus}, and {where} together have {there} GPUs at most"
            yield Conflict((("projects", name, "gpus"), ("pools",)), message)


def _most_gpus(pools: Iterable[PoolPolicy], catalogue: Collection[Offering]) -> int:
    gpus = {offering.size: int(offering.resources.get("GPU", 0)) for offering in catalogue}
    return sum(most_of(pool) * max(gpus.get(size, 0) for size in pool.sizes) for pool in pools)


def _never_affordable(policies: Policies, sold: Sold) -> Iterator[Conflict]:
    budget = policies.budget
    if budget.usd_per_day is None and budget.usd_per_month is None:
        return
    year = first_year(policies.pools.values())
    found = [
        floor
        for name, catalogue in sold.items()
        for floor in floors(policies.of_cluster(name).pools, catalogue, year)
    ]
    for key, limit, dearest in (
        ("usd_per_day", budget.usd_per_day, dearest_day),
        ("usd_per_month", budget.usd_per_month, dearest_month),
    ):
        most = dearest(found, year)
        if limit is not None and most is not None and most.usd > limit:
            message = (
                f"{key} is {limit:g}, and the nodes of min_nodes alone cost {most.usd:.2f} USD {most.when} at the least"
                f", most of it in the pool {most.path[1]}"
            )
            yield Conflict((("budget", key), most.path), message)


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


def floors(pools: Mapping[str, PoolPolicy], catalogue: Collection[Offering], year: int) -> list[Floor]:
    """Every minimum that costs something, and when it holds in the four years from `year`.

    Of schedules that are open together the last one counts.
    """
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
            mine = calendar(one.window, year, lasts_s) & left if lasts_s else 0
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


def dearest_day(found: Collection[Floor], year: int) -> Dearest | None:
    """The day on which they cost most together; None: nothing is kept."""
    return _dearest(found, days(year), "a day", lambda day: f"on {day:%A} {day.day} {day:%B %Y}")


def dearest_month(found: Collection[Floor], year: int) -> Dearest | None:
    """The month whose first 28 days cost most, as every month has those."""
    return _dearest(
        found,
        [day.replace(day=1) if day.day <= SHORTEST_MONTH_DAYS else None for day in days(year)],
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

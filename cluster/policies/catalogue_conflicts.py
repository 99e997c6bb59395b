"""Validates policies against the catalogue and the installed site rules: sizes, zones, prices, names (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from cluster.policies.conflicts import DEFAULT
from cluster.policies.floors import ANY_ZONE, dearest_day, dearest_month, floors
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.policies.problems import Conflict, Path


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What a document is validated against; None: not known, so it is not checked."""

    catalogue: tuple[Offering, ...] | None = None
    #: Most nodes of a size that there can be, where that is known.
    most_nodes: Mapping[str, int] = field(default_factory=dict)
    #: Names of the site rules that are installed.
    rules: frozenset[str] | None = None


def catalogue_conflicts(policies: Policies, known: ClusterFacts) -> Iterator[Conflict]:
    """Every value that names something that is not there, or more of it than there is."""
    if known.rules is not None:
        yield from _unknown_rules(policies, known.rules)
    for name, pool in policies.pools.items():
        yield from _too_many(("pools", name), pool, known.most_nodes)
    if known.catalogue is None:
        return
    are_known = True
    for name, pool in policies.pools.items():
        for conflict in _unknown_offerings(("pools", name), pool, known.catalogue):
            are_known = False
            yield conflict
    if are_known:
        yield from _gpus_beyond(policies, known.catalogue)
        yield from _never_affordable(policies, known.catalogue)


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
    unknown = [number for number, size in enumerate(pool.sizes) if size not in sizes]
    for number in unknown:
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


def _gpus_beyond(policies: Policies, catalogue: Collection[Offering]) -> Iterator[Conflict]:
    gpus = {offering.size: int(offering.resources.get("GPU", 0)) for offering in catalogue}
    most = sum(
        most_of(pool) * max(gpus.get(size, 0) for size in pool.sizes) for pool in policies.pools.values()
    )
    for name, project in policies.projects.items():
        if project.gpus is not None and project.gpus > most:
            message = f"gpus is {project.gpus}, and all pools together have {most} GPUs at most"
            yield Conflict((("projects", name, "gpus"), ("pools",)), message)


def _never_affordable(policies: Policies, catalogue: Collection[Offering]) -> Iterator[Conflict]:
    budget = policies.budget
    if budget.usd_per_day is None and budget.usd_per_month is None:
        return
    found = floors(policies.pools, catalogue)
    for key, limit, dearest in (
        ("usd_per_day", budget.usd_per_day, dearest_day),
        ("usd_per_month", budget.usd_per_month, dearest_month),
    ):
        most = dearest(found)
        if limit is not None and most is not None and most.usd > limit:
            message = (
                f"{key} is {limit:g}, and the nodes of min_nodes alone cost {most.usd:.2f} USD {most.when} at the least"
                f", most of it in the pool {most.path[1]}"
            )
            yield Conflict((("budget", key), most.path), message)

"""Counts what a plan buys, within limits, quotas, the budget and the capacity rules (pure)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import BudgetStep, CapacityRule, PoolPolicy
from cluster.scheduling.actions import Launch
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.fitting import slots
from cluster.scheduling.formatting import clock, count
from cluster.scheduling.pool_sizes import most_in_all
from cluster.scheduling.view import JobDemand, NodeView


class Ask(NamedTuple):
    """A request for nodes of one pool: for workers of a job, or for the pool itself."""

    pool: str
    worker: Mapping[str, float]
    workers: int
    #: The job that it is for; None: the pool's own minimum.
    job: JobDemand | None = None
    #: On-demand nodes that the job is on already, for its own core under `mixed`.
    on_demand: int = 0
    #: All nodes have to be of this offering, for an existing fabric domain; None: any.
    offering: str | None = None
    #: Without a job: it waits for spot however long that takes, as no job needs it yet.
    is_patient: bool = False
    #: Nodes at most.
    nodes: int = 100_000


@dataclass(frozen=True)
class Lot:
    """Nodes of one offering that were bought for a request."""

    offering: Offering
    nodes: int
    #: Why this capacity type, when it is not the first choice, and why this size, when it is not the first one.
    note: str
    #: It is of an on-demand core.
    is_core: bool = False
    #: Counted, but launched only once the rest of the group can be had.
    is_held: bool = False


def launch_of(pool: str, lot: Lot, reason: str, fabric: str | None, job_id: str | None = None) -> Launch:
    """The launch of one node of the lot."""
    return Launch(
        pool=pool,
        offering=lot.offering.id,
        resources=lot.offering.resources,
        labels=lot.offering.labels,
        reason=f"{reason}, {lot.note}" if lot.note else reason,
        fabric=fabric,
        job_id=job_id,
    )


@dataclass
class Quote:
    """What was bought for a request, and why it is not all."""

    lots: list[Lot] = field(default_factory=list)
    workers_short: int = 0
    #: Why it is not all; each once.
    reasons: dict[str, None] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Why it is not all: the first reasons, for people."""
        reasons = list(self.reasons)
        more = f", and {len(reasons) - 4} reasons more" if len(reasons) > 4 else ""
        return "; ".join(reasons[:4]) + more if reasons else "nothing that is sold has capacity"

    def refuse(self, reason: str) -> None:
        """Remember why something could not be had."""
        self.reasons.setdefault(reason)


@dataclass(frozen=True)
class _Stage:
    """One capacity type to try, with the most nodes of it."""

    capacity: CapacityType
    most: int | None = None
    note: str = ""


_SPOT = _Stage(CapacityType.SPOT)
_ON_DEMAND = _Stage(CapacityType.ON_DEMAND)
_FOR_POOL = _Stage(CapacityType.ON_DEMAND, note="as no spot node is to be had")
_URGENT = _Stage(CapacityType.ON_DEMAND, note="as its deadline is near")


class Purchases:
    """Counts what a plan buys, so that the whole of it stays within every limit."""

    def __init__(self, context: PlanningContext, usable: Mapping[str, list[NodeView]]) -> None:
        self._context = context
        self._usable = usable
        #: Usable nodes by pool, with what is bought; and the on-demand ones that are bought.
        self.nodes: defaultdict[str, int] = defaultdict(int)
        self._on_demand: defaultdict[str, int] = defaultdict(int)
        for pool, nodes in usable.items():
            self.nodes[pool] = len(nodes)
        self._quota = dict(context.view.quota_left)
        self._rate_left = context.money.rate_left
        #: What was bought: pool, offering, nodes, and the rate that was left before.
        self._bought: list[tuple[str, Offering, int, float]] = []
        self._open: dict[tuple[str, CapacityType], list[Offering]] = {}
        self._closed: dict[tuple[str, CapacityType], dict[str, None]] = {}

    def mark(self) -> int:
        """The current state of the counts, for `back`."""
        return len(self._bought)

    def back(self, mark: int) -> None:
        """Undo what was bought since."""
        while len(self._bought) > mark:
            pool, offering, nodes, self._rate_left = self._bought.pop()
            self._count(offering, pool, -nodes)

    def _to_be_had(self, pool: str, capacity: CapacityType) -> list[Offering]:
        """The offerings that are neither refused nor closed now."""
        key = (pool, capacity)
        if key not in self._open:
            refused, closed = self._context.refused, self._context.closed(pool)
            sold = self._context.sold(pool, capacity)
            self._open[key] = [o for o in sold if o.id not in refused and o.id not in closed]
        return self._open[key]

    def _why_no_others(self, pool: str, capacity: CapacityType) -> Mapping[str, None]:
        """Why the others are not available; computed only where the available ones are not enough."""
        key = (pool, capacity)
        if key not in self._closed:
            sold, refused = self._context.sold(pool, capacity), self._context.refused
            reasons = [
                f"{_words(o)} is refused until {clock(refused[o.id])}{_again(pool)}"
                for o in sold
                if o.id in refused
            ]
            closed = self._context.closed(pool)
            reasons += [why_closed(o, pool, closed[o.id]) for o in sold if o.id in closed]
            if not sold:
                reasons.append(f"pool {pool!r} is sold no {capacity} nodes of its sizes and zones")
            self._closed[key] = dict.fromkeys(reasons)
        return self._closed[key]

    def buy(self, ask: Ask) -> Quote:
        """Buy what is available, first choice first, and count it."""
        quote = Quote(workers_short=ask.workers)
        most = self._context.limits[ask.pool].max_nodes
        if self.nodes[ask.pool] >= most:
            quote.refuse(f"pool {ask.pool!r} may have {count(most, 'node')}")
            return quote
        nodes_left = ask.nodes
        for stage in self._stages(ask, quote):
            stage_left = nodes_left if stage.most is None else min(stage.most, nodes_left)
            sold = self._to_be_had(ask.pool, stage.capacity)
            for offering in sold if ask.offering is None else [o for o in sold if o.id == ask.offering]:
                if quote.workers_short <= 0 or stage_left <= 0:
                    break
                bought = self._buy_of(offering, ask, stage, stage_left, quote)
                stage_left -= bought
                nodes_left -= bought
            if quote.workers_short <= 0:
                break
            quote.reasons.update(self._why_no_others(ask.pool, stage.capacity))
            if stage.most is not None and stage_left > 0:
                quote.refuse("its on-demand core comes before any spot node")
                break
        if ask.job is not None and not ask.job.is_running:
            _hold_core(quote)
        return quote

    def _buy_of(self, offering: Offering, ask: Ask, stage: _Stage, most: int, quote: Quote) -> int:
        job = ask.job
        if job is not None and job.placement.needs_fabric and not offering.has_fabric:
            quote.refuse(f"{_words(offering)} has no InfiniBand")
            return 0
        if job is not None and job.placement.zones and offering.zone not in job.placement.zones:
            quote.refuse(f"{_words(offering)} is not in a zone that it accepts")
            return 0
        per_node = slots(offering.resources, ask.worker) if ask.worker else 1
        if per_node == 0:
            quote.refuse(f"a {offering.size} has no capacity for one of its workers")
            return 0
        wanted = min(math.ceil(quote.workers_short / per_node), most)
        got = wanted
        for allowed, why in self._allowed(offering, ask.pool):
            if allowed < wanted:
                quote.refuse(why)
            got = min(got, allowed)
        if got > 0:
            self._bought.append((ask.pool, offering, got, self._rate_left))
            self._count(offering, ask.pool, got)
            if offering.price_per_hour > 0:
                self._rate_left -= got * offering.price_per_hour
            notes = (stage.note, self._context.why_before_others(ask.pool, offering))
            quote.lots.append(
                Lot(offering, got, ", ".join(filter(None, notes)), is_core=stage.most is not None)
            )
            quote.workers_short = max(0, quote.workers_short - got * per_node)
        return got

    def _allowed(self, offering: Offering, pool: str) -> Iterator[tuple[int, str]]:
        """How many nodes of the offering each limit still allows, with the reason that it gives for no more."""
        limits, money = self._context.limits[pool], self._context.money
        have = self.nodes[pool]
        yield max(0, limits.max_nodes - have), f"pool {pool!r} may have {count(limits.max_nodes, 'node')}"
        if offering.quota and offering.quota_units > 0 and offering.quota.lower() in self._quota:
            left = self._quota[offering.quota.lower()]
            yield max(0, left) // offering.quota_units, f"{left} units are left of the quota {offering.quota}"
        if offering.price_per_hour <= 0:
            return
        if self._rate_left < math.inf:
            paid_for = math.floor(self._rate_left / offering.price_per_hour + 1e-9)
            yield paid_for, "the budget pays for no more nodes"
        if money.reached(BudgetStep.PAUSE):
            yield 0, f"the budget has reached {money.step} ({money.ends}): {money.words}"
        elif money.reached(BudgetStep.STOP_GROWING):
            yield (
                max(0, limits.min_nodes - have),
                f"the budget has reached {money.step} ({money.ends}): {money.words}",
            )

    def _count(self, offering: Offering, pool: str, nodes: int) -> None:
        self.nodes[pool] += nodes
        if offering.quota.lower() in self._quota:
            self._quota[offering.quota.lower()] -= nodes * offering.quota_units
        if offering.capacity is CapacityType.ON_DEMAND:
            self._on_demand[pool] += nodes

    def _stages(self, ask: Ask, quote: Quote) -> list[_Stage]:
        """Capacity types in the order in which they are tried, after the pool's and the job's rule."""
        policy = self._context.policies.pools[ask.pool]
        rule, clash = _rule(policy, ask.job)
        if clash:
            quote.refuse(f"pool {ask.pool!r} buys {policy.capacity} only")
            return []
        if rule is CapacityRule.MIXED and ask.job is not None and ask.job.placement.needs_fabric:
            # Spot and on-demand do not meet in one fabric domain, so that all of it is core.
            rule = CapacityRule.ON_DEMAND
        stages = self._unlimited(ask, policy, rule, quote)
        if self._context.money.reached(BudgetStep.SPOT_ONLY):
            # The budget does not concern what costs nothing.
            stages = [s for s in stages if s.capacity is CapacityType.SPOT or self._is_free(ask.pool)]
            if not stages:
                quote.refuse(f"the budget has reached {self._context.money.step}: only spot is bought")
        return stages

    def _unlimited(self, ask: Ask, policy: PoolPolicy, rule: CapacityRule, quote: Quote) -> list[_Stage]:
        match rule:
            case CapacityRule.SPOT:
                return [_SPOT]
            case CapacityRule.ON_DEMAND:
                is_chosen = policy.capacity is CapacityRule.ON_DEMAND
                is_hurried = not is_chosen and ask.job is not None and self._context.is_urgent(ask.job)
                return [_URGENT if is_hurried else _ON_DEMAND]
            case CapacityRule.MIXED:
                if ask.job is not None and self._context.is_urgent(ask.job):
                    return [_URGENT, _SPOT]
                is_own_core = ask.job is not None and ask.job.placement.capacity is CapacityRule.MIXED
                have = ask.on_demand if is_own_core else self._on_demand_in(ask.pool)
                core = max(0, policy.on_demand_core - have)
                if not core:
                    return [_SPOT]
                return [_Stage(CapacityType.ON_DEMAND, core, "as the on-demand core"), _SPOT]
            case CapacityRule.PREFER_SPOT:
                return self._after_patience(ask, policy, quote)

    def _on_demand_in(self, pool: str) -> int:
        there = self._context.paid_as(self._usable.get(pool, ()), CapacityType.ON_DEMAND)
        return len(there) + self._on_demand[pool]

    def _after_patience(self, ask: Ask, policy: PoolPolicy, quote: Quote) -> list[_Stage]:
        if ask.job is None:
            return [_SPOT] if ask.is_patient else [_SPOT, _FOR_POOL]
        if self._context.is_urgent(ask.job):
            return [_URGENT, _SPOT]
        waited_s = self._context.waited_s(ask.job)
        if waited_s >= policy.patience_s:
            return [_SPOT, _Stage(CapacityType.ON_DEMAND, note=f"after {waited_s:.0f} s without enough spot")]
        quote.refuse(f"on-demand is bought only after {policy.patience_s:g} s without enough spot")
        return [_SPOT]

    def _is_free(self, pool: str) -> bool:
        return all(o.price_per_hour <= 0 for o in self._context.sold(pool, CapacityType.ON_DEMAND))

    def could_ever(self, job: JobDemand) -> bool:
        """The job's smallest group would fit if every pool were empty and every offering available."""
        pools = self._context.complete_pools.values()
        return most_in_all(pools, job.worker_resources, job.placement) >= job.min_workers


def _hold_core(quote: Quote) -> None:
    """Hold the core back while spot is bought too: alone it would stay idle, again at each try for spot."""
    if any(lot.offering.capacity is CapacityType.SPOT for lot in quote.lots):
        quote.lots = [replace(lot, is_held=lot.is_core) for lot in quote.lots]


def why_closed(offering: Offering, pool: str, until: float) -> str:
    """Why a pool buys none of an offering."""
    failed = f"its last nodes in pool {pool!r} did not join or were sick"
    return f"{_words(offering)} is not tried before {clock(until)}{_again(pool)}, as {failed}"


def _again(pool: str) -> str:
    """What an operator can do to try it before then."""
    return f" (`remora pools reopen {pool}` asks at once)"


def _words(offering: Offering) -> str:
    where = f"in zone {offering.zone}" if offering.zone else "in any zone"
    return f"{offering.capacity} {offering.size} {where}"


def _rule(policy: PoolPolicy, job: JobDemand | None) -> tuple[CapacityRule, bool]:
    """The rule that holds for the job in the pool, and whether the two exclude each other."""
    job_rule = None if job is None else job.placement.capacity
    pools = policy.capacity
    if job_rule is None or job_rule is pools or job_rule is CapacityRule.PREFER_SPOT:
        return pools, False
    if job_rule is CapacityRule.MIXED:
        # Both capacity types are needed for a core and a fringe.
        both = pools in (CapacityRule.MIXED, CapacityRule.PREFER_SPOT)
        return (CapacityRule.MIXED if both else pools), False
    return job_rule, {job_rule, pools} == {CapacityRule.SPOT, CapacityRule.ON_DEMAND}

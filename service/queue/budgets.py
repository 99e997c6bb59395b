"""How far each budget of the policies is spent, and when it is used up at the present pace (pure)."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.policies.policies import BudgetPolicy, BudgetStep, Policies, ProjectPolicy
from cluster.scheduling.money import STEPS, begin_of, end_of
from cluster.scheduling.view import Spending

#: Seconds over which the pace of a budget is measured, by its period.
PACE_S: Mapping[str, float] = {"day": 6 * 3600.0, "month": 7 * 86_400.0}
#: Seconds between two points of its course.
POINT_S: Mapping[str, float] = {"day": 3600.0, "month": 86_400.0}
#: Where the steps of a project's budget begin: nothing is bought for it once that is spent.
PARTS_OF_PROJECTS: Mapping[BudgetStep, float] = {BudgetStep.STOP_GROWING: 1.0}


@dataclass(frozen=True, kw_only=True)
class PaidNode:
    """A node that costs money from when its machine was there until it has ended; seconds since 1970."""

    launched_at: float
    #: None: it has not ended.
    ended_at: float | None
    #: USD.
    price_per_hour: float
    #: None: no project pays for it.
    project: str | None

    def cost(self, begins_at: float, ends_at: float) -> float:
        """USD between the two times."""
        until = ends_at if self.ended_at is None else min(self.ended_at, ends_at)
        return self.price_per_hour * max(0.0, until - max(self.launched_at, begins_at)) / 3600.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One budget in its running period; times are seconds since 1970, money is in USD."""

    #: None: that of the whole cluster.
    project: str | None
    #: `day` or `month` (UTC).
    period: str
    begins_at: float
    ends_at: float
    limit: float
    spent: float
    #: The furthest step that `spent` reaches; None: none yet.
    step: BudgetStep | None
    #: The furthest step that is in force, be it because of another budget or of what was reached before today.
    in_force: BudgetStep | None
    #: What comes next, and at which amount; None: nothing does.
    next_step: BudgetStep | None
    next_at: float | None
    #: What was spent in an hour, in the mean of the last `PACE_S`.
    usd_per_hour: float
    #: None: the budget lasts until the period ends.
    runs_out_at: float | None
    #: Times, and what had been spent until then.
    course: Sequence[tuple[float, float]]


def spent_of(nodes: Iterable[PaidNode], now: float) -> tuple[Spending, dict[str, Spending]]:
    """USD of the running day and month (UTC), of all nodes and of each project; all its nodes since then are given."""
    begins = begin_of("day", now), begin_of("month", now)
    totals: dict[str | None, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for node in nodes:
        for at, begins_at in enumerate(begins):
            cost = node.cost(begins_at, now)
            totals[None][at] += cost
            if node.project is not None:
                totals[node.project][at] += cost
    whole = Spending(today=totals[None][0], this_month=totals[None][1])
    return whole, {
        name: Spending(today=one[0], this_month=one[1]) for name, one in totals.items() if name is not None
    }


def paid_since(now: float) -> float:
    """Since when nodes are asked for of which `budgets_of` is made, seconds since 1970."""
    return min(begin_of("month", now), *(now - seconds for seconds in PACE_S.values()))


def budgets_of(
    policies: Policies,
    nodes: Sequence[PaidNode],
    reached: BudgetStep | None,
    visible: Collection[str] | None,
    now: float,
    after: str = "",
) -> Iterator[Budget]:
    """The budgets behind the position `after`, in the order of their `position_of`; each is made when it is asked for.

    `nodes` are those since `paid_since`, `reached` is the step of the cluster's budget that was stored today.  Of
    projects alone where `visible` names those that are shown.
    """
    owners: dict[str, BudgetPolicy | ProjectPolicy] = {} if visible is not None else {"": policies.budget}
    owners |= {name: one for name, one in policies.projects.items() if visible is None or name in visible}
    wanted = {
        position_of(name, period): (name, period) for name, one in owners.items() for period in limits_of(one)
    }
    whole, of_projects = spent_of(nodes, now)
    paid: defaultdict[str, list[PaidNode]] = defaultdict(list)
    for node in nodes:
        if node.project is not None:
            paid[node.project].append(node)
    for position in sorted(one for one in wanted if one > after):
        name, period = wanted[position]
        policy = owners[name]
        if isinstance(policy, BudgetPolicy):
            parts = {step: policy.part_of(step) for step in STEPS}
            yield _budget(None, period, _Owner(limits_of(policy), parts, whole, nodes, reached), now)
        else:
            spent = of_projects.get(name, Spending())
            owner = _Owner(limits_of(policy), PARTS_OF_PROJECTS, spent, paid[name], None)
            yield _budget(name, period, owner, now)


def position_of(project: str | None, period: str) -> str:
    """Its place in the order: those of the cluster are first."""
    return f"{project or ''}/{period}"


def limits_of(policy: BudgetPolicy | ProjectPolicy) -> dict[str, float]:
    """The limits in USD, by period; a period without one is missing."""
    both = {"day": policy.usd_per_day, "month": policy.usd_per_month}
    return {period: limit for period, limit in both.items() if limit is not None}


@dataclass(frozen=True)
class _Owner:
    """The budgets of the cluster or of a project, and what it has spent."""

    #: USD, by period.
    limits: Mapping[str, float]
    #: The part of a budget at which each step begins.
    parts: Mapping[BudgetStep, float]
    spent: Spending
    nodes: Sequence[PaidNode]
    #: The step that was stored today.
    reached: BudgetStep | None

    def of(self, period: str) -> float:
        """USD that are spent of the budget of this period."""
        return self.spent.today if period == "day" else self.spent.this_month

    def amounts(self, period: str) -> dict[BudgetStep, float]:
        """At which amount in USD each step begins."""
        return {step: part * self.limits[period] for step, part in self.parts.items()}

    def in_force(self) -> BudgetStep | None:
        """The furthest step that one of the budgets reaches, or has reached today."""
        found = [self.reached, *(_furthest(self.amounts(one), self.of(one)) for one in self.limits)]
        return max((one for one in found if one is not None), key=STEPS.index, default=None)


def _budget(project: str | None, period: str, owner: _Owner, now: float) -> Budget:
    spent, limit, amounts = owner.of(period), owner.limits[period], owner.amounts(period)
    begins_at, ends_at = begin_of(period, now), end_of(period, now)
    step = _furthest(amounts, spent)
    next_step = _next(amounts, step)
    rate = sum(node.cost(now - PACE_S[period], now) for node in owner.nodes) * 3600.0 / PACE_S[period]
    return Budget(
        project=project,
        period=period,
        begins_at=begins_at,
        ends_at=ends_at,
        limit=limit,
        spent=spent,
        step=step,
        in_force=owner.in_force(),
        next_step=next_step,
        next_at=None if next_step is None else amounts[next_step],
        usd_per_hour=rate,
        runs_out_at=_runs_out_at(spent, limit, rate, now, ends_at),
        course=_course(owner.nodes, begins_at, POINT_S[period], now),
    )


def _furthest(steps: Mapping[BudgetStep, float], spent: float) -> BudgetStep | None:
    return max((step for step, amount in steps.items() if spent >= amount), key=STEPS.index, default=None)


def _next(steps: Mapping[BudgetStep, float], reached: BudgetStep | None) -> BudgetStep | None:
    """Of the harder steps the one that begins first; of several that begin together the hardest."""
    behind = 0 if reached is None else STEPS.index(reached) + 1
    harder = [step for step in steps if STEPS.index(step) >= behind]
    return min(harder, key=lambda step: (steps[step], -STEPS.index(step)), default=None)


def _runs_out_at(spent: float, limit: float, usd_per_hour: float, now: float, ends_at: float) -> float | None:
    if spent >= limit:
        return now
    if usd_per_hour * (ends_at - now) / 3600.0 < limit - spent:
        return None
    return min(ends_at, now + (limit - spent) / usd_per_hour * 3600.0)


def _course(
    nodes: Iterable[PaidNode], begins_at: float, width_s: float, now: float
) -> list[tuple[float, float]]:
    """What had been spent at the beginning, after each full `width_s`, and now."""
    sums = [0.0] * math.ceil((now - begins_at) / width_s)
    for node in nodes:
        until = now if node.ended_at is None else min(node.ended_at, now)
        first = max(0, math.floor((node.launched_at - begins_at) / width_s))
        last = min(len(sums) - 1, math.floor((until - begins_at) / width_s))
        for index in range(first, last + 1):
            begin = begins_at + index * width_s
            sums[index] += node.cost(begin, min(begin + width_s, now))
    ends = [min(begins_at + (index + 1) * width_s, now) for index in range(len(sums))]
    return [(begins_at, 0.0), *zip(ends, itertools.accumulate(sums), strict=True)]

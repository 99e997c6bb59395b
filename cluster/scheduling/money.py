"""How much of the cluster's budget is spent, which step that reaches, and what may still be bought, in USD (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cluster.policies.offerings import Offering
from cluster.policies.policies import BudgetStep, Policies
from cluster.scheduling.formatting import clock
from cluster.scheduling.view import ClusterView

#: Steps of the budget, mildest first.
STEPS = (BudgetStep.STOP_GROWING, BudgetStep.SPOT_ONLY, BudgetStep.SHRINK, BudgetStep.PAUSE)
#: The effect of each step, for people.
MEANING = {
    BudgetStep.STOP_GROWING: "no more nodes are bought",
    BudgetStep.SPOT_ONLY: "on-demand nodes are given back, and only spot is used",
    BudgetStep.SHRINK: "jobs go on with their smallest number of workers",
    BudgetStep.PAUSE: "jobs stop at a checkpoint until there is money again",
}
#: Seconds that may pass between two plans, and before a machine that was ended costs nothing any more.
LOOK_S = 30.0
#: A node that could be paid for less time than this is not bought: it would end before it was of use.
STAY_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Money:
    """The budget at one moment."""

    #: The furthest step reached.
    step: BudgetStep | None
    #: What the step is about, for people: `81.20 of 100.00 USD of the day are spent`.
    words: str
    #: USD an hour that nodes may cost beyond those that are there.
    rate_left: float
    #: `day` or `month` (UTC): the step ends by itself when the next one begins.
    period: str = "day"
    #: When that is, seconds since 1970.
    until: float = 0.0

    @property
    def ends(self) -> str:
        """What ends the step, for people."""
        return ends_of(self.period, self.until, "the budget")

    def reached(self, step: BudgetStep) -> bool:
        """This step, or a harder one, is in force."""
        return self.step is not None and STEPS.index(self.step) >= STEPS.index(step)


@dataclass(frozen=True)
class _PeriodBudget:
    """The budget of a day or of a month."""

    period: str
    spent: float
    limit: float

    @property
    def words(self) -> str:
        return f"{self.spent:.2f} of {self.limit:.2f} USD of the {self.period} are spent"


def _period_budgets(view: ClusterView, policies: Policies) -> list[_PeriodBudget]:
    budget = policies.budget
    both = (
        ("day", view.spent.today, budget.usd_per_day),
        ("month", view.spent.this_month, budget.usd_per_month),
    )
    return [_PeriodBudget(period, spent, limit) for period, spent, limit in both if limit is not None]


def leaving_time_s(policies: Policies) -> float:
    """Seconds for which nodes go on costing money once the budget is spent: to notice that, drain and end them."""
    return 2.0 * LOOK_S + max((pool.drain_s for pool in policies.pools.values()), default=0.0)


def money_of(view: ClusterView, policies: Policies, offerings: Mapping[str, Offering]) -> Money:
    """The state of the cluster's budget.

    What the nodes will cost until they can be ended, those of other clusters too, counts as spent before the last step,
    so that the budget is not exceeded.
    """
    budgets = _period_budgets(view, policies)
    if not budgets:
        return Money(step=None, words="", rate_left=float("inf"))
    rate = sum(
        offerings[node.offering].price_per_hour
        for node in view.nodes
        if node.is_paid and node.offering in offerings
    )
    leaving_s, elsewhere = leaving_time_s(policies), view.rate_elsewhere
    costs_ahead = (rate * leaving_s + elsewhere * view.leaving_elsewhere_s) / 3600.0
    step, period = view.budget_step, "day"
    words = (
        " and ".join(budget.words for budget in budgets)
        + ", and the step that was reached holds until the day ends"
    )
    for candidate in STEPS:
        part = policies.budget.part_of(candidate)
        ahead = costs_ahead if candidate is BudgetStep.PAUSE else 0.0
        for budget in budgets:
            is_further = step is None or STEPS.index(candidate) >= STEPS.index(step)
            if is_further and budget.spent + ahead >= part * budget.limit:
                step, words, period = candidate, budget.words, budget.period
    end = policies.budget.part_of(BudgetStep.PAUSE)
    left = min(end * p.limit - p.spent for p in budgets) * 3600.0
    rate_left = (left - elsewhere * (view.leaving_elsewhere_s + STAY_S)) / (leaving_s + STAY_S) - rate
    return Money(
        step=step,
        words=words if step else "",
        rate_left=max(0.0, rate_left),
        period=period,
        until=end_of(period, view.now),
    )


def ends_of(period: str, until: float, limit: str) -> str:
    """Until when the money of a day or month is spent, for people; `limit` names the value that operators can raise."""
    return (
        f"until {clock(until)}, when the next {period} begins, or until an operator raises {limit} by"
        " `remora policy apply`"
    )


def begin_of(period: str, now: float) -> float:
    """When the running `day` or `month` (UTC) began, seconds since 1970."""
    today = _today(now)
    return (today.replace(day=1) if period == "month" else today).timestamp()


def end_of(period: str, now: float) -> float:
    """When the next `day` or `month` (UTC) begins, seconds since 1970."""
    today = _today(now)
    first = today + timedelta(days=1)
    if period == "month":
        first = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return first.timestamp()


def _today(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def step_reached(view: ClusterView, policies: Policies) -> BudgetStep | None:
    """The furthest step of the budget in this view; it holds from then on, also where it is not reported."""
    if not _period_budgets(view, policies):
        return None
    return money_of(view, policies, {offering.id: offering for offering in view.offerings}).step

"""What the API answers about budgets, as typed values."""

from __future__ import annotations

from typing import Literal

from remora.views import View


class BudgetPoint(View):
    """What had been spent of a budget until one time."""

    #: Seconds since 1970.
    at: float
    #: USD since the period began.
    spent: float


class Budget(View):
    """One budget of the policies in force, in its running day or month (UTC).  Times are seconds since 1970."""

    #: None: that of the whole cluster.
    project: str | None
    period: Literal["day", "month"]
    begins_at: float
    ends_at: float
    #: USD that may be spent in the period, and that are spent, as the planner counts them.
    limit: float
    spent: float
    #: The part that is spent; None: the limit is 0.
    fraction: float | None
    #: The furthest step that `spent` reaches: `stop-growing`, `spot-only`, `shrink` or `pause`; None: none yet.
    step: str | None
    #: The furthest step that is in force: another budget of the same owner may have reached it, or this one earlier
    #: in the day.
    step_in_force: str | None
    #: The step that comes next, and the USD at which it begins; None: no other one comes.
    next_step: str | None
    next_step_at: float | None
    #: USD that were spent in an hour, in the mean of the last `pace_s` seconds.
    usd_per_hour: float
    pace_s: float
    #: When it is used up at that pace, or now where it is; None: it lasts until the period ends.
    runs_out_at: float | None
    #: At the beginning, after each full hour of a day or day of a month, and now.
    course: list[BudgetPoint]

"""What nodes have cost, what the cloud refused, and how far the budget was reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

import sqlalchemy as sa

from cluster.policies import BudgetStep
from cluster.view import Refusal, Spending
from service.store.rows import upsert
from service.store.tables import budget_days, jobs, nodes, refusals


def day_of(now: float) -> str:
    """The day in UTC, `2026-07-01`."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def spent(connection: sa.Connection, now: float) -> tuple[Spending, dict[str, Spending]]:
    """USD of the running day and month (UTC), of the whole cluster and of each project.

    A node is paid for from the wish for it to its end, at the price of that moment.  Its project is that of the job
    that it was bought for; what pools keep by themselves is no project's.
    """
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day, month = today.timestamp(), today.replace(day=1).timestamp()
    statement = (
        sa.select(nodes.c.created_at, nodes.c.ended_at, nodes.c.price_per_hour, jobs.c.project)
        .select_from(nodes.outerjoin(jobs, jobs.c.id == nodes.c.bought_for))
        .where(nodes.c.price_per_hour > 0, sa.or_(nodes.c.ended_at.is_(None), nodes.c.ended_at > month))
    )
    totals: dict[str | None, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in connection.execute(statement):
        ended_at = now if row.ended_at is None else row.ended_at
        for at, begins_at in enumerate((day, month)):
            cost = row.price_per_hour * max(0.0, ended_at - max(row.created_at, begins_at)) / 3600.0
            totals[None][at] += cost
            if row.project is not None:
                totals[row.project][at] += cost
    whole = Spending(today=totals[None][0], this_month=totals[None][1])
    projects = {
        name: Spending(today=one[0], this_month=one[1]) for name, one in totals.items() if name is not None
    }
    return whole, projects


def known_refusals(connection: sa.Connection, until: float) -> tuple[Refusal, ...]:
    """Refusals that ended after the given time, or have not ended."""
    rows = connection.execute(sa.select(refusals).where(refusals.c.until > until))
    return tuple(Refusal(offering=row.offering, until=row.until, reason=row.reason) for row in rows)


def refuse(connection: sa.Connection, found: Iterable[Refusal]) -> None:
    """Remember refusals; a newer one of the same offering replaces the older one."""
    rows = [{"offering": one.offering, "until": one.until, "reason": one.reason} for one in found]
    upsert(connection, refusals, rows, replace=True)


def budget_step(connection: sa.Connection, figures: str, now: float) -> BudgetStep | None:
    """The furthest step that was reached today of the budget with these figures."""
    mine = sa.and_(budget_days.c.day == day_of(now), budget_days.c.figures == figures)
    step: BudgetStep | None = connection.execute(sa.select(budget_days.c.step).where(mine)).scalar()
    return step


def reach(connection: sa.Connection, step: BudgetStep, figures: str, now: float) -> None:
    """A step of the budget with these figures was reached today; what was reached of another one is forgotten."""
    order = list(BudgetStep)
    before = budget_step(connection, figures, now)
    if before is None or order.index(step) > order.index(before):
        row = {"day": day_of(now), "step": step, "figures": figures}
        upsert(connection, budget_days, [row], replace=True)

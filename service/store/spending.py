"""What nodes have cost, what the cloud refused, and how far the budget was reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

import sqlalchemy as sa

from cluster.policies.policies import BudgetStep
from cluster.scheduling.money import STEPS, begin_of
from cluster.scheduling.view import Refusal, Spending
from remora.clusters import DEFAULT_CLUSTER
from service.queue.budgets import PaidNode, spent_of
from service.store.rows import upsert
from service.store.tables import budget_days, jobs, nodes, pool_reopenings, refusals

#: The project of the job that a node was bought for, or that of Ray programs.
_PAYER = sa.func.coalesce(jobs.c.project, nodes.c.project).label("project")


def day_of(now: float) -> str:
    """The day in UTC, `2026-07-01`."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def spent(connection: sa.Connection, now: float) -> tuple[Spending, dict[str, Spending]]:
    """USD of the running day and month (UTC), of the whole cluster and of each project.

    A node is paid for from when its machine was first there to its end (`service.queue.bill.paid_s`), at the price of
    the request for it.  Its project is that of the job that it was bought for, or that of Ray programs; what pools keep
    by themselves is no project's.
    """
    return spent_of(paid_nodes(connection, begin_of("month", now)), now)


def paid_nodes(connection: sa.Connection, since: float) -> list[PaidNode]:
    """All nodes that have cost money since that time."""
    statement = (
        sa.select(nodes.c.launched_at, nodes.c.ended_at, nodes.c.price_per_hour, _PAYER)
        .select_from(nodes.outerjoin(jobs, jobs.c.id == nodes.c.bought_for))
        .where(nodes.c.price_per_hour > 0, nodes.c.launched_at.is_not(None))
        .where(sa.or_(nodes.c.ended_at.is_(None), nodes.c.ended_at > since))
    )
    return [PaidNode(**row._mapping) for row in connection.execute(statement)]


def rate_elsewhere(connection: sa.Connection, cluster: str) -> float:
    """USD an hour that nodes of all other clusters cost, or will once their machines are there."""
    live = (nodes.c.ended_at.is_(None), nodes.c.cluster != cluster)
    total: float | None = connection.execute(
        sa.select(sa.func.sum(nodes.c.price_per_hour)).where(*live)
    ).scalar()
    return total or 0.0


def known_refusals(connection: sa.Connection, cluster: str, until: float) -> tuple[Refusal, ...]:
    """What the cloud of a cluster refuses: what ended after the given time, or has not ended."""
    return refusals_by_cluster(connection, until, refusals.c.cluster == cluster).get(cluster, ())


def refusals_by_cluster(
    connection: sa.Connection, until: float, *more: sa.ColumnElement[bool]
) -> dict[str, tuple[Refusal, ...]]:
    """The same for each cluster whose cloud refused something."""
    found: defaultdict[str, list[Refusal]] = defaultdict(list)
    for row in connection.execute(sa.select(refusals).where(refusals.c.until > until, *more)):
        offering = row.offering.removeprefix(_before(row.cluster))
        found[row.cluster].append(
            Refusal(offering=offering, until=row.until, reason=row.reason, at=row.at, tries=row.tries)
        )
    return {cluster: tuple(own) for cluster, own in found.items()}


def refuse(connection: sa.Connection, cluster: str, found: Iterable[Refusal]) -> None:
    """Remember what the cloud of a cluster refused; a newer refusal of an offering replaces the older one."""
    before = _before(cluster)
    rows = [{**vars(one), "offering": before + one.offering, "cluster": cluster} for one in found]
    upsert(connection, refusals, rows, replace=True)


def _before(cluster: str) -> str:
    """What stands before an offering in the key of a refusal."""
    return "" if cluster == DEFAULT_CLUSTER else f"{cluster}:"


def reopenings(connection: sa.Connection) -> dict[str, float]:
    """When operators last reopened pools, seconds since 1970, by pool."""
    return {row.pool: row.at for row in connection.execute(sa.select(pool_reopenings))}


def reopen(connection: sa.Connection, pool: str, now: float) -> None:
    """An operator takes back what has closed offerings to a pool until now."""
    upsert(connection, pool_reopenings, [{"pool": pool, "at": now}], replace=True)


def budget_step(connection: sa.Connection, figures: str, now: float) -> BudgetStep | None:
    """The furthest step that was reached today of the budget with these figures."""
    mine = sa.and_(budget_days.c.day == day_of(now), budget_days.c.figures == figures)
    step: BudgetStep | None = connection.execute(sa.select(budget_days.c.step).where(mine)).scalar()
    return step


def reach(connection: sa.Connection, step: BudgetStep, figures: str, now: float) -> None:
    """A step of the budget with these figures was reached today; what was reached of another one is forgotten."""
    row = {"day": day_of(now), "step": step, "figures": figures}
    upsert(connection, budget_days, [row], replace=False)
    # The controller of another cluster may have written a harder one since this plan was made: the row itself is asked.
    is_milder = budget_days.c.step.in_(STEPS[: STEPS.index(step)])
    is_behind = sa.or_(budget_days.c.figures != figures, is_milder)
    connection.execute(sa.update(budget_days).where(budget_days.c.day == row["day"], is_behind).values(row))

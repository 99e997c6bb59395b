"""How much is kept, counted from the rows: what the amounts of `service.store.kept_amounts` have to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from remora.roles import EVERYWHERE
from service.queue.intake import Kept
from service.store import kept_amounts
from service.store.tables import (
    alerts,
    bundle_holders,
    bundles,
    jobs,
    log_lines,
    outputs,
    schedules,
    secrets,
    token_grants,
    tokens,
)
from service.store.tables import holdings as table

#: Kinds that are counted from rows of jobs, project by project; the others of all holders at once.
OF_JOBS = (Kept.LOG_LINES, Kept.OUTPUT_BYTES)
OF_ALL = tuple(kind for kind in Kept if kind not in OF_JOBS)


@dataclass(frozen=True)
class _Source:
    """Rows of which each adds to the amount of a holder, or of a project."""

    rows: sa.FromClause
    amount: sa.ColumnElement[Any]
    project: sa.Column[str] | None = None
    holder: sa.Column[str] | None = None
    where: tuple[sa.ColumnElement[bool], ...] = ()


_ONE = sa.literal(1)
_GOOD = tokens.c.revoked_at.is_(None)


@lru_cache
def _sources(kind: Kept) -> tuple[_Source, ...]:
    match kind:
        case Kept.BUNDLE_BYTES:
            held = bundle_holders.join(bundles, bundles.c.digest == bundle_holders.c.digest)
            return (_Source(held, bundles.c.size_bytes, holder=bundle_holders.c.holder),)
        case Kept.OUTPUT_BYTES:
            made = outputs.join(jobs, jobs.c.id == outputs.c.job_id)
            return (_Source(made, outputs.c.size_bytes, project=jobs.c.project),)
        case Kept.LOG_LINES:
            # Between the first and the last line that a job still has none is missing: two looks into the index.
            first, last = (
                sa.select(one(log_lines.c.seq)).where(log_lines.c.job_id == jobs.c.id).scalar_subquery()
                for one in (sa.func.min, sa.func.max)
            )
            return (_Source(jobs, last - first + 1, project=jobs.c.project),)
        case Kept.SECRETS:
            return (_Source(secrets, _ONE, project=secrets.c.project),)
        case Kept.SCHEDULES:
            return (_Source(schedules, _ONE, project=schedules.c.project),)
        case Kept.TOKENS:
            given = token_grants.join(tokens, tokens.c.id == token_grants.c.token_id)
            known = token_grants.c.project != EVERYWHERE
            return (
                _Source(given, _ONE, project=token_grants.c.project, where=(_GOOD, known)),
                _Source(tokens, _ONE, holder=tokens.c.created_by, where=(_GOOD,)),
            )
        case Kept.ALERTS:
            named = alerts.c.project != EVERYWHERE
            return (
                _Source(alerts, _ONE, project=alerts.c.project, where=(named,)),
                _Source(alerts, _ONE, holder=alerts.c.owner),
            )


def next_project(connection: sa.Connection, after: str) -> str | None:
    """The first project behind a name, by the order of the database, that has jobs or holds something of theirs."""
    name = sa.func.substr(table.c.holder, len(kept_amounts.project_holder("")) + 1)
    is_of_jobs = table.c.kind.in_([kind.value for kind in OF_JOBS])
    firsts = sa.union_all(
        sa.select(sa.func.min(jobs.c.project).label("name")).where(jobs.c.project > after),
        sa.select(sa.func.min(name)).where(is_of_jobs, name > after),
    ).subquery()
    found: str | None = connection.execute(sa.select(sa.func.min(firsts.c.name))).scalar()
    return found


def wrong(connection: sa.Connection, kind: Kept, holder: str | None = None) -> list[str]:
    """The holders, or the one, whose amount is not the sum of the rows now; locks nothing, beside writes it may err."""
    mine = table.c.kind == kind.value
    said = sa.select(table.c.holder, table.c.amount).where(
        mine if holder is None else sa.and_(mine, table.c.holder == holder)
    )
    kept = {row.holder: row.amount for row in connection.execute(said)}
    counted = _counted(connection, kind, holder)
    return sorted(one for one in {*kept, *counted} if kept.get(one, 0) != counted.get(one, 0))


def put_right(connection: sa.Connection, kind: Kept, holder: str) -> bool:
    """Make an amount the sum of its rows; False when it is already.

    What writes such rows beside it waits for the row of the amount, or has ended before they are counted.
    """
    kept_amounts.lock(connection, holder, kind)
    counted = _counted(connection, kind, holder).get(holder, 0)
    difference = counted - kept_amounts.amount(connection, holder, kind)
    kept_amounts.add(connection, {(holder, kind): difference})
    return difference != 0


def _counted(connection: sa.Connection, kind: Kept, holder: str | None) -> Mapping[str, int]:
    """The sums of the rows, of all holders or of one."""
    found: dict[str, int] = {}
    for source in _sources(kind):
        statement = _sum(source, holder)
        for name, amount in () if statement is None else connection.execute(statement):
            one = name if source.project is None else kept_amounts.project_holder(name)
            found[one] = found.get(one, 0) + int(amount or 0)
    return found


def _sum(source: _Source, holder: str | None) -> sa.Select[str, Any] | None:
    """None: the rows are of projects, and the holder is none."""
    column = source.holder if source.project is None else source.project
    assert column is not None
    statement = sa.select(column, sa.func.sum(source.amount)).select_from(source.rows).where(*source.where)
    if holder is not None:
        name = holder if source.project is None else kept_amounts.project_of(holder)
        if name is None:
            return None
        statement = statement.where(column == name)
    return statement.group_by(column)

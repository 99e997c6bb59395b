"""How much is kept of each project and of each principal: sums that change in the transaction of each write.

A test compares them with the rows; a process of the release before counts nothing, so that a controller counts them
again (`service.loops.recount`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.queue.intake import Kept, LimitReached, check_kept
from service.store.tables import holdings

_PROJECT = "project:"


def project_holder(project: str) -> str:
    """The name by which a project holds something; those of principals are their ids."""
    return f"{_PROJECT}{project}"


def project_of(holder: str) -> str | None:
    """The project that a holder is; None for a principal."""
    return holder.removeprefix(_PROJECT) if holder.startswith(_PROJECT) else None


def whose(holder: str) -> str:
    """What people call a holder."""
    project = project_of(holder)
    return holder if project is None else f"the project {project}"


def add(connection: sa.Connection, changes: Mapping[tuple[str, Kept], int]) -> None:
    """Add amounts, which may be negative, by holder and kind; the same rows are always locked in the same order."""
    rows = [
        {"holder": holder, "kind": kind.value, "amount": amount}
        for (holder, kind), amount in sorted(changes.items())
        if amount
    ]
    if rows:
        connection.execute(_add(connection.dialect.name), rows)


def take(connection: sa.Connection, holder: str, kind: Kept, amount: int, most: int | None) -> None:
    """Add an amount.  Raises LimitReached when there would be more than `most`; the transaction has to end then."""
    row = {"holder": holder, "kind": kind.value, "amount": amount}
    after = connection.execute(_add(connection.dialect.name).returning(holdings.c.amount), row).scalar_one()
    if most is not None and amount > 0:
        refusal = check_kept(whose(holder), kind, after - amount, amount, most)
        if refusal is not None:
            raise LimitReached(refusal)


def lock(connection: sa.Connection, holder: str, kind: Kept) -> None:
    """Keep an amount, also one of nothing, from changing by others until the transaction ends."""
    row = {"holder": holder, "kind": kind.value, "amount": 0}
    connection.execute(_add(connection.dialect.name), row)


def amount(connection: sa.Connection, holder: str, kind: Kept) -> int:
    """How much is kept."""
    mine = holdings.c.holder == holder, holdings.c.kind == kind.value
    return int(connection.execute(sa.select(holdings.c.amount).where(*mine)).scalar() or 0)


def amounts(connection: sa.Connection, holders: Collection[str]) -> dict[tuple[str, Kept], int]:
    """How much is kept of these holders, by holder and kind."""
    statement = sa.select(holdings).where(holdings.c.holder.in_(sorted(holders)))
    return {(row.holder, Kept(row.kind)): row.amount for row in connection.execute(statement)}


def projects(connection: sa.Connection, after: str, limit: int) -> list[str]:
    """Projects of which something is or was kept, behind a name, in the order of their names."""
    behind = holdings.c.holder.startswith(_PROJECT), holdings.c.holder > project_holder(after)
    found = sa.select(holdings.c.holder).where(*behind).distinct().order_by(holdings.c.holder).limit(limit)
    return [holder.removeprefix(_PROJECT) for holder in connection.execute(found).scalars()]


@lru_cache
def _add(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(holdings)
    total = holdings.c.amount + statement.excluded.amount
    return statement.on_conflict_do_update(index_elements=["holder", "kind"], set_={"amount": total})

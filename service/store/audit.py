"""The audit: who wrote what, when and from where.  Rows are added with what they record, and deleted by age alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.store.project_lists import newest_of
from service.store.rows import in_parts, insert_into
from service.store.tables import audit


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One write."""

    id: str
    #: Seconds since 1970.
    at: float
    principal: str
    #: Id of the token that proved who it is.
    credential: str | None
    #: Where the request came from, and the program that sent it, as it said.
    address: str | None
    agent: str | None
    #: Of the API.
    operation: str
    project: str | None
    #: What it was done to.
    object: str | None
    #: What changed of the object, before and after.
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None
    outcome: str


def append(connection: sa.Connection, row: AuditRow) -> None:
    """Add one, in the transaction of the write that it records."""
    connection.execute(insert_into(audit), vars(row))


def page(
    connection: sa.Connection, projects: Collection[str] | None, before: str | None, limit: int
) -> list[AuditRow]:
    """Writes in these projects (None: all writes), newest first; `before` is the last one's id of the page before."""
    conditions = [] if before is None else [audit.c.id < before]
    statement = newest_of(sa.select(audit), audit, projects, conditions, limit)
    return [AuditRow(**row._mapping) for row in connection.execute(statement)]


def forget(connection: sa.Connection, before: float, most: int) -> tuple[int, bool]:
    """Delete the oldest rows from before a time, `most` at most; how many, and whether there may be more."""
    oldest = sa.select(audit.c.id, audit.c.at).order_by(audit.c.id).limit(most)
    old = [row.id for row in connection.execute(oldest) if row.at < before]
    if not old:
        return 0, False
    gone = 0
    for part in in_parts(old):
        gone += connection.execute(sa.delete(audit).where(audit.c.id.in_(part))).rowcount
    return gone, len(old) == most

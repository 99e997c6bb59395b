"""Why the newest plan does not do more for pools and nodes; only the controller writes these rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from service.queue.rows import WaitKind, WaitRow
from service.store.rows import upsert
from service.store.tables import waits

_REMOVE = sa.delete(waits).where(
    waits.c.kind == sa.bindparam("of"),
    waits.c.about == sa.bindparam("named"),
    waits.c.place == sa.bindparam("at"),
    # A pool that moves has reasons in both clusters.
    waits.c.cluster == sa.bindparam("on"),
)


def all_waits(connection: sa.Connection, cluster: str) -> list[WaitRow]:
    """All reasons of the plan of a cluster, in order for each pool and node."""
    return _rows(connection, sa.select(waits).where(waits.c.cluster == cluster))


def waits_of(
    connection: sa.Connection, kind: WaitKind, about: Collection[str] | None = None
) -> list[WaitRow]:
    """The reasons of pools or of nodes; with `about` only of these."""
    statement = sa.select(waits).where(waits.c.kind == kind)
    if about is not None:
        statement = statement.where(waits.c.about.in_(about))
    return _rows(connection, statement)


def _rows(connection: sa.Connection, statement: sa.Select[tuple[object, ...]]) -> list[WaitRow]:
    ordered = statement.order_by(waits.c.kind, waits.c.about, waits.c.place)
    return [WaitRow(**row._mapping) for row in connection.execute(ordered)]


def replace_waits(connection: sa.Connection, before: Sequence[WaitRow], after: Sequence[WaitRow]) -> None:
    """Make `after` of what was `before`; what is equal is left alone."""
    kept = {(row.kind, row.about, row.place) for row in after}
    gone = [
        {"of": row.kind, "named": row.about, "at": row.place, "on": row.cluster}
        for row in before
        if (row.kind, row.about, row.place) not in kept
    ]
    if gone:
        connection.execute(_REMOVE, gone)
    known = set(before)
    upsert(connection, waits, [asdict(row) for row in after if row not in known], replace=True)

"""The table of what jobs used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import sqlalchemy as sa

from service.queue.ledger import Entries, UseRow
from service.store.rows import upsert
from service.store.tables import OPEN_USES, uses


def open_uses(connection: sa.Connection) -> list[UseRow]:
    """What is being used."""
    return [UseRow(**row._mapping) for row in connection.execute(sa.select(uses).where(OPEN_USES))]


def write(connection: sa.Connection, new: Entries) -> None:
    """Store what changed."""
    upsert(connection, uses, [asdict(use) for use in (*new.ended, *new.begun)], replace=True)


def uses_of(connection: sa.Connection, job_id: str) -> list[UseRow]:
    """All that a job used and uses, in the order of time."""
    statement = sa.select(uses).where(uses.c.job_id == job_id).order_by(uses.c.began_at, uses.c.node_id)
    return [UseRow(**row._mapping) for row in connection.execute(statement)]


def spent(connection: sa.Connection, job_ids: Iterable[str], now: float) -> dict[str, float]:
    """USD that each of these jobs has spent."""
    wanted = sorted(job_ids)
    if not wanted:
        return {}
    totals = dict.fromkeys(wanted, 0.0)
    for row in connection.execute(sa.select(uses).where(uses.c.job_id.in_(wanted))):
        totals[row.job_id] += UseRow(**row._mapping).cost(now)
    return totals

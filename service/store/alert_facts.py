"""What alerts may report: written with the event, and deleted with what follows from it.

Rows are taken by their presence and not behind a number: a transaction that commits later than one with a higher number
is not passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from service.queue.alerts import Fact
from service.store.rows import in_parts, insert_into
from service.store.tables import alert_facts


def record(connection: sa.Connection, facts: Sequence[Fact]) -> None:
    """Store facts, in the transaction of what they report."""
    if facts:
        rows = [{**asdict(fact), "data": dict(fact.data)} for fact in facts]
        for row in rows:
            del row["seq"]
        connection.execute(insert_into(alert_facts), rows)


def is_any(connection: sa.Connection) -> bool:
    """Whether there is a fact of which nothing was made yet."""
    return connection.execute(sa.select(alert_facts.c.seq).limit(1)).first() is not None


def first(connection: sa.Connection, limit: int) -> list[Fact]:
    """The oldest facts that nothing was made of yet."""
    statement = sa.select(alert_facts).order_by(alert_facts.c.seq).limit(limit)
    return [Fact(**row._mapping) for row in connection.execute(statement)]


def forget(connection: sa.Connection, facts: Sequence[Fact]) -> None:
    """Delete facts of which everything was made."""
    for seqs in in_parts([str(fact.seq) for fact in facts]):
        connection.execute(sa.delete(alert_facts).where(alert_facts.c.seq.in_([int(seq) for seq in seqs])))

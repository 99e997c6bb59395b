"""The table of what jobs used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import sqlalchemy as sa

from service.queue.ledger import Entries, UseRow
from service.queue.rows import NodeRow
from service.store.rows import to_rows, upsert
from service.store.tables import OPEN_USES, jobs, nodes, uses

#: Ids in one statement: databases bound its parameters.
_AT_ONCE = 500

_OPEN = sa.select(uses).where(uses.c.cluster == sa.bindparam("of"), OPEN_USES)


def open_uses(connection: sa.Connection, cluster: str) -> list[UseRow]:
    """What is being used of a cluster."""
    return to_rows(UseRow, connection.execute(_OPEN, {"of": cluster}))


def write(connection: sa.Connection, new: Entries) -> None:
    """Store what changed."""
    upsert(connection, uses, [asdict(use) for use in (*new.ended, *new.begun)], replace=True)


def uses_of(connection: sa.Connection, job_id: str) -> list[UseRow]:
    """All that a job used and uses, in the order of time."""
    statement = sa.select(uses).where(uses.c.job_id == job_id).order_by(uses.c.began_at, uses.c.node_id)
    return [UseRow(**row._mapping) for row in connection.execute(statement)]


def uses_between(connection: sa.Connection, begins_at: float, ends_at: float) -> list[UseRow]:
    """All uses that were open at some moment between the two times."""
    is_over = sa.and_(uses.c.ended_at.is_not(None), uses.c.ended_at <= begins_at)
    statement = sa.select(uses).where(uses.c.began_at < ends_at, sa.not_(is_over)).order_by(uses.c.began_at)
    return [UseRow(**row._mapping) for row in connection.execute(statement)]


def paid_nodes(connection: sa.Connection, begins_at: float, ends_at: float) -> list[NodeRow]:
    """All nodes that cost money and had a machine at some moment between the two times."""
    is_over = sa.and_(nodes.c.ended_at.is_not(None), nodes.c.ended_at <= begins_at)
    statement = sa.select(nodes).where(
        nodes.c.price_per_hour > 0, nodes.c.launched_at < ends_at, sa.not_(is_over)
    )
    return to_rows(NodeRow, connection.execute(statement))


def start_ups(connection: sa.Connection, job_id: str) -> list[NodeRow]:
    """Nodes that were bought for the job and cost money."""
    statement = sa.select(nodes).where(nodes.c.bought_for == job_id, nodes.c.price_per_hour > 0)
    return to_rows(NodeRow, connection.execute(statement))


def projects_of(connection: sa.Connection, job_ids: Iterable[str]) -> dict[str, str]:
    """The project of each of these jobs."""
    found: dict[str, str] = {}
    wanted = sorted(set(job_ids))
    for at in range(0, len(wanted), _AT_ONCE):
        chosen = jobs.c.id.in_(wanted[at : at + _AT_ONCE])
        rows = connection.execute(sa.select(jobs.c.id, jobs.c.project).where(chosen))
        found.update({row.id: row.project for row in rows})
    return found


def spent(connection: sa.Connection, job_ids: Iterable[str], now: float) -> dict[str, float]:
    """USD that each of these jobs has spent."""
    wanted = sorted(job_ids)
    if not wanted:
        return {}
    totals = dict.fromkeys(wanted, 0.0)
    for row in connection.execute(sa.select(uses).where(uses.c.job_id.in_(wanted))):
        totals[row.job_id] += UseRow(**row._mapping).cost(now)
    return totals

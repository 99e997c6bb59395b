"""The table of what jobs used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.queue.ledger import Entries, UseRow
from service.store.rows import to_rows
from service.store.tables import OPEN_USES, nodes, uses

_OPEN = sa.select(uses).where(uses.c.cluster == sa.bindparam("of"), OPEN_USES)


def open_uses(connection: sa.Connection, cluster: str) -> list[UseRow]:
    """What is being used of a cluster."""
    return to_rows(UseRow, connection.execute(_OPEN, {"of": cluster}))


def write(connection: sa.Connection, new: Entries) -> None:
    """Store what changed, at the price that the node has by now: it may have been read since `new` was found."""
    rows = [
        {**asdict(use), "of_node": use.node_id, "known_price": use.price_per_hour}
        for use in (*new.ended, *new.begun)
    ]
    for row in rows:
        del row["price_per_hour"]
    if rows:
        connection.execute(_write(connection.dialect.name), rows)


@lru_cache
def _write(dialect: str) -> sa.Insert:
    price = sa.select(nodes.c.price_per_hour).where(nodes.c.id == sa.bindparam("of_node")).scalar_subquery()
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(uses)
    taken: dict[str, sa.ColumnElement[Any]] = {
        column.name: sa.bindparam(column.name) for column in uses.columns
    }
    del taken["price_per_hour"]
    statement = insert.values(
        **taken, price_per_hour=sa.func.coalesce(price, sa.bindparam("known_price", type_=sa.Double))
    )
    keys = [column.name for column in uses.primary_key]
    kept = {*keys, "price_per_hour"}
    changed = {one.name: statement.excluded[one.name] for one in uses.columns if one.name not in kept}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def reprice(connection: sa.Connection, prices: Mapping[str, float]) -> None:
    """All that was used of nodes costs what their prices turned out to be, in USD for an hour of the whole node."""
    statement = sa.update(uses).where(uses.c.node_id == sa.bindparam("of_node"))
    if prices:
        rows = [{"of_node": node_id, "read_price": price} for node_id, price in prices.items()]
        connection.execute(statement.values(price_per_hour=sa.bindparam("read_price")), rows)


def uses_of(connection: sa.Connection, job_id: str) -> list[UseRow]:
    """All that a job used and uses, in the order of time."""
    statement = sa.select(uses).where(uses.c.job_id == job_id).order_by(uses.c.began_at, uses.c.node_id)
    return [UseRow(**row._mapping) for row in connection.execute(statement)]


def jobs_on(connection: sa.Connection, node_ids: Iterable[str]) -> dict[str, list[str]]:
    """Ids of the jobs that use each of these nodes now, in the order in which they were submitted."""
    statement = sa.select(uses.c.node_id, uses.c.job_id).where(uses.c.node_id.in_(list(node_ids)), OPEN_USES)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node_id, job_id in connection.execute(statement.order_by(uses.c.job_id)):
        found[node_id].append(job_id)
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

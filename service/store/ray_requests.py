"""What Ray programs wait for, and what they hold, as the newest plan saw it; only the controller writes these rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from service.queue.rows import HELD, RayRequestRow
from service.store.rows import upsert
from service.store.tables import ray_requests

_REMOVE = sa.delete(ray_requests).where(
    ray_requests.c.id == sa.bindparam("of"), ray_requests.c.cluster == sa.bindparam("on")
)


def all_requests(connection: sa.Connection) -> list[RayRequestRow]:
    """All that is waited for, the oldest first."""
    waited = sa.select(ray_requests).where(ray_requests.c.kind != HELD)
    return _rows(connection, waited.order_by(ray_requests.c.since, ray_requests.c.id))


def rows_of(connection: sa.Connection, cluster: str) -> list[RayRequestRow]:
    """What is waited for and what is held on one cluster."""
    return _rows(connection, sa.select(ray_requests).where(ray_requests.c.cluster == cluster))


def held_on(connection: sa.Connection, cluster: str) -> list[RayRequestRow]:
    """What is held of the nodes of one cluster, a row for each node."""
    of_cluster = sa.select(ray_requests).where(ray_requests.c.cluster == cluster)
    return _rows(connection, of_cluster.where(ray_requests.c.kind == HELD))


def replace_requests(
    connection: sa.Connection, cluster: str, changed: Sequence[RayRequestRow], gone: Collection[str]
) -> None:
    """Store those that changed, and forget those that are not asked for, or held, on that cluster any more."""
    if gone:
        connection.execute(_REMOVE, [{"of": one, "on": cluster} for one in gone])
    upsert(connection, ray_requests, [asdict(row) for row in changed], replace=True)


def _rows(connection: sa.Connection, statement: sa.Select[Any]) -> list[RayRequestRow]:
    return [RayRequestRow(**row._mapping) for row in connection.execute(statement)]

"""What Ray programs wait for, as the newest plan saw it; only the controller writes these rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from service.queue.rows import RayRequestRow
from service.store.rows import upsert
from service.store.tables import ray_requests

_REMOVE = sa.delete(ray_requests).where(
    ray_requests.c.id == sa.bindparam("of"), ray_requests.c.cluster == sa.bindparam("on")
)


def all_requests(connection: sa.Connection) -> list[RayRequestRow]:
    """All of them, the oldest first."""
    statement = sa.select(ray_requests).order_by(ray_requests.c.since, ray_requests.c.id)
    return [RayRequestRow(**row._mapping) for row in connection.execute(statement)]


def requests_of(connection: sa.Connection, cluster: str) -> list[RayRequestRow]:
    """Those on one cluster."""
    statement = sa.select(ray_requests).where(ray_requests.c.cluster == cluster)
    return [RayRequestRow(**row._mapping) for row in connection.execute(statement)]


def replace_requests(
    connection: sa.Connection, cluster: str, changed: Sequence[RayRequestRow], gone: Collection[str]
) -> None:
    """Store those that changed, and forget those that are not asked for on that cluster any more."""
    if gone:
        connection.execute(_REMOVE, [{"of": one, "on": cluster} for one in gone])
    upsert(connection, ray_requests, [asdict(row) for row in changed], replace=True)

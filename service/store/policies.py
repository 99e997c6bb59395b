"""Versions of the operators' policies, and events of the whole cluster; both are only appended to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from cluster.policies.offerings import Offering
from remora.clusters import DEFAULT_CLUSTER
from service.queue.market import from_data
from service.queue.policy_versions import PolicyDecision, PolicyRow
from service.queue.rows import NewEvent
from service.store.tables import cluster_events, policies


@dataclass(frozen=True)
class ClusterEventRow:
    """An event of the whole cluster."""

    #: Grows with every event; there may be gaps.
    seq: int
    at: float
    kind: str
    message: str
    data: dict[str, Any]
    cluster: str = DEFAULT_CLUSTER


def newest_policies(connection: sa.Connection) -> PolicyRow | None:
    """The version in force; None before the first one."""
    statement = sa.select(policies).order_by(policies.c.version.desc()).limit(1)
    row = connection.execute(statement).first()
    return None if row is None else PolicyRow(**row._mapping)


def get_policies(connection: sa.Connection, version: int) -> PolicyRow | None:
    """One version, or None."""
    row = connection.execute(sa.select(policies).where(policies.c.version == version)).first()
    return None if row is None else PolicyRow(**row._mapping)


def page_of_policies(connection: sa.Connection, *, before: int, limit: int) -> list[PolicyRow]:
    """Versions below `before`, newest first."""
    statement = (
        sa.select(policies)
        .where(policies.c.version < before)
        .order_by(policies.c.version.desc())
        .limit(limit)
    )
    return [PolicyRow(**row._mapping) for row in connection.execute(statement)]


def insert_policies(connection: sa.Connection, decision: PolicyDecision) -> None:
    """Store a version with its event.  Raises IntegrityError when another client stored that version meanwhile."""
    if decision.event is None:
        return
    connection.execute(sa.insert(policies).values(asdict(decision.row)))
    append_cluster_event(connection, decision.event)


def append_cluster_event(connection: sa.Connection, event: NewEvent, cluster: str = DEFAULT_CLUSTER) -> None:
    """Store an event of a whole cluster; those of the service itself are with the cluster that always is."""
    row = {"at": event.at, "kind": event.kind, "message": event.message, "data": dict(event.data)}
    connection.execute(sa.insert(cluster_events).values({**row, "cluster": cluster}))


def has_cluster_event(
    connection: sa.Connection, kind: str, message: str, cluster: str, *, since: float
) -> bool:
    """True when the same event of that cluster was written since then."""
    same = (
        cluster_events.c.cluster == cluster,
        cluster_events.c.kind == kind,
        cluster_events.c.message == message,
        cluster_events.c.at > since,
    )
    return connection.execute(sa.select(cluster_events.c.seq).where(*same).limit(1)).first() is not None


def newest_quotas(connection: sa.Connection, cluster: str) -> dict[str, int]:
    """Units of each quota of a cluster's cloud, as the newest event reported them; empty when none did."""
    _, data = _newest(connection, "quotas.read", cluster)
    return dict(data.get("units", {}))


def newest_market(connection: sa.Connection, cluster: str) -> tuple[float, list[Offering]]:
    """What a cluster's cloud sells to the pools, and when that was recorded, seconds since 1970; empty before."""
    at, data = _newest(connection, "offerings.read", cluster)
    return at, from_data(data.get("offerings", []))


def _newest(connection: sa.Connection, kind: str, cluster: str) -> tuple[float, dict[str, Any]]:
    """Time and data of the newest event of this kind; 0.0 and no data when there is none."""
    statement = (
        sa.select(cluster_events.c.at, cluster_events.c.data)
        .where(cluster_events.c.kind == kind, cluster_events.c.cluster == cluster)
        .order_by(cluster_events.c.seq.desc())
        .limit(1)
    )
    row = connection.execute(statement).first()
    return (0.0, {}) if row is None else (row.at, row.data)


def quotas_by_cluster(connection: sa.Connection) -> dict[str, dict[str, int]]:
    """The same for each cluster whose cloud was asked."""
    asked = sa.select(cluster_events.c.cluster).where(cluster_events.c.kind == "quotas.read").distinct()
    return {name: newest_quotas(connection, name) for name in connection.execute(asked).scalars()}


def page_of_cluster_events(connection: sa.Connection, *, after: int, limit: int) -> list[ClusterEventRow]:
    """Events after a number, oldest first."""
    statement = (
        sa.select(cluster_events)
        .where(cluster_events.c.seq > after)
        .order_by(cluster_events.c.seq)
        .limit(limit)
    )
    return [ClusterEventRow(**row._mapping) for row in connection.execute(statement)]

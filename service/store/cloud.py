"""The state of the cloud that controllers keep between ticks: one row for each cluster."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from remora.clusters import DEFAULT_CLUSTER
from service.store.tables import cloud

#: The row of the cluster that always is; the release before knows this row alone.
_FIRST = 1


@dataclass(frozen=True, kw_only=True)
class CloudRow:
    """Times are seconds since 1970."""

    #: Before this time no machines are requested, as the cloud throttles requests.
    paused_until: float = float("-inf")
    #: Since when the cloud, or Ray, has not answered; None: both answer.
    unseen_since: float | None = None


def get(connection: sa.Connection, cluster: str) -> CloudRow:
    """The stored state; the defaults before anything was written."""
    row = connection.execute(sa.select(cloud).where(cloud.c.cluster == cluster)).first()
    if row is None:
        return CloudRow()
    paused_until = float("-inf") if row.paused_until is None else row.paused_until
    return CloudRow(paused_until=paused_until, unseen_since=row.unseen_since)


def pause(connection: sa.Connection, cluster: str, until: float) -> None:
    """Store that the cloud asked for a pause; one that ends earlier than a known one changes nothing."""
    before = get(connection, cluster)
    if until > before.paused_until:
        _save(connection, cluster, CloudRow(paused_until=until, unseen_since=before.unseen_since))


def see(connection: sa.Connection, cluster: str, unseen_since: float | None) -> None:
    """Store since when it cannot be observed, or None that it can be again."""
    before = get(connection, cluster)
    _save(connection, cluster, CloudRow(paused_until=before.paused_until, unseen_since=unseen_since))


def _save(connection: sa.Connection, cluster: str, row: CloudRow) -> None:
    paused_until = None if row.paused_until == float("-inf") else row.paused_until
    values = {"paused_until": paused_until, "unseen_since": row.unseen_since}
    changed = connection.execute(sa.update(cloud).where(cloud.c.cluster == cluster).values(values))
    if changed.rowcount:
        return
    newest = connection.execute(sa.select(sa.func.max(cloud.c.id))).scalar()
    # Two clusters that are new at the same moment: the database refuses one of them, whose tick is repeated.
    number = _FIRST if cluster == DEFAULT_CLUSTER else max(newest or _FIRST, _FIRST) + 1
    connection.execute(sa.insert(cloud).values({"id": number, "cluster": cluster, **values}))

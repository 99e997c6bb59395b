"""The state of the cloud that controllers keep between ticks: one row."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from service.store.rows import upsert
from service.store.tables import cloud

_THE_ROW = 1


@dataclass(frozen=True, kw_only=True)
class CloudRow:
    """Times are seconds since 1970."""

    #: Before this time no machines are requested, as the cloud throttles requests.
    paused_until: float = float("-inf")
    #: Since when the cloud, or Ray, has not answered; None: both answer.
    unseen_since: float | None = None


def get(connection: sa.Connection) -> CloudRow:
    """The stored state; the defaults before anything was written."""
    row = connection.execute(sa.select(cloud).where(cloud.c.id == _THE_ROW)).first()
    if row is None:
        return CloudRow()
    paused_until = float("-inf") if row.paused_until is None else row.paused_until
    return CloudRow(paused_until=paused_until, unseen_since=row.unseen_since)


def pause(connection: sa.Connection, until: float) -> None:
    """Store that the cloud asked for a pause; one that ends earlier than a known one changes nothing."""
    before = get(connection)
    if until > before.paused_until:
        _save(connection, CloudRow(paused_until=until, unseen_since=before.unseen_since))


def see(connection: sa.Connection, unseen_since: float | None) -> None:
    """Store since when it cannot be observed, or None that it can be again."""
    _save(connection, CloudRow(paused_until=get(connection).paused_until, unseen_since=unseen_since))


def _save(connection: sa.Connection, row: CloudRow) -> None:
    paused_until = None if row.paused_until == float("-inf") else row.paused_until
    values = {"id": _THE_ROW, "paused_until": paused_until, "unseen_since": row.unseen_since}
    upsert(connection, cloud, [values], replace=True)

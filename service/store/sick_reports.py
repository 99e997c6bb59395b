"""What attempts have said of nodes that compute wrongly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from service.store.rows import upsert
from service.store.tables import sick_reports


@dataclass(frozen=True, kw_only=True)
class SickReport:
    """A node whose worker has computed something else than others, or whose GPU failed."""

    attempt_id: str
    #: Of the job.
    project: str
    #: Of the node, as Ray knows it.
    address: str
    #: Seconds since 1970.
    at: float
    message: str
    #: When the node was drained for it; None: it was not.
    drained_at: float | None = None


def add_reports(connection: sa.Connection, reports: Iterable[SickReport]) -> None:
    """Store them; of an attempt the first one for a node counts."""
    upsert(connection, sick_reports, [asdict(one) for one in reports], replace=False)


def all_reports(connection: sa.Connection) -> list[SickReport]:
    """Those that are kept, oldest first."""
    ordered = sa.select(sick_reports).order_by(sick_reports.c.at, sick_reports.c.attempt_id)
    return [SickReport(**row) for row in connection.execute(ordered).mappings()]


def close_reports(
    connection: sa.Connection, reports: Sequence[SickReport], drained: Collection[str], now: float
) -> None:
    """Nodes with the addresses `drained` are drained now; the other reports are forgotten."""
    for one in reports:
        key = sick_reports.c.attempt_id == one.attempt_id, sick_reports.c.address == one.address
        if one.address in drained:
            connection.execute(sa.update(sick_reports).where(*key).values(drained_at=now))
        else:
            connection.execute(sa.delete(sick_reports).where(*key))

"""What attempts have said of nodes that compute wrongly, until these are drained for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from service.store.rows import upsert
from service.store.tables import sick_reports


@dataclass(frozen=True, kw_only=True)
class SickReport:
    """A node whose worker has computed something else than others."""

    attempt_id: str
    #: Of the node, as Ray knows it.
    address: str
    #: Seconds since 1970.
    at: float
    message: str


def add_reports(connection: sa.Connection, reports: Iterable[SickReport]) -> None:
    """Store them; of an attempt the first one for a node counts."""
    upsert(connection, sick_reports, [asdict(one) for one in reports], replace=False)


def all_reports(connection: sa.Connection) -> list[SickReport]:
    """Those that no node was drained for yet, oldest first."""
    ordered = sa.select(sick_reports).order_by(sick_reports.c.at, sick_reports.c.attempt_id)
    return [SickReport(**row) for row in connection.execute(ordered).mappings()]


def remove_reports(connection: sa.Connection, reports: Sequence[SickReport]) -> None:
    """Forget them."""
    for one in reports:
        connection.execute(
            sa.delete(sick_reports).where(
                sick_reports.c.attempt_id == one.attempt_id, sick_reports.c.address == one.address
            )
        )

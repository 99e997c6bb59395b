"""Sums over everything, for the operator's metrics."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from service.store.tables import LIVE_NODES, attempts, jobs, nodes


@dataclass(frozen=True)
class Totals:
    """How much there is of what, by word."""

    jobs_by_state: dict[str, int]
    nodes_by_state: dict[str, int]
    attempts_by_end_reason: dict[str, int]
    #: Queued jobs by what they wait for.
    queued_by_reason: dict[str, int]
    repeated_steps: int
    lost_s: float


def totals(connection: sa.Connection) -> Totals:
    """Count everything once."""
    sums = connection.execute(sa.select(sa.func.sum(jobs.c.repeated_steps), sa.func.sum(jobs.c.lost_s))).one()
    queued = sa.text("state = 'queued'")
    return Totals(
        jobs_by_state=_count(connection, jobs.c.state),
        nodes_by_state=_count(connection, nodes.c.state, LIVE_NODES),
        attempts_by_end_reason=_count(connection, attempts.c.end_reason, attempts.c.end_reason.is_not(None)),
        queued_by_reason=_count(connection, jobs.c.reason, queued),
        repeated_steps=int(sums[0] or 0),
        lost_s=float(sums[1] or 0.0),
    )


def _count(
    connection: sa.Connection, column: sa.Column[str], *where: sa.ColumnElement[bool] | sa.TextClause
) -> dict[str, int]:
    statement = sa.select(column, sa.func.count()).where(*where).group_by(column)
    return {str(word): int(count) for word, count in connection.execute(statement)}

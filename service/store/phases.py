"""What the attempts of a job did, from when until when."""

from __future__ import annotations

import sqlalchemy as sa

from remora.views import JobPhase
from service.store.tables import attempts, phases

_NEXT = phases.alias("next")
# Both joins find their one row by its key.
_ENDS = phases.join(
    attempts, sa.and_(attempts.c.job_id == phases.c.job_id, attempts.c.attempt == phases.c.attempt)
).outerjoin(
    _NEXT,
    sa.and_(
        _NEXT.c.job_id == phases.c.job_id,
        _NEXT.c.attempt == phases.c.attempt,
        _NEXT.c.number == phases.c.number + 1,
    ),
)


def newest_phases(
    connection: sa.Connection, job_id: str, before: tuple[int, int] | None, limit: int
) -> list[JobPhase]:
    """The newest phases of a job's attempts, the newest first; of those before an attempt and number, if given."""
    row = phases.c
    statement = (
        sa.select(
            row.attempt,
            row.number,
            row.phase,
            row.began_at,
            sa.func.coalesce(_NEXT.c.began_at, attempts.c.ended_at).label("ended_at"),
        )
        .select_from(_ENDS)
        .where(row.job_id == job_id)
        .order_by(row.attempt.desc(), row.number.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(sa.tuple_(row.attempt, row.number) < sa.tuple_(*map(sa.literal, before)))
    return [JobPhase(**found._mapping) for found in connection.execute(statement)]

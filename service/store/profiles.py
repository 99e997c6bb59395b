"""Profiles of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from service.queue.profiles import ProfileRow
from service.store.tables import jobs, profiles

#: What changes of a row after it was made.
_CHANGING = ("taken_at", "ended_at", "message", "file", "profiled_steps", "size_bytes", "sha256")
_END = (
    sa.update(profiles)
    .where(
        profiles.c.job_id == sa.bindparam("of"),
        profiles.c.number == sa.bindparam("at"),
        profiles.c.attempt == sa.bindparam("by"),
        # A driver that could not be asked for long may have stored a trace meanwhile.
        sa.or_(
            profiles.c.ended_at.is_(None),
            sa.and_(
                profiles.c.file.is_(None), sa.bindparam("new_file", type_=profiles.c.file.type).is_not(None)
            ),
        ),
    )
    .values({name: sa.bindparam(f"new_{name}", type_=profiles.c[name].type) for name in _CHANGING})
)


def add(connection: sa.Connection, row: ProfileRow) -> None:
    """A profile was asked for."""
    connection.execute(sa.insert(profiles).values(**vars(row)))


def of_job(connection: sa.Connection, job_id: str) -> list[ProfileRow]:
    """All of a job, the oldest first."""
    mine = sa.select(profiles).where(profiles.c.job_id == job_id).order_by(profiles.c.number)
    return [ProfileRow(**row._mapping) for row in connection.execute(mine)]


def under_way(connection: sa.Connection, cluster: str) -> list[ProfileRow]:
    """Those of jobs of a cluster that have not ended."""
    found = (
        sa.select(profiles)
        .join(jobs, jobs.c.id == profiles.c.job_id)
        .where(profiles.c.ended_at.is_(None), jobs.c.cluster == cluster)
    )
    return [ProfileRow(**row._mapping) for row in connection.execute(found)]


def save(connection: sa.Connection, rows: Sequence[ProfileRow]) -> None:
    """Store how these went, unless they have ended."""
    if rows:
        connection.execute(_END, [_values(row) for row in rows])


def end(connection: sa.Connection, reports: Sequence[dict[str, Any]]) -> None:
    """Drivers say how profiles went: `job_id`, `number`, `attempt`, `ended_at`, and what is known of the result."""
    if not reports:
        return
    names = [name for name in _CHANGING if name != "taken_at"]
    statement = _END.values({"taken_at": sa.func.coalesce(profiles.c.taken_at, sa.bindparam("new_ended_at"))})
    places = [
        {
            "of": one["job_id"],
            "at": one["number"],
            "by": one["attempt"],
            **{f"new_{name}": one.get(name) for name in names},
        }
        for one in reports
    ]
    connection.execute(statement, places)


def _values(row: ProfileRow) -> dict[str, Any]:
    place = {"of": row.job_id, "at": row.number, "by": row.attempt}
    return place | {f"new_{name}": getattr(row, name) for name in _CHANGING}

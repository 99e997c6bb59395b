"""Which jobs wait for which others.  The end of a job is noted here in the transaction that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from remora.states import JobState
from service.queue.dependencies import Dependency, Wanted
from service.store.rows import in_parts, insert_into
from service.store.tables import ENDED_DEPENDENCIES, dependencies

_ENDED = sa.select(dependencies.c.job_id).where(ENDED_DEPENDENCIES).distinct()
_NOTE = (
    sa.update(dependencies)
    .where(dependencies.c.other_id == sa.bindparam("of"))
    .values(ended_as=sa.bindparam("state", type_=dependencies.c.ended_as.type))
)
_FORGET = sa.delete(dependencies).where(dependencies.c.job_id == sa.bindparam("of"))

_FORGET_ONE = _FORGET.where(dependencies.c.other_id == sa.bindparam("other"))


def insert(connection: sa.Connection, new: Sequence[Dependency]) -> None:
    """Store what a new job waits for; the other jobs are locked, so that no end of them is missed."""
    if new:
        connection.execute(insert_into(dependencies), [_columns(one) for one in new])


def note_ends(connection: sa.Connection, ends: Sequence[tuple[str, JobState]], waited: Sequence[str]) -> None:
    """Jobs end, by id and with their states; those that `waited` for others themselves wait no more."""
    if waited:
        connection.execute(_FORGET, [{"of": job_id} for job_id in waited])
    if ends:
        connection.execute(_NOTE, [{"of": job_id, "state": state} for job_id, state in ends])


def with_news(connection: sa.Connection, limit: int) -> list[str]:
    """Ids of jobs that wait for others, at least one of which has ended; at most `limit`."""
    return list(connection.execute(_ENDED.limit(limit)).scalars())


def of_jobs(connection: sa.Connection, job_ids: Iterable[str]) -> dict[str, list[Dependency]]:
    """What these jobs wait for, by job."""
    found: dict[str, list[Dependency]] = {}
    for ids in in_parts(sorted(job_ids)):
        statement = sa.select(dependencies).where(dependencies.c.job_id.in_(ids))
        for row in connection.execute(statement.order_by(dependencies.c.other_id)):
            values = {**row._mapping, "wanted": Wanted(row.wanted)}
            found.setdefault(row.job_id, []).append(Dependency(**values))
    return found


def forget(connection: sa.Connection, seen: Iterable[Dependency]) -> None:
    """What was looked at after its end; an end that was noted meanwhile stays."""
    if rows := [{"of": one.job_id, "other": one.other_id} for one in seen]:
        connection.execute(_FORGET_ONE, rows)


def _columns(one: Dependency) -> dict[str, object]:
    return {
        "job_id": one.job_id,
        "other_id": one.other_id,
        "other_name": one.other_name,
        "wanted": one.wanted.value,
        "ended_as": one.ended_as,
    }

"""Arrays, and which of their jobs are held back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from remora.states import JobState
from service.queue.arrays import ArrayQueue, ArrayRow
from service.queue.early_stop import Score
from service.store import ledger
from service.store.project_lists import newest_of
from service.store.rows import in_parts, insert_into, upsert
from service.store.tables import ACTIVE_IN_ARRAY, ARRAYS_WITH_NEWS, array_scores, arrays, jobs

_COLUMNS = tuple(column for column in arrays.columns if column.name != "has_news")
_ARRAY = sa.select(*_COLUMNS).where(arrays.c.id == sa.bindparam("of"))
_NEWS = sa.select(arrays.c.id).where(ARRAYS_WITH_NEWS)


def insert(connection: sa.Connection, array: ArrayRow) -> None:
    """Store a new array, before its jobs."""
    row = {column.name: getattr(array, column.name) for column in _COLUMNS}
    connection.execute(insert_into(arrays), {**row, "has_news": False})


def get(connection: sa.Connection, array_id: str) -> ArrayRow | None:
    """The array, or None."""
    row = connection.execute(_ARRAY, {"of": array_id}).first()
    return None if row is None else ArrayRow(**row._mapping)


def page(
    connection: sa.Connection, projects: Collection[str] | None, before: str | None, limit: int
) -> Iterator[ArrayRow]:
    """Arrays of these projects (None: of all), newest first; `before` is the id of the last one of the page before."""
    conditions = [] if before is None else [arrays.c.id < before]
    for row in connection.execute(newest_of(sa.select(*_COLUMNS), arrays, projects, conditions, limit)):
        yield ArrayRow(**row._mapping)


def states_of(connection: sa.Connection, array_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """How many jobs of each array are in which state, by array."""
    found: dict[str, dict[str, int]] = {array_id: {} for array_id in array_ids}
    for ids in in_parts(sorted(array_ids)):
        statement = (
            sa.select(jobs.c.array_id, jobs.c.state, sa.func.count())
            .where(jobs.c.array_id.in_(ids), jobs.c.delete_requested_at.is_(None))
            .group_by(jobs.c.array_id, jobs.c.state)
        )
        for array_id, state, count in connection.execute(statement):
            found[array_id][JobState(state).value] = int(count)
    return found


def job_ids(connection: sa.Connection, array_id: str, *, active: bool = False) -> list[str]:
    """Ids of the jobs of an array, or only of those that have not ended."""
    statement = sa.select(jobs.c.id).where(jobs.c.array_id == array_id)
    statement = statement.where(jobs.c.ended_at.is_(None)) if active else statement
    return list(connection.execute(statement.order_by(jobs.c.id)).scalars())


def cost(connection: sa.Connection, array_id: str, now: float) -> float:
    """USD that its jobs have cost so far."""
    return sum(ledger.spent(connection, job_ids(connection, array_id), now).values())


def with_news(connection: sa.Connection) -> list[str]:
    """Ids of arrays of which jobs have ended, or were paused or resumed, since it was last decided which follow."""
    return list(connection.execute(_NEWS).scalars())


def note(connection: sa.Connection, array_ids: Iterable[str], *, has_news: bool = True) -> None:
    """Something has happened to jobs of these arrays, which are locked; or all of it was decided about."""
    for ids in in_parts(sorted(set(array_ids))):
        connection.execute(sa.update(arrays).where(arrays.c.id.in_(ids)).values(has_news=has_news))


def queues(connection: sa.Connection, array_ids: Collection[str]) -> list[ArrayQueue]:
    """What is to be decided about these arrays."""
    most: dict[str, int | None] = {}
    active: dict[str, int] = {}
    held: dict[str, list[str]] = {}
    for ids in in_parts(sorted(array_ids)):
        limits = sa.select(arrays.c.id, arrays.c.most_at_once).where(arrays.c.id.in_(ids))
        most.update({row.id: row.most_at_once for row in connection.execute(limits)})
        mine = jobs.c.array_id.in_(ids)
        counts = sa.select(jobs.c.array_id, sa.func.count()).where(mine, ACTIVE_IN_ARRAY)
        active.update({row[0]: int(row[1]) for row in connection.execute(counts.group_by(jobs.c.array_id))})
        waiting = sa.select(jobs.c.id, jobs.c.array_id).where(
            mine, jobs.c.is_held, jobs.c.state == JobState.QUEUED
        )
        for row in connection.execute(waiting.order_by(jobs.c.array_id, jobs.c.array_index)):
            held.setdefault(row.array_id, []).append(row.id)
    return [
        ArrayQueue(array_id=one, most_at_once=limit, active=active.get(one, 0), held=held.get(one, ()))
        for one, limit in sorted(most.items())
    ]


def save_scores(connection: sa.Connection, scores: Sequence[Score]) -> dict[tuple[str, int], list[float]]:
    """Store scores; all that there are of the same arrays at the same steps."""
    upsert(connection, array_scores, [asdict(score) for score in scores], replace=True)
    found: dict[tuple[str, int], list[float]] = {(score.array_id, score.step): [] for score in scores}
    for ids in in_parts(sorted({array_id for array_id, _ in found})):
        steps = sorted({step for _, step in found})
        statement = sa.select(array_scores).where(
            array_scores.c.array_id.in_(ids), array_scores.c.step.in_(steps)
        )
        for row in connection.execute(statement):
            if (row.array_id, row.step) in found:
                found[row.array_id, row.step].append(row.value)
    return found


def forget_empty(connection: sa.Connection, array_ids: Sequence[str]) -> None:
    """Delete those of the arrays of which no job is left."""
    for array_id in array_ids:
        left = sa.exists().where(jobs.c.array_id == array_id)
        gone = connection.execute(sa.delete(arrays).where(arrays.c.id == array_id, ~left)).rowcount
        if gone:
            connection.execute(sa.delete(array_scores).where(array_scores.c.array_id == array_id))

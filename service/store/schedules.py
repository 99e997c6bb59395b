"""Schedules, and what became of their times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from service.queue.intake import Kept
from service.queue.schedules import Outcome, RunRow, ScheduleRow
from service.store import kept_amounts
from service.store.project_lists import newest_of
from service.store.rows import in_parts, insert_into
from service.store.tables import ACTIVE_JOBS, jobs, schedule_runs, schedules

#: Runs of one schedule that are kept, the newest ones.
MOST_RUNS = 1000

_SCHEDULE = sa.select(schedules).where(schedules.c.id == sa.bindparam("of"))
_LOCKED = _SCHEDULE.with_for_update()
_SUBMITTED = (
    sa.select(schedule_runs)
    .where(
        schedule_runs.c.schedule_id == sa.bindparam("of"), schedule_runs.c.outcome == Outcome.SUBMITTED.value
    )
    .order_by(schedule_runs.c.at.desc())
    .limit(1)
)


def insert(connection: sa.Connection, schedule: ScheduleRow, most: int | None = None) -> None:
    """Store a new schedule.  Raises LimitReached when its project would have more than `most`."""
    kept_amounts.take(connection, kept_amounts.project_holder(schedule.project), Kept.SCHEDULES, 1, most)
    connection.execute(insert_into(schedules), asdict(schedule))


def get(connection: sa.Connection, schedule_id: str) -> ScheduleRow | None:
    """The schedule, or None."""
    return _one(connection.execute(_SCHEDULE, {"of": schedule_id}).first())


def lock(connection: sa.Connection, schedule_id: str) -> ScheduleRow | None:
    """The schedule, kept from changing by others until the transaction ends, or None."""
    return _one(connection.execute(_LOCKED, {"of": schedule_id}).first())


def of_key(connection: sa.Connection, key: str) -> ScheduleRow | None:
    """The schedule that a request with this `Idempotency-Key` made, or None."""
    return _one(connection.execute(sa.select(schedules).where(schedules.c.key == key)).first())


def page(
    connection: sa.Connection, projects: Collection[str] | None, before: str | None, limit: int
) -> Iterator[ScheduleRow]:
    """Schedules of these projects (None: of all), newest first; `before` is the last one's id of the page before."""
    conditions = [] if before is None else [schedules.c.id < before]
    for row in connection.execute(newest_of(sa.select(schedules), schedules, projects, conditions, limit)):
        yield ScheduleRow(**row._mapping)


def delete(connection: sa.Connection, schedule: ScheduleRow) -> None:
    """Delete a schedule, which is locked, with its runs; what it has submitted stays."""
    connection.execute(sa.delete(schedule_runs).where(schedule_runs.c.schedule_id == schedule.id))
    connection.execute(sa.delete(schedules).where(schedules.c.id == schedule.id))
    kept_amounts.take(connection, kept_amounts.project_holder(schedule.project), Kept.SCHEDULES, -1, None)


def due(connection: sa.Connection, now: float, limit: int) -> list[str]:
    """Ids of schedules whose next time has come, at most `limit`."""
    statement = sa.select(schedules.c.id).where(schedules.c.next_at <= now).order_by(schedules.c.next_at)
    return list(connection.execute(statement.limit(limit)).scalars())


def move(connection: sa.Connection, schedule_id: str, next_at: float) -> None:
    """All times before `next_at` are decided."""
    connection.execute(sa.update(schedules).where(schedules.c.id == schedule_id).values(next_at=next_at))


def add_runs(connection: sa.Connection, runs: Sequence[RunRow]) -> None:
    """Store what became of times, each once.  Raises IntegrityError for one that is decided already."""
    if runs:
        connection.execute(insert_into(schedule_runs), [asdict(run) for run in runs])


def forget_runs(connection: sa.Connection, schedule_id: str) -> None:
    """Delete the runs of a schedule beyond `MOST_RUNS`."""
    mine = schedule_runs.c.schedule_id == schedule_id
    oldest = sa.select(schedule_runs.c.at).where(mine).order_by(schedule_runs.c.at.desc())
    at = connection.execute(oldest.offset(MOST_RUNS).limit(1)).scalar()
    if at is not None:
        connection.execute(sa.delete(schedule_runs).where(mine, schedule_runs.c.at <= at))


def runs(connection: sa.Connection, schedule_id: str, before: float | None, limit: int) -> list[RunRow]:
    """What became of the times of a schedule, newest first."""
    statement = sa.select(schedule_runs).where(schedule_runs.c.schedule_id == schedule_id)
    statement = statement if before is None else statement.where(schedule_runs.c.at < before)
    return [
        _run(row) for row in connection.execute(statement.order_by(schedule_runs.c.at.desc()).limit(limit))
    ]


def newest_runs(connection: sa.Connection, schedule_ids: Collection[str]) -> dict[str, RunRow]:
    """The newest run of each of these schedules that has one."""
    found: dict[str, RunRow] = {}
    for ids in in_parts(sorted(schedule_ids)):
        newest = (
            sa.select(schedule_runs.c.schedule_id, sa.func.max(schedule_runs.c.at).label("at"))
            .where(schedule_runs.c.schedule_id.in_(ids))
            .group_by(schedule_runs.c.schedule_id)
            .subquery()
        )
        same = sa.and_(schedule_runs.c.schedule_id == newest.c.schedule_id, schedule_runs.c.at == newest.c.at)
        for row in connection.execute(sa.select(schedule_runs).join(newest, same)):
            found[row.schedule_id] = _run(row)
    return found


def last_submitted(connection: sa.Connection, schedule_id: str) -> RunRow | None:
    """The newest run for which something was submitted."""
    row = connection.execute(_SUBMITTED, {"of": schedule_id}).first()
    return None if row is None else _run(row)


def is_active(connection: sa.Connection, run: RunRow | None) -> bool:
    """What was submitted for the run has not ended."""
    if run is None or (run.job_id is None and run.array_id is None):
        return False
    mine = jobs.c.id == run.job_id if run.array_id is None else jobs.c.array_id == run.array_id
    return connection.execute(sa.select(jobs.c.id).where(mine, ACTIVE_JOBS).limit(1)).first() is not None


def _one(row: sa.Row[tuple[object, ...]] | None) -> ScheduleRow | None:
    return None if row is None else ScheduleRow(**row._mapping)


def _run(row: sa.Row[tuple[object, ...]]) -> RunRow:
    return RunRow(**{**row._mapping, "outcome": Outcome(row.outcome)})

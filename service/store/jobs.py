"""Jobs, their attempts and their events: what the life cycle decided is written here, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import sqlalchemy as sa

from remora.states import AttemptState, JobState
from service.queue.lifecycle import Decision
from service.queue.rows import AttemptRow, JobRow, NewEvent
from service.store.rows import columns, to_row, to_rows
from service.store.tables import ACTIVE_JOBS, LIVE_ATTEMPTS, UNRELEASED_ATTEMPTS, attempts, events, jobs

#: Jobs that a page reads together.
_TOGETHER = 10


def get_job(connection: sa.Connection, job_id: str) -> JobRow | None:
    """The job, or None."""
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).first()
    return None if row is None else to_row(JobRow, row)


def lock_job(connection: sa.Connection, job_id: str) -> JobRow | None:
    """The job, kept from changing by others until the transaction ends, or None."""
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id).with_for_update()).first()
    return None if row is None else to_row(JobRow, row)


def get_attempt(connection: sa.Connection, attempt_id: str) -> AttemptRow | None:
    """The attempt, or None; its job's lock protects it."""
    row = connection.execute(sa.select(attempts).where(attempts.c.id == attempt_id)).first()
    return None if row is None else to_row(AttemptRow, row)


def insert_job(connection: sa.Connection, decision: Decision) -> JobRow:
    """Store a new job with its first events."""
    job = _append(decision.job, decision.events)
    connection.execute(sa.insert(jobs).values(columns(job)))
    _insert_events(connection, decision.job, decision.events)
    return job


def save(
    connection: sa.Connection, before: JobRow, decision: Decision, attempt_before: AttemptRow | None = None
) -> JobRow:
    """Store what was decided about a locked job and its attempt; an attempt without a `before` is new."""
    after = decision.attempt
    if after is not None and attempt_before is None:
        connection.execute(sa.insert(attempts).values(columns(after)))
    elif after is not None and after != attempt_before:
        save_attempt(connection, after)
    if decision.job == before and not decision.events:
        return before
    job = replace(_append(decision.job, decision.events), version=before.version + 1)
    connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(columns(job)))
    _insert_events(connection, decision.job, decision.events)
    return job


def save_attempt(connection: sa.Connection, attempt: AttemptRow) -> None:
    """Store an attempt that exists already."""
    connection.execute(sa.update(attempts).where(attempts.c.id == attempt.id).values(columns(attempt)))


def _append(job: JobRow, new: Sequence[NewEvent]) -> JobRow:
    return replace(job, event_seq=job.event_seq + len(new))


def _insert_events(connection: sa.Connection, job: JobRow, new: Sequence[NewEvent]) -> None:
    if not new:
        return
    rows = [
        {
            "job_id": job.id,
            "seq": job.event_seq + offset,
            "at": event.at,
            "kind": event.kind,
            "message": event.message,
            "attempt": event.attempt,
            "data": dict(event.data),
        }
        for offset, event in enumerate(new, start=1)
    ]
    connection.execute(sa.insert(events), rows)


def count_active(connection: sa.Connection) -> int:
    """Jobs that wait or run."""
    return int(
        connection.execute(sa.select(sa.func.count()).select_from(jobs).where(ACTIVE_JOBS)).scalar_one()
    )


def queued_jobs(connection: sa.Connection, now: float, limit: int) -> list[JobRow]:
    """The next jobs in the order of `service.queue.ordering`, without those that back off until later."""
    statement = (
        sa.select(jobs)
        .where(ACTIVE_JOBS, jobs.c.state == JobState.QUEUED, jobs.c.not_before <= now)
        .order_by(jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
        .limit(limit)
    )
    return to_rows(JobRow, connection.execute(statement))


def queued_jobs_of_each(connection: sa.Connection, now: float, limit: int) -> list[JobRow]:
    """The same, so many of each project, so that no project's long line hides another's."""
    turn = (jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
    place = sa.func.row_number().over(partition_by=jobs.c.project, order_by=turn).label("place")
    placed = (
        sa.select(jobs, place)
        .where(ACTIVE_JOBS, jobs.c.state == JobState.QUEUED, jobs.c.not_before <= now)
        .subquery()
    )
    columns_of_jobs = [placed.c[column.name] for column in jobs.columns]
    statement = (
        sa.select(*columns_of_jobs)
        .where(placed.c.place <= limit)
        .order_by(placed.c.priority.desc(), placed.c.created_at, placed.c.id)
    )
    return to_rows(JobRow, connection.execute(statement))


def overdue_jobs(connection: sa.Connection, now: float) -> list[JobRow]:
    """Queued jobs that never had an attempt and waited longer than their owner allowed."""
    statement = sa.select(jobs).where(
        ACTIVE_JOBS,
        jobs.c.state == JobState.QUEUED,
        jobs.c.attempt == 0,
        jobs.c.wait_time_s.is_not(None),
        jobs.c.created_at + jobs.c.wait_time_s < now,
    )
    return to_rows(JobRow, connection.execute(statement))


def live_attempts(connection: sa.Connection) -> list[tuple[JobRow, AttemptRow]]:
    """Every attempt that has not ended, with its job."""
    found = to_rows(AttemptRow, connection.execute(sa.select(attempts).where(LIVE_ATTEMPTS)))
    if not found:
        return []
    statement = sa.select(jobs).where(jobs.c.id.in_([attempt.job_id for attempt in found]))
    by_id = {job.id: job for job in to_rows(JobRow, connection.execute(statement))}
    return [(by_id[attempt.job_id], attempt) for attempt in sorted(found, key=lambda attempt: attempt.id)]


def unreleased_attempts(connection: sa.Connection) -> list[AttemptRow]:
    """Ended attempts of which something may still run."""
    statement = sa.select(attempts).where(UNRELEASED_ATTEMPTS, attempts.c.state == AttemptState.ENDED)
    return to_rows(AttemptRow, connection.execute(statement))


def job_attempts(connection: sa.Connection, job_id: str) -> list[AttemptRow]:
    """All attempts of a job, first one first."""
    statement = sa.select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.attempt)
    return to_rows(AttemptRow, connection.execute(statement))


def page_of_jobs(
    connection: sa.Connection,
    *,
    states: Sequence[JobState],
    project: str | None,
    before: str | None,
    limit: int,
) -> Iterator[JobRow]:
    """Jobs newest first; `before` is the id of the last job of the page before.

    They are read as they are asked for, while the transaction lasts: specifications may be large.
    """
    statement = sa.select(jobs).order_by(jobs.c.id.desc()).limit(limit)
    if states:
        statement = statement.where(jobs.c.state.in_(states))
    if project is not None:
        statement = statement.where(jobs.c.project == project)
    if before is not None:
        statement = statement.where(jobs.c.id < before)
    with connection.execute(statement.execution_options(yield_per=_TOGETHER)) as found:
        for row in found:
            yield to_row(JobRow, row)

"""Jobs, their attempts and their events: what the life cycle decided is written here, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from remora.states import AttemptState, JobState
from service.queue.lifecycle import Decision
from service.queue.rows import AttemptRow, JobRow, NewEvent
from service.store.rows import (
    changing_columns,
    columns,
    in_parts,
    insert_into,
    to_row,
    to_rows,
    update_of,
)
from service.store.tables import ACTIVE_JOBS, LIVE_ATTEMPTS, UNRELEASED_ATTEMPTS, attempts, events, jobs

_LIVE = sa.select(attempts).where(LIVE_ATTEMPTS)
# In the inner selection `state` is the attempt's.
_JOBS_OF_LIVE = sa.select(jobs).where(jobs.c.id.in_(sa.select(attempts.c.job_id).where(LIVE_ATTEMPTS)))


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


@dataclass(frozen=True)
class Change:
    """What was decided about a locked job and its attempt; an attempt without a `before` is new."""

    before: JobRow
    decision: Decision
    attempt_before: AttemptRow | None = None


#: What may be decided about an attempt and its job, both locked; None: nothing.
Decide = Callable[[JobRow, AttemptRow], Decision | None]


@dataclass(frozen=True)
class Changed:
    """Attempts with their jobs after a transaction, and those about which nothing could be decided, by attempt id."""

    pairs: dict[str, tuple[JobRow, AttemptRow]] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)


def lock_jobs(connection: sa.Connection, job_ids: Iterable[str]) -> dict[str, JobRow]:
    """Those of the jobs that exist, by id, kept from changing by others until the transaction ends.

    They are locked in the order of their ids, as everybody does who locks several, so that no two wait for each other.
    """
    found: dict[str, JobRow] = {}
    for ids in in_parts(sorted(job_ids)):
        statement = sa.select(jobs).where(jobs.c.id.in_(ids)).order_by(jobs.c.id).with_for_update()
        found.update({job.id: job for job in to_rows(JobRow, connection.execute(statement))})
    return found


def lock_attempts(
    connection: sa.Connection, attempt_ids: Iterable[str]
) -> dict[str, tuple[JobRow, AttemptRow]]:
    """Those of the attempts that exist, by id, with their jobs, which are locked."""
    parts = in_parts(sorted(attempt_ids))
    job_ids: list[str] = []
    for ids in parts:
        job_ids += connection.execute(sa.select(attempts.c.job_id).where(attempts.c.id.in_(ids))).scalars()
    locked = lock_jobs(connection, set(job_ids))
    found: dict[str, tuple[JobRow, AttemptRow]] = {}
    for ids in parts:
        rows = connection.execute(sa.select(attempts).where(attempts.c.id.in_(ids)))
        found.update({one.id: (locked[one.job_id], one) for one in to_rows(AttemptRow, rows)})
    return found


def change_attempts(connection: sa.Connection, decisions: Mapping[str, Decide]) -> Changed:
    """Decide about each of these attempts by its id and store it, in as many statements for one as for hundreds.

    One about which nothing can be decided, because that raises, is left as it was.
    """
    changed, changes = Changed(), []
    for attempt_id, (job, attempt) in lock_attempts(connection, decisions).items():
        try:
            decision = decisions[attempt_id](job, attempt)
        except Exception as error:  # its fault alone
            changed.failed[attempt_id] = error
            continue
        changed.pairs[attempt_id] = (job, attempt)
        if decision is not None:
            changes.append(Change(job, decision, attempt))
    for change, job in zip(changes, save_all(connection, changes), strict=True):
        after = change.decision.attempt or change.attempt_before
        if after is not None:
            changed.pairs[after.id] = (job, after)
    return changed


def insert_job(connection: sa.Connection, decision: Decision) -> JobRow:
    """Store a new job with its first events."""
    job = _append(decision.job, decision.events)
    connection.execute(insert_into(jobs), columns(job))
    _insert_events(connection, _event_rows(decision.job, decision.events))
    return job


def save(
    connection: sa.Connection, before: JobRow, decision: Decision, attempt_before: AttemptRow | None = None
) -> JobRow:
    """Store what was decided about a locked job and its attempt; an attempt without a `before` is new."""
    (job,) = save_all(connection, [Change(before, decision, attempt_before)])
    return job


def save_all(connection: sa.Connection, changes: Sequence[Change]) -> list[JobRow]:
    """Store what was decided about locked jobs, each of which is named once; the jobs afterwards, in that order."""
    new, old, moved, told, after = [], [], [], [], []
    for change in changes:
        before, decision, attempt = change.before, change.decision, change.decision.attempt
        if attempt is not None and change.attempt_before is None:
            new.append(columns(attempt))
        elif attempt is not None and attempt != change.attempt_before:
            old.append(attempt)
        if decision.job == before and not decision.events:
            after.append(before)
            continue
        job = replace(_append(decision.job, decision.events), version=before.version + 1)
        moved.append(job)
        told += _event_rows(decision.job, decision.events)
        after.append(job)
    if new:
        connection.execute(insert_into(attempts), new)
    if old:
        connection.execute(update_of(attempts), [changing_columns(attempts, one) for one in old])
    if moved:
        connection.execute(update_of(jobs), [changing_columns(jobs, one) for one in moved])
    _insert_events(connection, told)
    return after


def save_attempt(connection: sa.Connection, attempt: AttemptRow) -> None:
    """Store an attempt that exists already."""
    connection.execute(update_of(attempts), [changing_columns(attempts, attempt)])


def _append(job: JobRow, new: Sequence[NewEvent]) -> JobRow:
    return replace(job, event_seq=job.event_seq + len(new)) if new else job


def _event_rows(job: JobRow, new: Sequence[NewEvent]) -> list[dict[str, Any]]:
    return [
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


def _insert_events(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert_into(events), rows)


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
    found = to_rows(AttemptRow, connection.execute(_LIVE))
    if not found:
        return []
    by_id = {job.id: job for job in to_rows(JobRow, connection.execute(_JOBS_OF_LIVE))}
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
) -> list[JobRow]:
    """Jobs newest first; `before` is the id of the last job of the page before."""
    statement = sa.select(jobs).order_by(jobs.c.id.desc()).limit(limit)
    if states:
        statement = statement.where(jobs.c.state.in_(states))
    if project is not None:
        statement = statement.where(jobs.c.project == project)
    if before is not None:
        statement = statement.where(jobs.c.id < before)
    return to_rows(JobRow, connection.execute(statement))

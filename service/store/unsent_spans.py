"""Attempts of which new spans may be made, and until when spans of each were sent."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from service.queue.rows import AttemptRow, JobRow, PhaseRow
from service.queue.spans import MOST_PHASES, AttemptFacts, Wait, traced_until, wait_of
from service.store import jobs as job_store
from service.store.rows import to_rows
from service.store.tables import LIVE_ATTEMPTS, UNTRACED_ATTEMPTS, attempts, events, phases

#: The newest events of a job that are read; what it waited for is among the last ones before its attempt.
_MOST_EVENTS = 500

_ENDED = (
    sa.select(attempts)
    .where(UNTRACED_ATTEMPTS, attempts.c.ended_at >= sa.bindparam("since"))
    .order_by(attempts.c.ended_at)
    .limit(sa.bindparam("most"))
)
_BEGUN = (
    sa.select(attempts)
    .where(
        LIVE_ATTEMPTS,
        attempts.c.trained_at.is_not(None),
        attempts.c.phase_at >= sa.bindparam("since"),
        sa.or_(attempts.c.traced_at.is_(None), attempts.c.traced_at < attempts.c.phase_at),
    )
    .order_by(attempts.c.phase_at)
    .limit(sa.bindparam("most"))
)


def untraced(connection: sa.Connection, since: float, most: int) -> list[AttemptFacts]:
    """At most twice `most` attempts that have done something since then, in seconds since 1970, and were not traced."""
    asked = {"since": since, "most": most}
    found = [
        *to_rows(AttemptRow, connection.execute(_ENDED, asked)),
        *to_rows(AttemptRow, connection.execute(_BEGUN, asked)),
    ]
    jobs = job_store.find_jobs(connection, {one.job_id for one in found})
    return [_facts(connection, jobs[one.job_id], one) for one in found]


def mark(connection: sa.Connection, sent: Sequence[AttemptRow]) -> None:
    """All spans were sent that could be made of these attempts as they were then."""
    # Their jobs are locked first, as in all code that changes attempts.
    there = job_store.lock_attempts(connection, [one.id for one in sent])
    for one in sent:
        if one.id in there:
            done = {"traced_at": traced_until(one), "is_traced": one.ended_at is not None}
            connection.execute(sa.update(attempts).where(attempts.c.id == one.id).values(done))


def _facts(connection: sa.Connection, job: JobRow, attempt: AttemptRow) -> AttemptFacts:
    is_first = attempt.traced_at is None
    return AttemptFacts(
        job=job,
        attempt=attempt,
        waits_since=_waits_since(connection, job, attempt) if is_first else attempt.created_at,
        waits=_waits(connection, attempt) if is_first else (),
        phases=_phases(connection, attempt),
    )


def _waits_since(connection: sa.Connection, job: JobRow, attempt: AttemptRow) -> float:
    before = attempts.c.job_id == job.id, attempts.c.attempt == attempt.attempt - 1
    ended_at: float | None = connection.execute(sa.select(attempts.c.ended_at).where(*before)).scalar()
    return job.created_at if ended_at is None else ended_at


def _waits(connection: sa.Connection, attempt: AttemptRow) -> Sequence[Wait]:
    newest = (
        sa.select(events.c.seq, events.c.kind, events.c.at, events.c.data)
        .where(events.c.job_id == attempt.job_id, events.c.at <= attempt.created_at)
        .order_by(events.c.seq.desc())
        .limit(_MOST_EVENTS)
    )
    rows = reversed(connection.execute(newest).all())
    found = (wait_of(row.kind, row.at, row.data.get("reason")) for row in rows)
    return [one for one in found if one is not None]


def _phases(connection: sa.Connection, attempt: AttemptRow) -> list[PhaseRow]:
    """From the one that was open when it was traced last, up to the one after the last one that has a span."""
    statement = (
        sa.select(phases)
        .where(
            phases.c.job_id == attempt.job_id,
            phases.c.attempt == attempt.attempt,
            phases.c.began_at >= (attempt.traced_at or 0.0),
            phases.c.number <= MOST_PHASES + 1,
        )
        .order_by(phases.c.number)
    )
    return [PhaseRow(**row._mapping) for row in connection.execute(statement)]

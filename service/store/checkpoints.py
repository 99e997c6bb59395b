"""The lists of checkpoints of jobs, and how they are made to agree with what the storage has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from remora.states import AttemptState
from service.queue import lifecycle
from service.queue.driver_records import CheckpointListRecord, ListedCheckpoint
from service.queue.lifecycle import Decision
from service.queue.rows import AttemptRow, JobRow, NewEvent
from service.store import jobs
from service.store.rows import in_parts, to_rows, upsert
from service.store.tables import UNLISTED_ATTEMPTS, UNRELEASED_ATTEMPTS, attempts, checkpoints
from service.store.tables import jobs as jobs_table

_REMOVE = sa.delete(checkpoints).where(
    checkpoints.c.job_id == sa.bindparam("of"), checkpoints.c.step == sa.bindparam("at")
)


def remove(connection: sa.Connection, places: Sequence[tuple[str, int]]) -> None:
    """Take checkpoints, by job and step, off the lists."""
    if places:
        connection.execute(_REMOVE, [{"of": job_id, "at": step} for job_id, step in places])


def add(connection: sa.Connection, rows: list[dict[str, object]]) -> None:
    """Put checkpoints on the lists, in the place of others of the same steps."""
    upsert(connection, checkpoints, rows, replace=True)


def newest_steps(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, int]:
    """The newest step on the list of each of these jobs; jobs without one are missing."""
    found: dict[str, int] = {}
    for ids in in_parts(job_ids):
        newest = sa.select(checkpoints.c.job_id, sa.func.max(checkpoints.c.step).label("step"))
        rows = connection.execute(newest.where(checkpoints.c.job_id.in_(ids)).group_by(checkpoints.c.job_id))
        found.update((row.job_id, row.step) for row in rows)
    return found


def replace_lists(
    connection: sa.Connection, lists: Mapping[str, tuple[AttemptRow, CheckpointListRecord]], now: float
) -> dict[str, list[NewEvent]]:
    """Make the lists of these jobs, by id, what their storages have; returns events about differences, by job id."""
    news: dict[str, list[NewEvent]] = {job_id: [] for job_id in lists}
    known: dict[str, dict[int, str]] = {job_id: {} for job_id in lists}
    for ids in in_parts(list(lists)):
        columns = checkpoints.c.job_id, checkpoints.c.step, checkpoints.c.location
        for row in connection.execute(sa.select(*columns).where(checkpoints.c.job_id.in_(ids))):
            known[row.job_id][row.step] = row.location
    added: list[dict[str, object]] = []
    gone: list[tuple[str, int]] = []
    for job_id, (attempt, listed) in lists.items():
        there = {one.step: one for one in listed.checkpoints}
        for step in sorted(known[job_id].keys() - there.keys()):
            gone.append((job_id, step))
            news[job_id].append(_missing(attempt, step, now))
        for step, one in sorted(there.items()):
            if known[job_id].get(step) != one.location:
                # The plan reckons from it what a move would lose.
                committed_at = min(one.committed_at, now)
                added.append({"job_id": job_id, **one.model_dump(), "committed_at": committed_at})
                news[job_id].append(_found(attempt, one, now))
    remove(connection, gone)
    add(connection, added)
    return news


def _missing(attempt: AttemptRow, step: int, now: float) -> NewEvent:
    return NewEvent(
        at=now,
        kind="checkpoint.deleted",
        message=f"the checkpoint of step {step} is not in the storage any more, or not all of it",
        attempt=attempt.attempt,
        data={"step": step, "reason": "missing"},
    )


def _found(attempt: AttemptRow, one: ListedCheckpoint, now: float) -> NewEvent:
    return NewEvent(
        at=now,
        kind="checkpoint.committed",
        message=f"the state of step {one.step} is saved, as was found in the storage",
        attempt=attempt.attempt,
        data={"step": one.step, "size_bytes": one.size_bytes, "location": one.location},
    )


@dataclass(frozen=True)
class EndedAttempts:
    """Attempts that have ended and are not settled yet."""

    #: Processes of them may still run.
    unreleased: list[AttemptRow]
    #: No process runs, and list and storage were not compared since; newest first, with their jobs.
    unlisted: list[tuple[JobRow, AttemptRow]]


def ended_attempts(connection: sa.Connection, cluster: str, most_unlisted: int) -> EndedAttempts:
    """Those attempts, in one question while none of them is unlisted."""
    mine = attempts.c.cluster == cluster
    unreleased = sa.select(attempts).where(mine, UNRELEASED_ATTEMPTS, attempts.c.state == AttemptState.ENDED)
    newest = attempts.c.id.desc()
    unlisted = (
        sa.select(attempts).where(mine, UNLISTED_ATTEMPTS).order_by(newest).limit(most_unlisted).subquery()
    )
    found = to_rows(AttemptRow, connection.execute(sa.union_all(unreleased, sa.select(unlisted))))
    listless = [one for one in found if one.released_at is not None]
    by_id: dict[str, JobRow] = {}
    for ids in in_parts(sorted({one.job_id for one in listless})):
        rows = connection.execute(sa.select(jobs_table).where(jobs_table.c.id.in_(ids)))
        by_id.update({job.id: job for job in to_rows(JobRow, rows)})
    return EndedAttempts(
        unreleased=[one for one in found if one.released_at is None],
        unlisted=[(by_id[one.job_id], one) for one in listless],
    )


def settle(connection: sa.Connection, found: Mapping[str, CheckpointListRecord | None], now: float) -> None:
    """Make lists what was found in the storages after attempts, by their ids, had ended; in one transaction for all.

    Nothing is changed for an attempt when None was found, when a newer one exists, whose driver reports the list, or
    when retention has emptied the job meanwhile.  Of several attempts of one job the newest is settled, and the others
    the next time.
    """
    pairs: dict[str, tuple[JobRow, AttemptRow]] = {}
    for job, attempt in jobs.lock_attempts(connection, found).values():
        known = pairs.get(job.id)
        if attempt.listed_at is None and (known is None or known[1].attempt < attempt.attempt):
            pairs[job.id] = job, attempt
    lists = {
        job.id: (attempt, listed)
        for job, attempt in pairs.values()
        if (listed := found[attempt.id]) is not None and _counts(job, attempt)
    }
    news = replace_lists(connection, lists, now)
    newest = newest_steps(connection, list(lists))
    changes = []
    for job, attempt in pairs.values():
        after = replace(job, checkpoint_step=newest.get(job.id)) if job.id in lists else job
        events = tuple(news.get(job.id, ()))
        changes.append(jobs.Change(job, Decision(after, lifecycle.listed(attempt, now), events), attempt))
    jobs.save_all(connection, changes)


def _counts(job: JobRow, attempt: AttemptRow) -> bool:
    return job.attempt == attempt.attempt and job.pruned_at is None

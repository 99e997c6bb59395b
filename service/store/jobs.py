"""Jobs, their attempts and their events: what the life cycle decided is written here, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from cluster.scheduling.queue_order import WAITS_FOR_NODES, WAITS_IN_QUEUE, queue_key
from remora.states import AttemptState, JobState
from service.queue.alerts import Fact, facts_of
from service.queue.lifecycle import Decision
from service.queue.rows import AttemptRow, JobRow, NewEvent
from service.store import alert_facts, arrays, dependencies, labels
from service.store.labels import Label
from service.store.project_lists import newest_of
from service.store.rows import (
    changing_columns,
    columns,
    in_parts,
    insert_into,
    to_row,
    to_rows,
    update_of,
)
from service.store.tables import (
    ACTIVE_JOBS,
    LIVE_ATTEMPTS,
    PAUSED_JOBS,
    QUEUED_AGAIN,
    QUEUED_JOBS,
    UNRELEASED_ATTEMPTS,
    attempts,
    events,
    jobs,
    phases,
)
from service.store.totals import Counted

_JOB = sa.select(jobs).where(jobs.c.id == sa.bindparam("id"))
_LOCKED_JOB = _JOB.with_for_update()
_ACTIVE = sa.select(sa.func.count()).select_from(jobs).where(ACTIVE_JOBS)
_ACTIVE_OF_PROJECT = _ACTIVE.where(jobs.c.project == sa.bindparam("project"))
_IS_LIVE = attempts.c.cluster == sa.bindparam("of"), LIVE_ATTEMPTS
_LIVE = sa.select(attempts).where(*_IS_LIVE)
# In the inner selection `state` is the attempt's.
_JOBS_OF_LIVE = sa.select(jobs).where(jobs.c.id.in_(sa.select(attempts.c.job_id).where(*_IS_LIVE)))


def _in_line(index: str, words: str, rest: str = "") -> dict[str, sa.TextClause]:
    """A statement about jobs that wait, by dialect: left alone, SQLite takes an index by their state, and sorts."""
    text = f"SELECT {words} FROM jobs {{by}} WHERE state = 'queued' AND {rest}"  # noqa: S608
    return {
        "sqlite": sa.text(text.format(by=f"INDEXED BY {index}")),
        "postgresql": sa.text(text.format(by="")),
    }


def _rows_in_line(index: str, rest: str) -> dict[str, sa.TextualSelect]:
    words = ", ".join(column.name for column in jobs.columns)
    return {name: text.columns(*jobs.columns) for name, text in _in_line(index, words, rest).items()}


_ORDER = "priority DESC, created_at, id"
_NEXT = _rows_in_line("ix_jobs_line", f"cluster = :of AND not_before <= :now ORDER BY {_ORDER} LIMIT :most")
_OVERDUE = _rows_in_line(
    "ix_jobs_overdue",
    "cluster = :of AND attempt = 0 AND wait_time_s IS NOT NULL AND (waits_from + wait_time_s) < :now",
)
# How many of those ahead of it wait in the queue too.
_AHEAD = {
    in_projects: _in_line(
        "ix_jobs_line_of_project" if in_projects else "ix_jobs_line",
        "id, sum(CASE WHEN reason IN ('waiting_for_turn', 'waiting_for_retry') THEN 1 ELSE 0 END) OVER ("
        f"PARTITION BY cluster{', project' if in_projects else ''} "
        f"ORDER BY {_ORDER} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead",
        "not_before <= :now",
    )
    for in_projects in (False, True)
}
# Asked for only while the message of the job that is next may say so; others of that reason fit nowhere.
_NEXT_WAITS_FOR_NODES = (
    sa.select(jobs.c.id)
    .where(
        QUEUED_JOBS,
        jobs.c.cluster == sa.bindparam("of"),
        jobs.c.reason == "waiting_for_nodes",
        jobs.c.message.startswith(WAITS_FOR_NODES),
    )
    .order_by(jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
    .limit(1)
)
# One step through the index for each project, and then as many as are wanted of it: a long line costs nothing.
_PROJECTS = """
WITH RECURSIVE one (project) AS (
  SELECT min(project) FROM jobs WHERE state = 'queued' AND cluster = :of
  UNION ALL
  SELECT (SELECT min(project) FROM jobs WHERE state = 'queued' AND cluster = :of AND project > one.project)
  FROM one WHERE one.project IS NOT NULL
)"""
_OF_PROJECT = """
  SELECT id FROM jobs WHERE state = 'queued' AND cluster = :of AND project = one.project AND not_before <= :now
  ORDER BY priority DESC, created_at, id LIMIT :most"""
_FIRST_OF_EACH = {
    "sqlite": sa.text(f"{_PROJECTS} SELECT j.id FROM one JOIN jobs AS j ON j.id IN ({_OF_PROJECT})"),  # noqa: S608
    "postgresql": sa.text(f"{_PROJECTS} SELECT j.id FROM one CROSS JOIN LATERAL ({_OF_PROJECT}) AS j"),  # noqa: S608
}

#: Jobs that a page reads together.
_TOGETHER = 10


def get_job(connection: sa.Connection, job_id: str) -> JobRow | None:
    """The job, or None."""
    row = connection.execute(_JOB, {"id": job_id}).first()
    return None if row is None else to_row(JobRow, row)


def lock_job(connection: sa.Connection, job_id: str) -> JobRow | None:
    """The job, kept from changing by others until the transaction ends, or None."""
    row = connection.execute(_LOCKED_JOB, {"id": job_id}).first()
    return None if row is None else to_row(JobRow, row)


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


def find_jobs(connection: sa.Connection, job_ids: Iterable[str]) -> dict[str, JobRow]:
    """Those of the jobs that exist, by id, as they are now."""
    found: dict[str, JobRow] = {}
    for ids in in_parts(sorted(job_ids)):
        rows = to_rows(JobRow, connection.execute(sa.select(jobs).where(jobs.c.id.in_(ids))))
        found.update({job.id: job for job in rows})
    return found


def unknown_attempts(connection: sa.Connection, attempt_ids: Iterable[str]) -> list[str]:
    """Those of these ids that no attempt has."""
    asked = sorted(set(attempt_ids))
    known: set[str] = set()
    for ids in in_parts(asked):
        known.update(connection.execute(sa.select(attempts.c.id).where(attempts.c.id.in_(ids))).scalars())
    return [attempt_id for attempt_id in asked if attempt_id not in known]


def lock_jobs(connection: sa.Connection, job_ids: Iterable[str]) -> dict[str, JobRow]:
    """Those of the jobs that exist, by id, kept from changing by others until the transaction ends.

    They are locked in the order of their ids, as in all code that locks several: no two transactions wait for each
    other.
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
    (job,) = insert_jobs(connection, [decision])
    return job


def insert_jobs(connection: sa.Connection, decisions: Sequence[Decision]) -> list[JobRow]:
    """Store new jobs with their first events."""
    new = [_append(decision.job, decision.events) for decision in decisions]
    connection.execute(insert_into(jobs), [columns(job) for job in new])
    labels.insert(connection, {job.id: job.labels for job in new})
    _insert_events(
        connection, [row for decision in decisions for row in _event_rows(decision.job, decision.events)]
    )
    alert_facts.record(connection, [fact for decision in decisions for fact in _facts(decision)])
    return new


def save(
    connection: sa.Connection, before: JobRow, decision: Decision, attempt_before: AttemptRow | None = None
) -> JobRow:
    """Store what was decided about a locked job and its attempt; an attempt without a `before` is new."""
    (job,) = save_all(connection, [Change(before, decision, attempt_before)])
    return job


def save_all(connection: sa.Connection, changes: Sequence[Change]) -> list[JobRow]:
    """Store what was decided about locked jobs, each of which is named once; the jobs afterwards, in that order."""
    new, old, moved, event_rows, after = [], [], [], [], []
    begun: list[dict[str, Any]] = []
    ends, waited, in_arrays = [], [], []
    facts: list[Fact] = []
    counted = Counted()
    for change in changes:
        before, decision, attempt = change.before, change.decision, change.decision.attempt
        counted.note(before, decision.job, change.attempt_before, attempt)
        if attempt is not None and change.attempt_before is None:
            new.append(columns(attempt))
        elif attempt is not None and attempt != change.attempt_before:
            old.append(attempt)
        begun += [asdict(phase) for phase in decision.phases]
        if decision.job == before and not decision.events:
            after.append(before)
            continue
        job = replace(_append(decision.job, decision.events), version=before.version + 1)
        if job.state.is_terminal and not before.state.is_terminal:
            ends.append((job.id, job.state))
            waited += [job.id] if job.spec.get("after") else []
        if job.array_id is not None and _frees_a_place(before, job):
            in_arrays.append(job.array_id)
        moved.append(job)
        event_rows += _event_rows(decision.job, decision.events)
        facts += _facts(decision)
        after.append(job)
    if new:
        connection.execute(insert_into(attempts), new)
    if old:
        connection.execute(update_of(attempts), [changing_columns(attempts, one) for one in old])
    if moved:
        connection.execute(update_of(jobs), [changing_columns(jobs, one) for one in moved])
    _insert_events(connection, event_rows)
    alert_facts.record(connection, facts)
    if begun:
        connection.execute(insert_into(phases), begun)
    dependencies.note_ends(connection, ends, waited)
    arrays.note(connection, in_arrays)
    counted.write(connection)
    return after


def _frees_a_place(before: JobRow, after: JobRow) -> bool:
    """Another job of the array may follow, or this one may go on."""
    has_left = after.state.is_terminal or after.pause_requested_at is not None
    return has_left != (before.state.is_terminal or before.pause_requested_at is not None) or (
        after.state is JobState.PAUSED and before.state is not JobState.PAUSED
    )


def save_sizes(connection: sa.Connection, job: JobRow) -> None:
    """Store how many workers a locked job may have now, beside what `save` stores of it."""
    sizes = {"spec": job.spec, "min_workers": job.min_workers, "max_workers": job.max_workers}
    connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(sizes))


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


def _facts(decision: Decision) -> list[Fact]:
    return facts_of(decision.job, decision.job.event_seq + 1, decision.events)


def _insert_events(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert_into(events), rows)


def count_active(connection: sa.Connection, project: str | None = None) -> int:
    """Jobs that wait or run, of all projects or of one."""
    if project is None:
        return int(connection.execute(_ACTIVE).scalar_one())
    return int(connection.execute(_ACTIVE_OF_PROJECT, {"project": project}).scalar_one())


def count_active_of_each(connection: sa.Connection, projects: Collection[str]) -> dict[str, int]:
    """The same of each of these projects; one without any is missing."""
    found: dict[str, int] = {}
    for names in in_parts(sorted(projects)):
        each = (
            sa.select(jobs.c.project, sa.func.count().label("active"))
            .where(ACTIVE_JOBS, jobs.c.project.in_(names))
            .group_by(jobs.c.project)
        )
        found |= {row.project: row.active for row in connection.execute(each)}
    return found


def active_projects(connection: sa.Connection, after: str, limit: int) -> list[str]:
    """Projects with jobs that wait or run, by name: the next ones after `after`."""
    names = sa.select(jobs.c.project).where(ACTIVE_JOBS, jobs.c.project > after).distinct()
    return list(connection.execute(names.order_by(jobs.c.project).limit(limit)).scalars())


def queued_jobs(connection: sa.Connection, cluster: str, now: float, limit: int) -> list[JobRow]:
    """The next jobs in the order of `cluster.scheduling.queue_order`, without those that back off until later."""
    values = {"of": cluster, "now": now, "most": limit}
    return to_rows(JobRow, connection.execute(_NEXT[connection.dialect.name], values))


def queued_jobs_of_each(connection: sa.Connection, cluster: str, now: float, limit: int) -> list[JobRow]:
    """Up to this number of jobs of each project, in queue order, so that no project's long queue hides another's."""
    first = _FIRST_OF_EACH[connection.dialect.name]
    ids = list(connection.execute(first, {"of": cluster, "now": now, "most": limit}).scalars())
    found: list[JobRow] = []
    for part in in_parts(ids):
        found += to_rows(JobRow, connection.execute(sa.select(jobs).where(jobs.c.id.in_(part))))
    return sorted(found, key=queue_key)


def queued_among(connection: sa.Connection, job_ids: Iterable[str]) -> list[JobRow]:
    """Those of the jobs that wait, whether they may start yet or not."""
    found: list[JobRow] = []
    for ids in in_parts(sorted(job_ids)):
        statement = sa.select(jobs).where(jobs.c.id.in_(ids), jobs.c.state == JobState.QUEUED)
        found += to_rows(JobRow, connection.execute(statement))
    return found


def overdue_jobs(connection: sa.Connection, cluster: str, now: float) -> list[JobRow]:
    """Queued jobs that never had an attempt and waited longer than their owner allowed."""
    values = {"of": cluster, "now": now}
    return to_rows(JobRow, connection.execute(_OVERDUE[connection.dialect.name], values))


def jobs_ahead(
    connection: sa.Connection, job_ids: Sequence[str], now: float, *, in_projects: bool
) -> dict[str, int]:
    """How many waiting jobs of its cluster are ahead of each of these; of its own project with `in_projects`.

    Jobs that block no other do not count: those that wait for a quota, and those that no pool could ever hold.
    """
    wanted = set(job_ids)
    rows = connection.execute(_AHEAD[in_projects][connection.dialect.name], {"now": now})
    found = {job_id: int(ahead or 0) for job_id, ahead in rows.all() if job_id in wanted}
    if in_projects:
        return found
    clusters: dict[str, str] = {}
    for ids in in_parts(sorted(found)):
        theirs = connection.execute(sa.select(jobs.c.id, jobs.c.cluster).where(jobs.c.id.in_(ids)))
        clusters.update({row.id: row.cluster for row in theirs})
    held_up = {
        one
        for one in set(clusters.values())
        if connection.execute(_NEXT_WAITS_FOR_NODES, {"of": one}).first() is not None
    }
    # The job that waits for nodes is before all of its cluster that wait in the queue.
    return {job_id: count + (clusters.get(job_id) in held_up) for job_id, count in found.items()}


def live_attempts(connection: sa.Connection, cluster: str) -> list[tuple[JobRow, AttemptRow]]:
    """Every attempt that has not ended, with its job."""
    found = to_rows(AttemptRow, connection.execute(_LIVE, {"of": cluster}))
    if not found:
        return []
    by_id = {job.id: job for job in to_rows(JobRow, connection.execute(_JOBS_OF_LIVE, {"of": cluster}))}
    return [(by_id[attempt.job_id], attempt) for attempt in sorted(found, key=lambda attempt: attempt.id)]


def paused_jobs(connection: sa.Connection, cluster: str) -> dict[str, str | None]:
    """The message of each job that a budget keeps from running, and not its owner, by its id."""
    is_budgets = PAUSED_JOBS, jobs.c.cluster == cluster, jobs.c.pause_requested_at.is_(None)
    statement = sa.select(jobs.c.id, jobs.c.message).where(*is_budgets).order_by(jobs.c.id)
    return {row.id: row.message for row in connection.execute(statement)}


def queued_again(connection: sa.Connection, cluster: str, limit: int) -> list[str]:
    """Ids of jobs that wait and had begun before, at most `limit`."""
    statement = (
        sa.select(jobs.c.id).where(QUEUED_AGAIN, jobs.c.cluster == cluster).order_by(jobs.c.id).limit(limit)
    )
    return list(connection.execute(statement).scalars())


def unreleased_attempts(connection: sa.Connection, cluster: str) -> list[AttemptRow]:
    """Ended attempts of which something may still run."""
    mine = UNRELEASED_ATTEMPTS, attempts.c.cluster == cluster
    statement = sa.select(attempts).where(*mine, attempts.c.state == AttemptState.ENDED)
    return to_rows(AttemptRow, connection.execute(statement))


def job_attempts(connection: sa.Connection, job_id: str) -> list[AttemptRow]:
    """All attempts of a job, first one first."""
    statement = sa.select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.attempt)
    return to_rows(AttemptRow, connection.execute(statement))


def page_of_jobs(
    connection: sa.Connection,
    *,
    states: Sequence[JobState],
    projects: Collection[str] | None,
    before: str | None,
    limit: int,
    having: Sequence[Label] = (),
    array_id: str | None = None,
) -> Iterator[JobRow]:
    """Jobs newest first, those with all labels of `having`; `before` is the id of the last job of the page before.

    They are of one of the `projects`; None: of any.

    They are read as they are asked for, while the transaction lasts: specifications may be large.
    """
    statement = _page(sa.select(jobs), states, projects, before, limit, having, array_id)
    with connection.execute(statement.execution_options(yield_per=_TOGETHER)) as found:
        for row in found:
            yield to_row(JobRow, row)


def waiting_on_page(
    connection: sa.Connection,
    *,
    states: Sequence[JobState],
    projects: Collection[str] | None,
    before: str | None,
    limit: int,
    having: Sequence[Label] = (),
    array_id: str | None = None,
) -> list[str]:
    """Ids of the jobs on that page that wait in the queue; nothing else of them is read."""
    page = _page(
        sa.select(jobs.c.id, jobs.c.state, jobs.c.message), states, projects, before, limit, having, array_id
    ).subquery()
    waiting = page.c.state == JobState.QUEUED, page.c.message == WAITS_IN_QUEUE
    return list(connection.execute(sa.select(page.c.id).where(*waiting)).scalars())


def _page(
    statement: sa.Select[Any],
    states: Sequence[JobState],
    projects: Collection[str] | None,
    before: str | None,
    limit: int,
    having: Sequence[Label],
    array_id: str | None,
) -> sa.Select[Any]:
    conditions = [jobs.c.delete_requested_at.is_(None), *labels.have_all(having)]
    if array_id is not None:
        conditions.append(jobs.c.array_id == array_id)
    if states:
        conditions.append(jobs.c.state.in_(states))
    if before is not None:
        conditions.append(jobs.c.id < before)
    return newest_of(statement, jobs, projects, conditions, limit)

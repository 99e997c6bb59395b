"""What is old is deleted, in steps that are small enough to be one transaction among others.

What something needs stays: jobs that wait or run, attempts of which something may still run, answers to requests that
may come again, the rows of jobs that left checkpoints, outputs or models behind, and all that the bill is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from service.queue.intake import Kept
from service.store import kept_amounts
from service.store.arrays import forget_empty
from service.store.rows import in_parts
from service.store.tables import (
    ACTIVE_JOBS,
    attempts,
    checkpoints,
    cluster_events,
    dependencies,
    events,
    idempotency,
    job_labels,
    jobs,
    loads,
    log_lines,
    metrics,
    models,
    node_events,
    nodes,
    outputs,
    phases,
    profiles,
    shell_pieces,
    shells,
    uses,
)
from service.store.totals import Counted

#: Rows that one step deletes: some hundredths of a second.
ROWS = 2000
#: Seconds for which gone nodes are kept at least: the planner remembers failures for some hours.
_NODES_S = 7 * 86_400.0
#: Jobs, nodes and events of the cluster in one step.
_AT_ONCE = 20


@dataclass(frozen=True)
class Limits:
    """What is kept."""

    #: Seconds since the end of a job or of a node, since an event of the cluster, or since a bundle was used.
    age_s: float
    #: Ended jobs that are kept at most, the newest ones.
    jobs: int
    #: Log lines, and events, of one job that are kept at most, the newest ones.
    rows: int


def limits_of(days: float, most_jobs: int, most_rows: int) -> Limits | None:
    """What the settings keep; None: everything."""
    if days == 0:
        return None
    return Limits(age_s=days * 86_400.0, jobs=most_jobs, rows=most_rows)


@dataclass(frozen=True)
class Step:
    """What one step deleted; rows of jobs, of nodes, and of everything that belonged to them."""

    jobs: int = 0
    nodes: int = 0
    rows: int = 0
    #: There is more.
    has_more: bool = False


def prune(connection: sa.Connection, limits: Limits, now: float, most: int) -> Step:
    """Delete about `most` rows of what is older than the limits say, oldest first."""
    deleted, rows = 0, 0
    old = _old_jobs(connection, limits, now)
    for job_id in old:
        if rows >= most:
            return Step(deleted, 0, rows, has_more=True)
        removed, is_done = empty_job(connection, job_id, most - rows)
        rows += removed
        if not is_done:
            return Step(deleted, 0, rows, has_more=True)
        deleted += _end(connection, job_id, now)
    more_rows, is_cut = _cut(connection, limits, most - rows)
    gone, of_nodes, has_more_nodes = _old_nodes(connection, now - max(limits.age_s, _NODES_S))
    of_events, has_more_events = _old_cluster_events(connection, now - limits.age_s)
    has_more = is_cut or has_more_nodes or has_more_events or len(old) == _AT_ONCE
    return Step(deleted, gone, rows + more_rows + of_nodes + of_events, has_more)


def _old_jobs(connection: sa.Connection, limits: Limits, now: float) -> list[str]:
    kept = sa.text("ended_at IS NOT NULL AND pruned_at IS NULL")
    newest = sa.select(jobs.c.ended_at).where(kept).order_by(jobs.c.ended_at.desc())
    beyond = connection.execute(newest.offset(limits.jobs).limit(1)).scalar()
    before = now - limits.age_s
    # What still may run keeps its job, and so does an answer that may be asked for again.
    unsure = sa.exists().where(attempts.c.job_id == jobs.c.id, attempts.c.released_at.is_(None))
    answered = sa.exists().where(idempotency.c.job_id == jobs.c.id)
    # Its files go first: `service.loops.deletion`.
    going = sa.and_(jobs.c.delete_requested_at.is_not(None), jobs.c.deleted_at.is_(None))
    statement = (
        sa.select(jobs.c.id)
        .where(
            kept,
            jobs.c.ended_at <= (before if beyond is None else max(before, beyond)),
            ~unsure,
            ~answered,
            ~going,
        )
        .order_by(jobs.c.ended_at)
        .limit(_AT_ONCE)
    )
    return list(connection.execute(statement).scalars())


def empty_job(connection: sa.Connection, job_id: str, most: int) -> tuple[int, bool]:
    """Delete what is left of a job's telemetry but its newest event; how many rows, and whether that was all."""
    mine = sa.select(jobs.c.event_seq, jobs.c.project).where(jobs.c.id == job_id)
    newest, project = connection.execute(mine).one()
    removed = 0
    for table, number, upto in (
        (log_lines, log_lines.c.seq, None),
        (metrics, metrics.c.step, None),
        (loads, loads.c.rank, None),
        (events, events.c.seq, newest - 1),
    ):
        gone = _first(connection, table, number, job_id, upto, most - removed)
        if table is log_lines:
            _forget_lines(connection, project, gone)
        removed += gone
        if removed >= most:
            return removed, False
    return removed, True


def _forget_lines(connection: sa.Connection, project: str, count: int) -> None:
    kept_amounts.add(connection, {(kept_amounts.project_holder(project), Kept.LOG_LINES): -count})


def _first(
    connection: sa.Connection,
    table: sa.Table,
    number: sa.Column[int],
    job_id: str,
    upto: int | None,
    most: int,
) -> int:
    """Delete the first rows of a job in a table, `most` at most."""
    mine = table.c.job_id == job_id
    last = sa.select(number).where(mine).order_by(number).offset(max(0, most - 1)).limit(1)
    end = connection.execute(last).scalar()
    bounds = [bound for bound in (end, upto) if bound is not None]
    statement = sa.delete(table).where(mine, *([number <= min(bounds)] if bounds else []))
    return connection.execute(statement).rowcount


def is_needed(connection: sa.Connection, job_id: str) -> bool:
    """Something that is kept for ever needs the job's row: files, models, or the bill."""
    needs = (
        sa.exists().where(checkpoints.c.job_id == job_id),
        sa.exists().where(outputs.c.job_id == job_id),
        sa.exists().where(models.c.job_id == job_id),
        sa.exists().where(profiles.c.job_id == job_id, profiles.c.taken_at.is_not(None)),
        sa.exists().where(uses.c.job_id == job_id, uses.c.price_per_hour > 0),
        sa.exists().where(nodes.c.bought_for == job_id, nodes.c.price_per_hour > 0),
    )
    return bool(connection.execute(sa.select(sa.or_(*needs))).scalar())


def remove_job(connection: sa.Connection, job_id: str) -> None:
    """Delete a job that nothing needs and of which nothing is left but its rows."""
    state, array_id = connection.execute(
        sa.select(jobs.c.state, jobs.c.array_id).where(jobs.c.id == job_id).with_for_update()
    ).one()
    for table in (events, uses, phases, profiles, shell_pieces, shells, attempts, dependencies, job_labels):
        connection.execute(sa.delete(table).where(table.c.job_id == job_id))
    connection.execute(sa.delete(jobs).where(jobs.c.id == job_id))
    if array_id is not None:
        forget_empty(connection, [array_id])
    counted = Counted()
    counted.forget_job(state, 1)
    counted.write(connection)


def _end(connection: sa.Connection, job_id: str, now: float) -> int:
    """Delete a job of which nothing is left, or remember that all was deleted which may be; how many were deleted."""
    if is_needed(connection, job_id):
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(pruned_at=now))
        return 0
    remove_job(connection, job_id)
    return 1


def _cut(connection: sa.Connection, limits: Limits, most: int) -> tuple[int, bool]:
    """Delete the oldest log lines and events of jobs that wait or run and have more than are kept."""
    long = sa.or_(jobs.c.log_seq > limits.rows, jobs.c.event_seq > limits.rows)
    columns = (jobs.c.id, jobs.c.log_seq, jobs.c.event_seq, jobs.c.project)
    rows = connection.execute(sa.select(*columns).where(ACTIVE_JOBS, long))
    removed = 0
    for job_id, log_seq, event_seq, project in rows.all():
        for table, newest in ((log_lines, log_seq), (events, event_seq)):
            if removed >= most:
                return removed, True
            if newest > limits.rows:
                upto = newest - limits.rows
                gone = _first(connection, table, table.c.seq, job_id, upto, most - removed)
                if table is log_lines:
                    _forget_lines(connection, project, gone)
                removed += gone
    return removed, removed >= most > 0


def _old_nodes(connection: sa.Connection, before: float) -> tuple[int, int, bool]:
    """Delete nodes that cost nothing and ended before; how many, with how many rows, and whether there may be more."""
    old = (
        sa.select(nodes.c.id)
        .where(nodes.c.ended_at < before, nodes.c.price_per_hour == 0)
        .order_by(nodes.c.ended_at)
        .limit(_AT_ONCE)
    )
    ids = list(connection.execute(old).scalars())
    rows = 0
    for part in in_parts(ids):
        deleted = connection.execute(sa.delete(node_events).where(node_events.c.node_id.in_(part)))
        rows += deleted.rowcount + connection.execute(sa.delete(nodes).where(nodes.c.id.in_(part))).rowcount
    return len(ids), rows, len(ids) == _AT_ONCE


def _old_cluster_events(connection: sa.Connection, before: float) -> tuple[int, bool]:
    """Delete the first events of the cluster that are old; how many, and whether there may be more.

    The newest ones of each cluster about its quotas and offerings say what these are now, and stay.
    """
    first = connection.execute(
        sa.select(cluster_events.c.seq, cluster_events.c.at).order_by(cluster_events.c.seq).limit(_AT_ONCE)
    ).all()
    newest = set(
        connection.execute(
            sa.select(sa.func.max(cluster_events.c.seq))
            .where(cluster_events.c.kind.in_(("quotas.read", "offerings.read")))
            .group_by(cluster_events.c.cluster, cluster_events.c.kind)
        ).scalars()
    )
    old = [row.seq for row in first if row.at < before and row.seq not in newest]
    if not old:
        return 0, False
    gone = connection.execute(sa.delete(cluster_events).where(cluster_events.c.seq.in_(old))).rowcount
    return gone, len(first) == _AT_ONCE and first[-1].at < before

"""What an account of nodes is made from: some statements for any number of nodes and jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from service.queue.cost_causes import Span, spans_of
from service.queue.ledger import UseRow
from service.queue.rows import NodeRow, PhaseRow
from service.store.rows import to_rows
from service.store.tables import jobs, nodes, phases, uses


@dataclass(frozen=True, kw_only=True)
class CostRows:
    """Nodes, and all that is known of what they were used for."""

    nodes: dict[str, NodeRow] = field(default_factory=dict)
    uses: Sequence[UseRow] = ()
    phases: Sequence[PhaseRow] = ()
    #: Since when each node has been used at all.
    first_used: dict[str, float] = field(default_factory=dict)
    #: The project of each job.
    projects: dict[str, str] = field(default_factory=dict)

    def spans(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Span]:
        """Who paid, and for what, in each of these ranges of milliseconds since 1970."""
        return spans_of(self.nodes.values(), self.uses, self.phases, self.first_used, self.projects, ranges)


def rows_between(
    connection: sa.Connection,
    begins_at: float,
    ends_at: float,
    of: Collection[str] | None = None,
    *,
    with_phases: bool = True,
) -> CostRows:
    """Of all nodes that had a machine at some moment between the two times, in seconds since 1970.

    `of` are projects: the nodes that were bought for one of them, or that one of their jobs has used.  Without phases,
    all that jobs hold is training: enough where only payers and purposes are asked for.
    """
    wanted = _there(begins_at, ends_at)
    if of is not None:
        mine = sa.select(jobs.c.id).where(jobs.c.project.in_(of))
        wanted = sa.and_(wanted, sa.or_(_concerns(mine), nodes.c.project.in_(of)))
    return _rows(connection, wanted, begins_at, ends_at, with_phases)


def rows_of_jobs(
    connection: sa.Connection,
    job_ids: Collection[str],
    begins_at: float,
    ends_at: float,
    *,
    with_phases: bool = True,
) -> CostRows:
    """Of the nodes that these jobs have used, or that were bought for them, as far as they had a machine then."""
    only = sa.select(jobs.c.id).where(jobs.c.id.in_(job_ids))
    there = sa.and_(_concerns(only), _there(begins_at, ends_at))
    return _rows(connection, there, begins_at, ends_at, with_phases)


def paid_range(connection: sa.Connection, job_id: str, now: float) -> tuple[float, float]:
    """From when to when a job may have paid for nodes, in seconds since 1970; (now, now) when it never did."""
    used = sa.select(uses.c.began_at, sa.func.coalesce(uses.c.ended_at, now).label("ended_at"))
    # It pays for a node that was bought for it until that is ready.
    until = sa.func.coalesce(nodes.c.ready_at, nodes.c.ended_at, now)
    bought = sa.select(nodes.c.launched_at, until).where(
        nodes.c.bought_for == job_id, nodes.c.launched_at.is_not(None)
    )
    paid = sa.union_all(used.where(uses.c.job_id == job_id), bought).subquery()
    first, last = connection.execute(
        sa.select(sa.func.min(paid.c.began_at), sa.func.max(paid.c.ended_at))
    ).one()
    return (now, now) if first is None else (first, min(now, last))


def _there(begins_at: float, ends_at: float) -> sa.ColumnElement[bool]:
    """Nodes that had a machine at some moment between the two times."""
    # In this form each half is answered by an index.
    is_left = sa.or_(nodes.c.ended_at.is_(None), nodes.c.ended_at > begins_at)
    return sa.and_(nodes.c.launched_at < ends_at, is_left)


def _concerns(job_ids: sa.Select[tuple[str]]) -> sa.ColumnElement[bool]:
    """Nodes that one of these jobs used, or that were bought for it."""
    used = sa.select(uses.c.node_id).where(uses.c.job_id.in_(job_ids))
    return sa.or_(nodes.c.id.in_(used), nodes.c.bought_for.in_(job_ids))


def _rows(
    connection: sa.Connection,
    wanted: sa.ColumnElement[bool],
    begins_at: float,
    ends_at: float,
    with_phases: bool,
) -> CostRows:
    # Each statement asks for the nodes again: any number of ids would be too many parameters.
    ids = sa.select(nodes.c.id).where(wanted)
    is_left = sa.or_(uses.c.ended_at.is_(None), uses.c.ended_at > begins_at)
    theirs = sa.and_(uses.c.node_id.in_(ids), uses.c.began_at < ends_at, is_left)
    by_time = sa.select(uses).where(theirs).order_by(uses.c.began_at, uses.c.node_id, uses.c.job_id)
    attempts = sa.select(uses.c.job_id, uses.c.attempt).where(theirs).distinct().subquery()
    is_of = sa.and_(phases.c.job_id == attempts.c.job_id, phases.c.attempt == attempts.c.attempt)
    # Those of later times too: whether an attempt ever did a step decides what it did before.
    found_phases = sa.select(phases).join(attempts, is_of)
    first = (
        sa.select(uses.c.node_id, sa.func.min(uses.c.began_at).label("at"))
        .where(uses.c.node_id.in_(ids))
        .group_by(uses.c.node_id)
    )
    named = sa.or_(
        jobs.c.id.in_(sa.select(uses.c.job_id).where(theirs)),
        jobs.c.id.in_(sa.select(nodes.c.bought_for).where(wanted)),
    )
    found = to_rows(NodeRow, connection.execute(sa.select(nodes).where(wanted).order_by(nodes.c.id)))
    return CostRows(
        nodes={node.id: node for node in found},
        uses=to_rows(UseRow, connection.execute(by_time)),
        phases=[PhaseRow(**row._mapping) for row in connection.execute(found_phases)] if with_phases else [],
        first_used={row.node_id: row.at for row in connection.execute(first)},
        projects={
            row.id: row.project
            for row in connection.execute(sa.select(jobs.c.id, jobs.c.project).where(named))
        },
    )

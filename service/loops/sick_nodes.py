"""Drains nodes of which an attempt has said that they compute wrongly, or that their GPU failed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa

from remora.process_log import about
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.rows import NodeRow
from service.store import nodes, sick_reports
from service.store.sick_reports import SickReport

log = logging.getLogger(__name__)

#: Nodes that are drained for what one project says, and the seconds within which they are counted: a script is not
#: trusted, and each costs a machine and the time of other jobs on it.
MOST_PER_PROJECT, KEPT_S = 5, 3600.0


def drain_sick(tick: Tick, rows: Sequence[NodeRow]) -> list[NodeRow]:
    """The rows, of which those are drained that were reported; reports about other nodes are forgotten.

    A node is drained in the transaction that closes the report.  Raises Fenced.
    """
    reports = tick.load(partial(sick_reports.reports_of, cluster=tick.cluster))
    if not reports:
        return list(rows)
    new = _within_limits(reports, tick.now)
    decisions: dict[str, lifecycle.NodeDecision] = {}
    for row in rows:
        # A later node may have the address of one that has gone.
        report = new.get(row.address or "")
        if report is not None and row.created_at <= report.at:
            decision = lifecycle.sicken_node(row, report.message, tick.now)
            if decision is not None:
                decisions[row.id] = decision
    closed = [one for one in reports if one.drained_at is None or one.drained_at <= tick.now - KEPT_S]
    if not closed:
        return list(rows)
    drained = {row.address for row in rows if row.id in decisions and row.address is not None}

    def work(connection: sa.Connection) -> dict[str, NodeRow]:
        fresh = [one for one in closed if one.drained_at is None]
        sick_reports.close_reports(connection, fresh, drained, tick.now)
        sick_reports.close_reports(connection, [one for one in closed if one not in fresh], (), tick.now)
        return {
            row.id: nodes.save_node(connection, row, decisions[row.id]) for row in rows if row.id in decisions
        }

    changed = tick.apply(work)
    for row in changed.values():
        log.warning("node %s is sick: %s", row.id, row.message, extra=about(node=row.id))
    return [changed.get(row.id, row) for row in rows]


def _within_limits(reports: Sequence[SickReport], now: float) -> dict[str, SickReport]:
    """By address the oldest report that no node was drained for, of projects that have not had too many drained."""
    since = now - KEPT_S
    drained = Counter(one.project for one in reports if one.drained_at is not None and one.drained_at > since)
    new: dict[str, SickReport] = {}
    for one in reports:
        if one.drained_at is not None or one.address in new:
            continue
        if drained[one.project] >= MOST_PER_PROJECT:
            log.warning(
                "project %s has had %d nodes drained in an hour: %s",
                one.project,
                MOST_PER_PROJECT,
                one.message,
                extra=about(project=one.project),
            )
            continue
        drained[one.project] += 1
        new[one.address] = one
    return new

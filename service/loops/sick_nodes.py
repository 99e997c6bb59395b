"""Drains nodes of which an attempt has said that they compute wrongly."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa

from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.rows import NodeRow
from service.store import nodes, sick_reports

log = logging.getLogger(__name__)


def drain_sick(tick: Tick, rows: Sequence[NodeRow]) -> list[NodeRow]:
    """The rows, of which those are drained that were reported; reports about other nodes are forgotten.

    A node is drained in the transaction that forgets the report.  Raises Fenced.
    """
    reports = tick.load(sick_reports.all_reports)
    if not reports:
        return list(rows)
    by_address = {one.address: one for one in reversed(reports)}
    decisions: dict[str, lifecycle.NodeDecision] = {}
    for row in rows:
        # A later node may have the address of one that has gone.
        report = by_address.get(row.address or "")
        if report is not None and row.created_at <= report.at:
            decision = lifecycle.sicken_node(row, report.message, tick.now)
            if decision is not None:
                decisions[row.id] = decision

    def work(connection: sa.Connection) -> dict[str, NodeRow]:
        sick_reports.remove_reports(connection, reports)
        return {
            row.id: nodes.save_node(connection, row, decisions[row.id]) for row in rows if row.id in decisions
        }

    changed = tick.apply(work)
    for row in changed.values():
        log.warning("node %s is drained: %s", row.id, row.message)
    return [changed.get(row.id, row) for row in rows]

"""Carry out the preemptions that somebody wants to rehearse, and measure what they cost.

The wish stands in a row before anything is done, and every act may be repeated: a controller that dies at any line
leaves a drill that the next one goes on with.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import sqlalchemy as sa

from remora.states import DrillState
from service.loops.ports import Rehearsal
from service.loops.turn import Turn
from service.queue import drills as decide
from service.queue.lifecycle import NodeDecision
from service.queue.rows import DrillRow, NewEvent
from service.store import drills as store
from service.store import nodes

log = logging.getLogger(__name__)


def drill(turn: Turn, rehearsal: Rehearsal | None) -> None:
    """Bring every drill that is not over one step on.  Raises Fenced."""
    for row in turn.load(store.open_drills):
        if row.state is DrillState.REQUESTED:
            row = _strike(turn, row, rehearsal)
        if rehearsal is not None and row.state is DrillState.STRUCK:
            row = _act(turn, row, rehearsal)
        if row.state is DrillState.STRUCK:
            _measure(turn, row, is_clouds=rehearsal is not None and _is_clouds(row, rehearsal))


def _is_clouds(row: DrillRow, rehearsal: Rehearsal) -> bool:
    """True when the cloud itself takes the nodes, once it has given its notice."""
    return row.deadline_at is not None and rehearsal.own_notice_s is not None


def _strike(turn: Turn, row: DrillRow, rehearsal: Rehearsal | None) -> DrillRow:
    if rehearsal is None:
        return _save(turn, decide.refuse(row, "the machines here cannot be taken for a rehearsal", turn.now))
    running = turn.load(store.running_jobs)
    struck = decide.strike(row, running, turn.now, rehearsal.own_notice_s)
    text = "without a notice" if struck.notice_s is None else f"with a notice of {struck.notice_s:g} s"
    event = NewEvent(at=turn.now, kind="node.drilled", message=f"a preemption {text} is rehearsed on it")

    def work(connection: sa.Connection) -> None:
        store.save_drill(connection, struck)
        for node_id in row.node_ids:
            node = nodes.get_node(connection, node_id)
            if node is not None:
                nodes.save_node(connection, node, NodeDecision(node, (event,)))

    turn.apply(work)
    log.info("drill %s takes %s %s", row.id, ", ".join(row.node_ids), text)
    return struck


def _act(turn: Turn, row: DrillRow, rehearsal: Rehearsal) -> DrillRow:
    if row.deadline_at is not None and row.noticed_at is None:
        row = _notify(turn, row, rehearsal, row.deadline_at)
    if _is_clouds(row, rehearsal):
        return row
    if row.state is DrillState.STRUCK and decide.is_due(row, turn.now):
        row = _take(turn, row, rehearsal)
    return row


def _notify(turn: Turn, row: DrillRow, rehearsal: Rehearsal, deadline_at: float) -> DrillRow:
    """Tell every node; those that cannot be told are left alone."""
    refusals: dict[str, str] = {}
    for node_id in row.node_ids:
        try:
            rehearsal.notify(node_id, deadline_at)
        except Exception as error:  # whatever the cluster raises
            refusals[node_id] = str(error)
    return _save(turn, decide.notified(row, refusals, turn.now))


def _take(turn: Turn, row: DrillRow, rehearsal: Rehearsal) -> DrillRow:
    """End every node; what cannot be ended is tried again at the next turn."""
    try:
        for node_id in row.node_ids:
            rehearsal.take(node_id)
    except Exception as error:  # whatever the provider raises
        log.warning("drill %s cannot take its nodes, it is tried again: %s", row.id, error)
        message = str(error)
        return row if row.message == message else _save(turn, replace(row, message=message))
    return _save(turn, replace(row, taken_at=turn.now))


def _measure(turn: Turn, row: DrillRow, *, is_clouds: bool) -> None:
    left = turn.load(lambda connection: store.traces(connection, row.jobs))
    measured = [decide.measure(row, known, new) for known, new in zip(row.jobs, left, strict=True)]
    after = replace(row, jobs=measured)
    if is_clouds and after.taken_at is None:
        seen = turn.load(lambda connection: store.taken_nodes(connection, row))
        after = decide.follow_cloud(after, seen, turn.load(store.running_jobs), turn.now)
    if after.state is DrillState.STRUCK and decide.is_over(after, turn.now):
        after = decide.end(after, turn.now)
        log.info("drill %s is over", row.id)
    if after != row:
        _save(turn, after)


def _save(turn: Turn, row: DrillRow) -> DrillRow:
    turn.apply(lambda connection: store.save_drill(connection, row))
    return row

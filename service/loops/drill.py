"""Carries out drills (rehearsed preemptions), and measures what they cost.

A row records the request before anything is done, and every action may be repeated: a controller that dies at any line
leaves a drill that the next one continues.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from remora.states import DrillState
from service.interfaces import Rehearsal
from service.loops.tick import Tick
from service.queue import drills as decide
from service.queue.lifecycle import NodeDecision
from service.queue.rows import DrillRow, NewEvent
from service.store import drills as store
from service.store import nodes

log = logging.getLogger(__name__)


def drill(tick: Tick, rehearsal: Rehearsal | None) -> None:
    """Advance every open drill by one step.  Raises Fenced."""
    for row in tick.load(partial(store.open_drills, cluster=tick.cluster)):
        if row.state is DrillState.REQUESTED:
            row = _strike(tick, row, rehearsal)
        if rehearsal is not None and row.state is DrillState.STRUCK:
            row = _act(tick, row, rehearsal)
        if row.state is DrillState.STRUCK:
            _measure(tick, row, is_clouds=rehearsal is not None and _is_clouds(row, rehearsal))


def _is_clouds(row: DrillRow, rehearsal: Rehearsal) -> bool:
    """True when the cloud itself takes the nodes, after a notice of its own."""
    return row.deadline_at is not None and rehearsal.own_notice_s is not None


def _strike(tick: Tick, row: DrillRow, rehearsal: Rehearsal | None) -> DrillRow:
    if rehearsal is None:
        return _save(tick, decide.refuse(row, "the machines here cannot be taken for a rehearsal", tick.now))
    running = tick.load(partial(store.running_jobs, cluster=tick.cluster))
    struck = decide.strike(row, running, tick.now, rehearsal.own_notice_s)
    text = "without a notice" if struck.notice_s is None else f"with a notice of {struck.notice_s:g} s"
    event = NewEvent(at=tick.now, kind="node.drilled", message=f"a preemption {text} is rehearsed on it")

    def work(connection: sa.Connection) -> None:
        store.save_drill(connection, struck)
        for node_id in row.node_ids:
            node = nodes.get_node(connection, node_id)
            if node is not None:
                nodes.save_node(connection, node, NodeDecision(node, (event,)))

    tick.apply(work)
    log.info("drill %s takes %s %s", row.id, ", ".join(row.node_ids), text)
    return struck


def _act(tick: Tick, row: DrillRow, rehearsal: Rehearsal) -> DrillRow:
    if row.deadline_at is not None and row.noticed_at is None:
        row = _notify(tick, row, rehearsal, row.deadline_at)
    if _is_clouds(row, rehearsal):
        return row
    if row.state is DrillState.STRUCK and decide.is_due(row, tick.now):
        row = _take(tick, row, rehearsal)
    return row


def _notify(tick: Tick, row: DrillRow, rehearsal: Rehearsal, deadline_at: float) -> DrillRow:
    """Send a notice to every node; those that cannot get one leave the drill."""
    refusals: dict[str, str] = {}
    for node_id in row.node_ids:
        try:
            rehearsal.notify(node_id, deadline_at)
        except Exception as error:  # whatever the cluster raises
            refusals[node_id] = str(error)
    return _save(tick, decide.notified(row, refusals, tick.now))


def _take(tick: Tick, row: DrillRow, rehearsal: Rehearsal) -> DrillRow:
    """End every node; what cannot be ended is tried again at the next tick."""
    try:
        for node_id in row.node_ids:
            rehearsal.take(node_id)
    except Exception as error:  # whatever the provider raises
        log.warning("drill %s cannot take its nodes, it is tried again: %s", row.id, error)
        message = str(error)
        return row if row.message == message else _save(tick, replace(row, message=message))
    return _save(tick, replace(row, taken_at=tick.now))


def _measure(tick: Tick, row: DrillRow, *, is_clouds: bool) -> None:
    updates = tick.load(lambda connection: store.job_updates(connection, row.jobs))
    measured = [decide.measure(row, known, new) for known, new in zip(row.jobs, updates, strict=True)]
    after = replace(row, jobs=measured)
    if is_clouds and after.taken_at is None:
        seen = tick.load(lambda connection: store.taken_nodes(connection, row))
        running = tick.load(partial(store.running_jobs, cluster=tick.cluster))
        after = decide.follow_cloud(after, seen, running, tick.now)
    if after.state is DrillState.STRUCK and decide.is_over(after, tick.now):
        after = decide.end(after, tick.now)
        log.info("drill %s is over", row.id)
    if after != row:
        _save(tick, after)


def _save(tick: Tick, row: DrillRow) -> DrillRow:
    tick.apply(lambda connection: store.save_drill(connection, row))
    return row

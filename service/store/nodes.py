"""Nodes and what happened to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

import sqlalchemy as sa

from remora.states import NodeState
from remora.views import NodeEvent
from service.queue.alerts import fact_of_node
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.store import alert_facts
from service.store.failures import Fenced
from service.store.rows import columns, to_row, to_rows
from service.store.tables import LIVE_NODES, node_events, nodes
from service.store.totals import count_node_start

_ENDED = frozenset({NodeState.GONE, NodeState.FAILED})


def insert_node(connection: sa.Connection, decision: NodeDecision) -> NodeRow:
    """Store a requested node."""
    node = replace(decision.node, event_seq=len(decision.events))
    connection.execute(sa.insert(nodes).values(columns(node)))
    _insert_events(connection, decision)
    return node


def save_node(connection: sa.Connection, before: NodeRow, decision: NodeDecision) -> NodeRow:
    """Store what was decided about a node.  Raises Fenced when another transaction changed it meanwhile."""
    node = replace(decision.node, event_seq=before.event_seq + len(decision.events))
    changed = connection.execute(
        sa.update(nodes)
        .where(nodes.c.id == before.id, nodes.c.state == before.state, nodes.c.event_seq == before.event_seq)
        .values(columns(node))
    )
    if changed.rowcount != 1:
        raise Fenced(f"node {before.id} was changed by another transaction")
    _insert_events(connection, decision)
    fact = fact_of_node(before, node, decision.events)
    alert_facts.record(connection, [] if fact is None else [fact])
    count_node_start(connection, before, node)
    return node


def _insert_events(connection: sa.Connection, decision: NodeDecision) -> None:
    rows = [
        {
            "node_id": decision.node.id,
            "seq": decision.node.event_seq + offset,
            "at": event.at,
            "kind": event.kind,
            "message": event.message,
        }
        for offset, event in enumerate(decision.events, start=1)
    ]
    if rows:
        connection.execute(sa.insert(node_events), rows)


def current_nodes(
    connection: sa.Connection, cluster: str, ended_since: float, failed_since: float | None = None
) -> list[NodeRow]:
    """Nodes of a cluster that have not ended, and those that ended after the given time; oldest first.

    Those that failed, or were sick, are among them already if they ended after `failed_since`, and so is the newest of
    each pool and offering that did neither and was not cut off: what failed before it does not count any more.
    """
    # In each of the conditions, so that each is answered by an index.
    mine = nodes.c.cluster == cluster
    counts: list[sa.ColumnElement[bool]] = [
        sa.and_(mine, LIVE_NODES),
        sa.and_(mine, nodes.c.ended_at > ended_since),
    ]
    if failed_since is not None:
        was_bad = sa.or_(nodes.c.is_failure, nodes.c.sick_since.is_not(None))
        counts.append(sa.and_(mine, nodes.c.ended_at > failed_since, was_bad))
        has_worked = sa.and_(nodes.c.ready_at.is_not(None), ~was_bad, ~nodes.c.is_cut_off)
        worked = sa.and_(mine, nodes.c.ended_at > failed_since, has_worked)
        newest = sa.select(sa.func.max(nodes.c.id)).where(worked).group_by(nodes.c.pool, nodes.c.offering)
        counts.append(nodes.c.id.in_(newest))
    return to_rows(NodeRow, connection.execute(sa.select(nodes).where(sa.or_(*counts)).order_by(nodes.c.id)))


def get_node(connection: sa.Connection, node_id: str) -> NodeRow | None:
    """The node, or None."""
    row = connection.execute(sa.select(nodes).where(nodes.c.id == node_id)).first()
    return None if row is None else to_row(NodeRow, row)


def page_of_nodes(
    connection: sa.Connection, *, before: str | None, limit: int, states: Collection[NodeState] = ()
) -> list[NodeRow]:
    """Nodes newest first, in these states or in all; `before` is the id of the last node of the page before."""
    statement = sa.select(nodes).order_by(nodes.c.id.desc()).limit(limit)
    if states:
        statement = statement.where(nodes.c.state.in_(states))
        if not _ENDED & {*states}:
            # So that the index of those that live answers, however many have ended.
            statement = statement.where(LIVE_NODES)
    if before is not None:
        statement = statement.where(nodes.c.id < before)
    return to_rows(NodeRow, connection.execute(statement))


def live_offerings(connection: sa.Connection, cluster: str) -> list[str]:
    """As what the nodes of a cluster that have not ended were bought, each once."""
    statement = sa.select(nodes.c.offering).where(LIVE_NODES, nodes.c.cluster == cluster).distinct()
    return list(connection.scalars(statement.order_by(nodes.c.offering)))


def count_nodes(connection: sa.Connection) -> dict[str, dict[NodeState, int]]:
    """How many nodes that have not ended are in each state, by pool."""
    statement = (
        sa.select(nodes.c.pool, nodes.c.state, sa.func.count())
        .where(LIVE_NODES)
        .group_by(nodes.c.pool, nodes.c.state)
    )
    counts: defaultdict[str, dict[NodeState, int]] = defaultdict(dict)
    order = list(NodeState)
    for pool, state, number in sorted(connection.execute(statement), key=lambda row: order.index(row[1])):
        counts[pool][state] = number
    return counts


def page_of_node_events(connection: sa.Connection, node_id: str, after: int, limit: int) -> list[NodeEvent]:
    """Events of a node with a number above `after`, in order."""
    statement = (
        sa.select(node_events)
        .where(node_events.c.node_id == node_id, node_events.c.seq > after)
        .order_by(node_events.c.seq)
        .limit(limit)
    )
    return [NodeEvent(**row._mapping) for row in connection.execute(statement)]

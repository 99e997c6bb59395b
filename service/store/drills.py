"""Rehearsed preemptions: asked for by the API, carried out and measured by the controller."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cluster.scheduling.view import ENDED
from remora.states import NodeState
from service.queue.drills import JobUpdate, TakenNode
from service.queue.rows import DrilledJob, DrillRow, JobRow, NodeRow
from service.store import job_history
from service.store.nodes import get_node, page_of_node_events
from service.store.rows import drill_columns, to_drill, to_rows
from service.store.tables import LIVE_ATTEMPTS, LIVE_NODES, OPEN_DRILLS, attempts, drills, jobs, nodes

#: Points and events of a job that are read at once; what is more comes at the next tick.
CHUNK = 1000


def insert_drill(connection: sa.Connection, drill: DrillRow) -> None:
    """Store a requested drill."""
    connection.execute(sa.insert(drills).values(drill_columns(drill)))


def save_drill(connection: sa.Connection, drill: DrillRow) -> None:
    """Store how it goes; only the holder of the controller's lease calls this."""
    connection.execute(sa.update(drills).where(drills.c.id == drill.id).values(drill_columns(drill)))


def get_drill(connection: sa.Connection, drill_id: str) -> DrillRow | None:
    """The drill, or None."""
    row = connection.execute(sa.select(drills).where(drills.c.id == drill_id)).first()
    return None if row is None else to_drill(row)


def open_drills(connection: sa.Connection, cluster: str) -> list[DrillRow]:
    """Drills of a cluster that are not over, oldest first."""
    statement = sa.select(drills).where(OPEN_DRILLS, drills.c.cluster == cluster).order_by(drills.c.id)
    return [to_drill(row) for row in connection.execute(statement)]


def ready_nodes(connection: sa.Connection, pool: str) -> list[NodeRow]:
    """Nodes of a pool that may be given work, oldest first."""
    statement = (
        sa.select(nodes)
        .where(LIVE_NODES, nodes.c.pool == pool, nodes.c.state == NodeState.READY)
        .order_by(nodes.c.id)
    )
    return to_rows(NodeRow, connection.execute(statement))


def taken_nodes(connection: sa.Connection, drill: DrillRow) -> list[TakenNode]:
    """Where the nodes stand that their cloud was asked to take."""
    return [_taken(connection, node_id, drill.noticed_at or drill.requested_at) for node_id in drill.node_ids]


def _taken(connection: sa.Connection, node_id: str, since: float) -> TakenNode:
    node = get_node(connection, node_id)
    events = page_of_node_events(connection, node_id, 0, CHUNK)
    return TakenNode(
        id=node_id,
        has_heard=any(event.kind == "node.draining" and event.at >= since for event in events),
        is_gone=node is None or node.state in ENDED,
    )


def running_jobs(connection: sa.Connection, cluster: str) -> list[JobRow]:
    """Jobs of a cluster that have workers now."""
    # In the inner selection `state` is the attempt's.
    live = sa.select(attempts.c.job_id).where(attempts.c.cluster == cluster, LIVE_ATTEMPTS)
    statement = sa.select(jobs).where(jobs.c.id.in_(live), jobs.c.world_size > 0).order_by(jobs.c.id)
    return to_rows(JobRow, connection.execute(statement))


def job_updates(connection: sa.Connection, known: Sequence[DrilledJob]) -> list[JobUpdate]:
    """What each job left since it was looked at last, in the order of `known`."""
    points = [
        job_history.page_of_metrics(connection, one.job_id, -1 if one.step is None else one.step, CHUNK)
        for one in known
    ]
    events = [job_history.page_of_events(connection, one.job_id, one.event_seq, CHUNK) for one in known]
    # Last: what a job counts is never older than the points that go with it, whatever is stored meanwhile.
    statement = sa.select(jobs).where(jobs.c.id.in_([one.job_id for one in known]))
    rows = {row.id: row for row in to_rows(JobRow, connection.execute(statement))}
    return [
        JobUpdate(job=rows[one.job_id], points=at, events=of_job)
        for one, at, of_job in zip(known, points, events, strict=True)
    ]

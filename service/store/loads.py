"""How busy workers were in the last minutes: some rows for each, written round and round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from service.store.rows import upsert
from service.store.tables import loads, nodes, uses

#: Seconds of one place, of which the newest value is kept; workers say it more often, but in the largest groups.
PLACE_S = 20.0
#: Places of a worker.
PLACES = 30
#: Seconds after which what a worker said is not shown: before its place is written again.
RECENT_S = PLACE_S * (PLACES - 1)


@dataclass(frozen=True)
class Point:
    """How busy something was at a time, in seconds since 1970."""

    at: float
    #: Processors that were busy.
    cpu: float
    #: The mean part of the time in which GPUs computed; None: not known.
    gpu: float | None


@dataclass(frozen=True)
class WorkerPoints:
    """What one rank of an attempt said last."""

    rank: int
    attempt: int
    address: str
    gpus: int
    points: Sequence[Point]


@dataclass(frozen=True)
class NodePoints:
    """What the workers on a node said last, in sum."""

    node_id: str
    workers: int
    gpus: int
    points: Sequence[Point]


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Store what workers said, each a row without its place; of two for one place the later one is kept."""
    placed = {
        (row["job_id"], row["rank"], place): {**row, "place": place}
        for row in rows
        for place in [int(row["at"] // PLACE_S) % PLACES]
    }
    upsert(connection, loads, list(placed.values()), replace=True)


def of_job(
    connection: sa.Connection, job_id: str, attempt: int, now: float, after: int, limit: int
) -> list[WorkerPoints]:
    """The ranks of an attempt above `after` that said something in the last minutes, in order."""
    recent = sa.and_(loads.c.job_id == job_id, loads.c.attempt == attempt, loads.c.at > now - RECENT_S)
    ranks = sa.select(loads.c.rank).where(recent, loads.c.rank > after).distinct()
    wanted = ranks.order_by(loads.c.rank).limit(limit).subquery()
    statement = (
        sa.select(loads)
        .where(recent, loads.c.rank.in_(sa.select(wanted.c.rank)))
        .order_by(loads.c.rank, loads.c.at)
    )
    found = groupby(connection.execute(statement).all(), key=lambda row: row.rank)
    return [_worker(list(rows)) for _, rows in found]


def _worker(rows: Sequence[Any]) -> WorkerPoints:
    newest = rows[-1]
    points = [Point(row.at, row.cpu, row.gpu) for row in rows]
    return WorkerPoints(newest.rank, newest.attempt, newest.address, newest.gpus, points)


def of_nodes(connection: sa.Connection, now: float, before: str | None, limit: int) -> list[NodePoints]:
    """Nodes with an id below `before` on which workers are and said something, the newest first.

    Not all workers say it at the same moment: those of a job that did stand for its others on the node.
    """
    with_workers = sa.select(nodes.c.id).where(
        nodes.c.ended_at.is_(None),
        sa.exists().where(uses.c.node_id == nodes.c.id, uses.c.ended_at.is_(None)),
    )
    if before is not None:
        with_workers = with_workers.where(nodes.c.id < before)
    wanted = with_workers.order_by(nodes.c.id.desc()).limit(limit).subquery()
    on_node = sa.and_(uses.c.node_id == nodes.c.id, uses.c.ended_at.is_(None))
    said = sa.and_(
        loads.c.job_id == uses.c.job_id,
        loads.c.attempt == uses.c.attempt,
        loads.c.address == nodes.c.address,
        loads.c.at > now - RECENT_S,
    )
    columns = (nodes.c.id, uses.c.job_id, uses.c.workers, loads.c.place)
    statement = (
        sa.select(
            *columns,
            sa.func.min(loads.c.at).label("at"),
            sa.func.avg(loads.c.cpu).label("cpu"),
            sa.func.avg(loads.c.gpu).label("gpu"),
            sa.func.max(loads.c.gpus).label("gpus"),
        )
        .select_from(nodes.join(uses, on_node).join(loads, said))
        .where(nodes.c.id.in_(sa.select(wanted.c.id)))
        .group_by(*columns)
        .order_by(nodes.c.id.desc())
    )
    found = groupby(connection.execute(statement).all(), key=lambda row: row.id)
    return [_node(node_id, list(rows)) for node_id, rows in found]


def _node(node_id: str, rows: Sequence[Any]) -> NodePoints:
    jobs = {row.job_id: (row.workers, row.workers * row.gpus) for row in rows}
    workers, gpus = (sum(column) for column in zip(*jobs.values(), strict=True))
    return NodePoints(node_id, workers, gpus, sorted(_sums(rows), key=lambda point: point.at))


def _sums(rows: Sequence[Any]) -> Iterator[Point]:
    by_place: dict[int, list[Any]] = {}
    for row in rows:
        by_place.setdefault(row.place, []).append(row)
    for at_once in by_place.values():
        gpus = sum(row.workers * row.gpus for row in at_once if row.gpu is not None)
        busy = sum(row.workers * row.gpus * row.gpu for row in at_once if row.gpu is not None)
        cpu = sum(row.workers * row.cpu for row in at_once)
        yield Point(min(row.at for row in at_once), round(cpu, 3), round(busy / gpus, 3) if gpus else None)

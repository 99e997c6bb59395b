"""Nodes and what happened to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from remora.views import Node, NodeEvent, Page
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.hidden_job_ids import ForeignJobs
from service.api.pages import as_json, write_page
from service.api.parameters import (
    EventsParameters,
    NodesParameters,
    Parameters,
    read_cursor,
    read_number_cursor,
)
from service.api.problem_documents import ApiProblem
from service.api.views import node_view
from service.queue.rows import NodeRow, WaitKind, WaitRow
from service.store import ledger
from service.store import nodes as store
from service.store.ids import is_id
from service.store.waits import waits_of

router = APIRouter(prefix="/v1/nodes")


@router.get("", operation_id="list_nodes", response_model=Page[Node])
async def list_nodes(request: Request, query: Annotated[NodesParameters, Query()]) -> Response:
    """Machines of the cluster, newest first, in these states or in all, ended ones included."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("node", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")

    access = access_of(request)

    def work(connection: sa.Connection) -> bytes:
        foreign = ForeignJobs(connection, access)
        rows = store.page_of_nodes(connection, before=before, limit=query.limit, states=query.state)
        live = [row.id for row in rows if row.ended_at is None]
        waits, jobs = _waits(connection, live), ledger.jobs_on(connection, live)
        foreign.look(job for ids in jobs.values() for job in ids)
        return write_page(
            rows,
            lambda row: foreign.node(node_view(row, waits.get(row.id, ()), jobs.get(row.id, ()))),
            lambda row: row.id,
            query.limit,
        )

    return as_json(await context_of(request).database.read(work))


@router.get("/{node_id}", operation_id="show_node", response_model=Node)
async def show_node(request: Request, node_id: str, _: Annotated[Parameters, Query()]) -> Node:
    """One machine, also after its end."""
    row = await node_of(request, node_id)
    access = access_of(request)

    def work(connection: sa.Connection) -> Node:
        waits, jobs = _waits(connection, [row.id]), ledger.jobs_on(connection, [row.id])
        view = node_view(row, waits.get(row.id, ()), jobs.get(row.id, ()))
        return ForeignJobs(connection, access).node(view)

    return await context_of(request).database.read(work)


@router.get("/{node_id}/events", operation_id="list_node_events", response_model=Page[NodeEvent])
async def node_events(
    request: Request, node_id: str, query: Annotated[EventsParameters, Query()]
) -> Response:
    """What happened to a machine, oldest first."""
    await node_of(request, node_id)
    after, access = read_number_cursor(query.cursor, query.after), access_of(request)

    def work(connection: sa.Connection) -> bytes:
        found = store.page_of_node_events(connection, node_id, after, query.limit)
        return write_page(found, ForeignJobs(connection, access).node_event, lambda one: one.seq, query.limit)

    return as_json(await context_of(request).database.read(work))


def _waits(connection: sa.Connection, node_ids: Sequence[str]) -> Mapping[str, list[WaitRow]]:
    """What the newest plan says of these nodes, by their ids."""
    found: defaultdict[str, list[WaitRow]] = defaultdict(list)
    for row in waits_of(connection, WaitKind.NODE, node_ids) if node_ids else ():
        found[row.about].append(row)
    return found


async def node_of(request: Request, node_id: str) -> NodeRow:
    """The node that a path names.  Raises ApiProblem `node_not_found`."""
    row = None
    if is_id("node", node_id):
        row = await context_of(request).database.read(lambda connection: store.get_node(connection, node_id))
    if row is None:
        raise node_not_found(node_id)
    return row


def node_not_found(node_id: str) -> ApiProblem:
    """There is no such node."""
    return ApiProblem(
        404, "node_not_found", f"there is no node {node_id[:80]!r}", hint="`remora nodes -a` shows all nodes"
    )

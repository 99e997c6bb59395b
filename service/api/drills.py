"""Drills (rehearsed preemptions): the request is stored, the controller carries it out and measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

from remora.states import NodeState
from remora.views import Drill, FieldProblem
from service.api.bodies import read_object
from service.api.context import context_of
from service.api.nodes import node_not_found
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.views import drill_view
from service.api.writes import Noted, write
from service.queue.rows import DrillRow, NodeRow
from service.store import drills as store
from service.store.ids import is_id, new_id
from service.store.nodes import get_node

router = APIRouter(prefix="/v1")

#: The longest notice that can be rehearsed, seconds.
LONGEST_NOTICE_S = 3600.0
#: Bytes of a body that asks for a drill.
MAX_ORDER_BYTES = 16 * 1024
#: Values in it.
MAX_ORDER_VALUES = 50


class Order(BaseModel):
    """How the nodes shall go: at a deadline, or at once."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    notice_s: Annotated[float, Field(gt=0, le=LONGEST_NOTICE_S)] | None = None
    silent: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.silent == (self.notice_s is not None):
            raise ValueError('give either "notice_s" (seconds) or "silent": true')
        return self


@router.post("/nodes/{node_id}/drill", status_code=202, operation_id="drill_node", response_model=Drill)
async def drill_node(request: Request, node_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Take this node as its cloud would, and measure what that costs the jobs."""

    def chosen(connection: sa.Connection) -> list[NodeRow]:
        node = get_node(connection, node_id) if is_id("node", node_id) else None
        if node is None:
            raise node_not_found(node_id)
        return [node] if node.state is NodeState.READY else []

    return await _request(request, chosen, f"the node {node_id} is not ready")


@router.post("/pools/{pool}/drill", status_code=202, operation_id="drill_pool", response_model=Drill)
async def drill_pool(request: Request, pool: str, _: Annotated[Parameters, Query()]) -> Response:
    """Take every ready node of a pool at the same time."""

    def chosen(connection: sa.Connection) -> list[NodeRow]:
        found = store.ready_nodes(connection, pool)
        # A pool that was moved has nodes in two clusters for a while; one controller carries out a drill.
        return [node for node in found if node.cluster == found[0].cluster]

    return await _request(request, chosen, f"the pool {pool[:80]!r} has no ready node")


@router.get("/drills/{drill_id}", operation_id="show_drill", response_model=Drill)
async def show_drill(request: Request, drill_id: str, _: Annotated[Parameters, Query()]) -> Drill:
    """How a drill goes, or went."""
    row = None
    if is_id("drill", drill_id):
        row = await context_of(request).database.read(
            lambda connection: store.get_drill(connection, drill_id)
        )
    if row is None:
        raise ApiProblem(404, "drill_not_found", f"there is no drill {drill_id[:80]!r}")
    return drill_view(row)


async def _request(request: Request, chosen: Callable[[sa.Connection], list[NodeRow]], none: str) -> Response:
    """Store a drill of the nodes that `chosen` finds; `none` is the message when it finds none."""
    context = context_of(request)
    order = await read_object(request, MAX_ORDER_BYTES, MAX_ORDER_VALUES, context.checks, _order)
    now = context.clock()

    def work(connection: sa.Connection, noted: Noted) -> DrillRow:
        nodes = chosen(connection)
        if not nodes:
            raise ApiProblem(409, "node_not_ready", none, hint="`remora nodes` shows which are")
        others = store.open_drills(connection, nodes[0].cluster)
        if others:
            # The costs of two drills at once could not be separated.
            raise ApiProblem(409, "drill_under_way", f"the drill {others[0].id} is not over yet")
        row = DrillRow(
            id=new_id("drill", now),
            node_ids=[node.id for node in nodes],
            requested_at=now,
            notice_s=order.notice_s,
            cluster=nodes[0].cluster,
        )
        store.insert_drill(connection, row)
        noted.object, noted.after = row.id, {"nodes": row.node_ids, "notice_s": order.notice_s}
        return row

    view = drill_view(await write(request, work))
    headers = {"Location": f"/v1/drills/{view.id}"}
    return Response(view.model_dump_json(), 202, headers, media_type="application/json")


def _order(body: dict[str, Any]) -> Order:
    try:
        return Order.model_validate(body)
    except ValidationError as error:
        problems = [
            FieldProblem(
                field=".".join(str(part) for part in one["loc"]).encode("utf-8", "replace").decode(),
                message=str(one["msg"]).removeprefix("Value error, "),
            )
            for one in error.errors()
        ]
        first = problems[0]
        detail = f"{first.field}: {first.message}" if first.field else first.message
        raise ApiProblem(422, "invalid_drill", detail, errors=problems) from None

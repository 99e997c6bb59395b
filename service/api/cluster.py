"""Nodes, and whether the service is well."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.exc import DBAPIError
from starlette.responses import Response

import remora
from remora.views import Health, Node, Page
from service.api.context import context_of
from service.api.parameters import PageParameters, Parameters, make_cursor, read_cursor
from service.api.problems import ApiProblem
from service.api.views import node_view
from service.store.ids import is_id
from service.store.leases import age_s
from service.store.nodes import page_of_nodes
from service.store.totals import totals

router = APIRouter()

#: The lease of the controller; its age says whether one is at work.
CONTROLLER = "controller"


@router.get("/v1/nodes", operation_id="list_nodes", response_model=Page[Node])
async def list_nodes(request: Request, query: Annotated[PageParameters, Query()]) -> Page[Node]:
    """Machines of the cluster, newest first, ended ones included."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("node", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    rows = await context_of(request).database.read(
        lambda connection: page_of_nodes(connection, before=before, limit=query.limit)
    )
    cursor = make_cursor(rows[-1].id) if len(rows) == query.limit else None
    return Page[Node](items=[node_view(row) for row in rows], next_cursor=cursor)


@router.get("/healthz", operation_id="health", response_model=Health)
async def healthz(_: Annotated[Parameters, Query()]) -> Health:
    """The process answers; nothing else is asked."""
    return Health(status="ok", version=remora.__version__)


@router.get("/readyz", operation_id="ready", response_model=Health)
async def readyz(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """200 when jobs can be accepted and a controller is at work, else 503 with what is missing."""
    context = context_of(request)
    age = None
    try:
        age = await context.database.read(lambda connection: age_s(connection, CONTROLLER, context.clock()))
    except DBAPIError:
        status = "the database does not answer"
    else:
        alive = age is not None and age < 3 * context.settings.lease_s
        status = "ready" if alive else "no controller is at work: jobs are accepted and wait"
    health = Health(status=status, version=remora.__version__, controller_age_s=age)
    code = 200 if status == "ready" else 503
    return Response(health.model_dump_json(), code, media_type="application/json")


@router.get("/metrics", operation_id="metrics")
async def metrics(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Numbers for Prometheus."""
    context = context_of(request)
    counted = await context.database.read(totals)
    age = await context.database.read(lambda connection: age_s(connection, CONTROLLER, context.clock()))
    text = context.telemetry.text(counted, age)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

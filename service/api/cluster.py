"""The health of the service."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.exc import DBAPIError
from starlette.responses import Response

import remora
from remora.views import Health
from service.api.context import Context, context_of
from service.api.parameters import Parameters
from service.store import leases
from service.store.failures import SENTENCES, failure_of
from service.store.totals import totals

router = APIRouter()

#: The lease of the controller; its age says whether one is at work.
CONTROLLER = "controller"


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
        age = await _controller_age_s(context)
    except DBAPIError as error:
        status = SENTENCES.get(failure_of(error), "the database does not answer")
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
    age = await _controller_age_s(context)
    text = context.telemetry.text(counted, age)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _controller_age_s(context: Context) -> float | None:
    """Seconds since the controller's lease was renewed; None when no process ever held it."""
    row = await context.database.read(lambda connection: leases.get(connection, CONTROLLER))
    if row is None:
        return None
    # At the first request there is only the wall clock to compare, its own with that of the owner.
    by_the_clocks_s = max(0.0, context.clock() - row.renewed_at)
    return context.lease.unchanged_s(row, time.monotonic(), before_s=by_the_clocks_s)

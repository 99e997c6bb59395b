"""The service itself: its health, its numbers for operators, and the deletion of old rows at their request."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from sqlalchemy.exc import DBAPIError
from starlette.responses import PlainTextResponse, Response

import remora
from remora.clusters import DEFAULT_CLUSTER
from remora.views import Health, Pruned
from service.api.context import context_of
from service.api.led_clusters import controller_ages, without_controller
from service.api.parameters import MAX_NUMBER, Parameters
from service.api.problem_documents import invalid_parameter
from service.api.writes import Noted, note
from service.store.failures import SENTENCES, failure_of
from service.store.pruning import ROWS, Limits, limits_of, prune
from service.store.totals import totals

router = APIRouter()


@router.get("/healthz", operation_id="health", response_model=Health)
async def healthz(_: Annotated[Parameters, Query()]) -> Health:
    """The process answers; nothing else is asked."""
    return Health(status="ok", version=remora.__version__)


@router.get("/readyz", operation_id="ready", response_model=Health, responses={503: {"model": Health}})
async def readyz(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """200 when jobs can be accepted and the first cluster has a controller, else 503; with what is missing."""
    context = context_of(request)
    age, code = None, 503
    try:
        ages = await controller_ages(context)
    except DBAPIError as error:
        status = SENTENCES.get(failure_of(error), "the database does not answer")
    else:
        not_led = without_controller(context, ages)
        status, age = _status(ages, not_led), ages[DEFAULT_CLUSTER]
        # What is wrong with one cluster is no reason to send requests for the others elsewhere.
        code = 503 if DEFAULT_CLUSTER in not_led else 200
    health = Health(status=status, version=remora.__version__, controller_age_s=age)
    return Response(health.model_dump_json(), code, media_type="application/json")


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
async def metrics(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Numbers for Prometheus."""
    context = context_of(request)
    now = context.clock()
    counted = await context.database.read(lambda connection: totals(connection, now))
    ages = {name: age for name, age in (await controller_ages(context)).items() if age is not None}
    text = context.telemetry.text(counted, ages, context.streams.count, now)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _status(clusters: Collection[str], not_led: Collection[str]) -> str:
    """Whether each cluster has a controller, for people."""
    if not not_led:
        return "ready"
    where = "" if set(clusters) == {DEFAULT_CLUSTER} else f" on {', '.join(not_led)}"
    said = f"no controller is at work{where}: jobs are accepted and wait"
    return said if DEFAULT_CLUSTER in not_led else f"ready, but {said}"


#: Seconds that one request deletes for; a client that wants more asks again.
LASTS_S = 2.0


class PruneParameters(Parameters):
    """What is kept; what is not given is as the settings say."""

    older_than_s: Annotated[float, Field(ge=0, le=MAX_NUMBER)] | None = None
    keep_jobs: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None


@router.post("/v1/prune", operation_id="prune", response_model=Pruned)
async def prune_now(request: Request, wanted: Annotated[PruneParameters, Query()]) -> Pruned:
    """Delete what ended longer ago than `older_than_s`, and ended jobs beyond the newest `keep_jobs`."""
    context = context_of(request)
    settings = context.settings
    usual = limits_of(settings.retention_days, settings.retention_jobs, settings.retention_rows)
    if usual is None and wanted.older_than_s is None:
        raise invalid_parameter("older_than_s", "the settings keep everything; say what shall be deleted")
    limits = Limits(
        age_s=usual.age_s
        if wanted.older_than_s is None and usual is not None
        else wanted.older_than_s or 0.0,
        jobs=settings.retention_jobs if wanted.keep_jobs is None else wanted.keep_jobs,
        rows=settings.retention_rows,
    )
    # Before anything is deleted: that takes several transactions.
    await note(request, Noted(after={"older_than_s": limits.age_s, "keep_jobs": limits.jobs}))
    jobs = nodes = rows = 0
    has_more, until = True, time.monotonic() + LASTS_S
    while has_more and time.monotonic() < until:
        step = await context.database.write(partial(prune, limits=limits, now=context.clock(), most=ROWS))
        jobs, nodes, rows, has_more = jobs + step.jobs, nodes + step.nodes, rows + step.rows, step.has_more
    return Pruned(jobs=jobs, nodes=nodes, rows=rows, has_more=has_more)

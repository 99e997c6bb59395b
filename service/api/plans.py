"""What-if: a trace replayed under one policy or two, and the history of the service as a trace."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from cluster.policies.policies import ClusterName
from cluster.traces.lines import write_lines
from remora.clusters import DEFAULT_CLUSTER
from remora.views import RecordedTrace, WhatIf
from service.api.bodies import read_json
from service.api.context import context_of
from service.api.pages import as_json
from service.api.parameters import Parameters
from service.api.writes import Noted, note
from service.clouds.fixed_pool import known, local_offerings
from service.garbage_collection import without_collections
from service.settings import Settings
from service.store.trace_history import history_since
from service.what_if.recorded import History, recorded

router = APIRouter()

#: Seconds that a request may wait for news.
LONGEST_WAIT_S = 20.0


class WaitParameters(Parameters):
    """How long to wait for news."""

    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 0.0


@router.post("/v1/plans", operation_id="create_plan", status_code=202, response_model=WhatIf)
async def create_plan(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Begin a replay; its answer is at `Location`."""
    context = context_of(request)
    body = await read_json(request, context.settings.max_trace_bytes)
    view = await context.replays.start(body)
    await note(request, Noted(object=view.id))
    if await request.is_disconnected():  # no client knows its id, and it would block all others
        await context.replays.cancel(view.id)
    headers = {"Location": f"/v1/plans/{view.id}"}
    return Response(view.model_dump_json(), 202, headers, media_type="application/json")


@router.get("/v1/plans/{plan_id}", operation_id="get_plan", response_model=WhatIf)
async def get_plan(request: Request, plan_id: str, query: Annotated[WaitParameters, Query()]) -> WhatIf:
    """Where a replay stands; with `wait_s` the answer comes with its next news."""
    return await context_of(request).replays.get(plan_id, query.wait_s)


@router.delete("/v1/plans/{plan_id}", operation_id="cancel_plan", response_model=WhatIf)
async def cancel_plan(request: Request, plan_id: str, _: Annotated[Parameters, Query()]) -> WhatIf:
    """End a replay that no client needs any more, so that the next one can begin."""
    view = await context_of(request).replays.cancel(plan_id)
    await note(request, Noted(object=view.id))
    return view


class SpanParameters(Parameters):
    """How far back, and of which cluster."""

    #: Seconds since 1970.
    since: Annotated[float, Field(ge=0, le=1e10)] = 0.0
    cluster: ClusterName = DEFAULT_CLUSTER


@router.get("/v1/trace", operation_id="export_trace", response_model=RecordedTrace)
async def export_trace(request: Request, query: Annotated[SpanParameters, Query()]) -> Response:
    """Jobs of a cluster submitted since then with the work that they did, what can be bought, and what was sold out."""
    context = context_of(request)
    now = context.clock()

    def work(connection: sa.Connection) -> str:
        # A hundred thousand jobs take a second, and are many values.
        with without_collections():
            return _written(
                history_since(connection, query.cluster, query.since, now), context.settings, query.cluster
            )

    return as_json(await context.database.read(work))


def _written(history: History, settings: Settings, cluster: str) -> str:
    catalogue = known(settings).catalogue_of(cluster)
    trace, left_out = recorded(history, local_offerings(settings) if catalogue is None else catalogue)
    text = "".join(f"{line}\n" for line in write_lines(trace))
    return RecordedTrace(text=text, jobs=len(trace.jobs), left_out=left_out).model_dump_json()

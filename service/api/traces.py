"""Exports the history of the service as a trace."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from cluster.traces.lines import write_lines
from remora.views import RecordedTrace
from service.api.context import context_of
from service.api.pages import as_json
from service.api.parameters import Parameters
from service.clouds.fixed_pool import known, local_offerings
from service.garbage_collection import without_collections
from service.settings import Settings
from service.store.history import history_since
from service.what_if.recorded import History, recorded

router = APIRouter()


class SpanParameters(Parameters):
    """How far back."""

    #: Seconds since 1970.
    since: Annotated[float, Field(ge=0, le=1e10)] = 0.0


@router.get("/v1/trace", operation_id="export_trace", response_model=RecordedTrace)
async def export_trace(request: Request, query: Annotated[SpanParameters, Query()]) -> Response:
    """Jobs that were submitted since then with the work that they did, what can be bought, and what was sold out."""
    context = context_of(request)
    now = context.clock()

    def work(connection: sa.Connection) -> str:
        # A hundred thousand jobs take a second, and are many values.
        with without_collections():
            return _written(history_since(connection, query.since, now), context.settings)

    return as_json(await context.database.read(work))


def _written(history: History, settings: Settings) -> str:
    catalogue = known(settings).catalogue
    trace, left_out = recorded(history, local_offerings(settings) if catalogue is None else catalogue)
    text = "".join(f"{line}\n" for line in write_lines(trace))
    return RecordedTrace(text=text, jobs=len(trace.jobs), left_out=left_out).model_dump_json()

"""Deletes old rows at the request of an operator, before the controller would."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from remora.views import Pruned
from service.api.context import context_of
from service.api.parameters import MAX_NUMBER, Parameters
from service.api.problems import invalid_parameter
from service.store.retention import ROWS, Limits, limits_of, prune

router = APIRouter()

#: Seconds that one request deletes for; a client that wants more asks again.
LASTS_S = 2.0


class PruneParameters(Parameters):
    """What is kept; what is not told is as the settings say."""

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
    jobs = nodes = rows = 0
    has_more, until = True, time.monotonic() + LASTS_S
    while has_more and time.monotonic() < until:
        step = await context.database.write(partial(prune, limits=limits, now=context.clock(), most=ROWS))
        jobs, nodes, rows, has_more = jobs + step.jobs, nodes + step.nodes, rows + step.rows, step.has_more
    return Pruned(jobs=jobs, nodes=nodes, rows=rows, has_more=has_more)

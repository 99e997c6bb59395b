"""How busy processors and GPUs are: of the workers of a job, and of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from remora.views import LoadPoint, NodeLoad, Page, WorkerLoad
from service.api.context import context_of, job_of
from service.api.pages import as_json, write_page
from service.api.parameters import Cursor, Parameters, read_cursor, read_number_cursor
from service.api.problem_documents import ApiProblem
from service.store import loads
from service.store.ids import is_id

router = APIRouter()


class LoadsParameters(Parameters):
    """Which page; each item has some tens of points."""

    limit: Annotated[int, Field(ge=1, le=200)] = 100
    cursor: Cursor | None = None


@router.get("/v1/jobs/{job_id}/loads", operation_id="list_worker_loads", response_model=Page[WorkerLoad])
async def list_worker_loads(
    request: Request, job_id: str, query: Annotated[LoadsParameters, Query()]
) -> Response:
    """How busy each worker of a running job was in the last ten minutes, by rank."""
    job = await job_of(request, job_id)
    now, after = context_of(request).clock(), read_number_cursor(query.cursor, -1)

    def work(connection: sa.Connection) -> bytes:
        found = (
            []
            if job.state.is_terminal
            else loads.of_job(connection, job.id, job.attempt, now, after, query.limit)
        )
        return write_page(found, _worker, lambda one: one.rank, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.get("/v1/loads", operation_id="list_node_loads", response_model=Page[NodeLoad])
async def list_node_loads(request: Request, query: Annotated[LoadsParameters, Query()]) -> Response:
    """How busy the workers on each node kept it in the last ten minutes, the newest node first."""
    before = None if query.cursor is None else read_cursor(query.cursor)
    if before is not None and not is_id("node", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    now = context_of(request).clock()

    def work(connection: sa.Connection) -> bytes:
        found = loads.of_nodes(connection, now, before, query.limit)
        return write_page(found, _node, lambda one: one.node_id, query.limit)

    return as_json(await context_of(request).database.read(work))


def _worker(found: loads.WorkerPoints) -> WorkerLoad:
    return WorkerLoad(
        rank=found.rank,
        attempt=found.attempt,
        address=found.address,
        gpus=found.gpus,
        points=_points(found.points),
    )


def _node(found: loads.NodePoints) -> NodeLoad:
    return NodeLoad(
        node_id=found.node_id, workers=found.workers, gpus=found.gpus, points=_points(found.points)
    )


def _points(found: Sequence[loads.Point]) -> list[LoadPoint]:
    return [LoadPoint(at=one.at, cpu=one.cpu, gpu=one.gpu) for one in found]

"""Arrays: many jobs that one specification describes."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from remora.errors import SpecError, SpecProblem
from remora.spec.spec import JobSpec
from remora.states import JobState
from remora.views import JobArray, Page
from service.api.context import Context, context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem
from service.api.submissions import answer_once, check_bundle, read_elements, read_spec
from service.api.views import array_view
from service.queue import lifecycle
from service.store import arrays as store
from service.store import jobs, submissions
from service.store.ids import is_id

router = APIRouter(prefix="/v1/arrays")


@router.post("", status_code=201, operation_id="submit_array", response_model=JobArray)
async def submit(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Accept many jobs by one specification with an `array`; all are stored, or none."""

    def read(body: dict[str, Any]) -> JobSpec:
        spec = JobSpec.from_mapping(body)
        if spec.array is None:
            raise SpecError([SpecProblem("array", "missing; submit one job to /v1/jobs")])
        if spec.schedule is not None:
            raise SpecError(
                [SpecProblem("schedule", "it is submitted again and again; POST it to /v1/schedules")]
            )
        return spec

    body = await read_spec(request, read, salt="array")
    elements = await read_elements(request, body.spec)
    await check_bundle(request, body.spec)
    now = context_of(request).clock()

    def create(connection: sa.Connection) -> tuple[str, str]:
        row = submissions.submit_array(connection, body.spec, elements, now)
        view = array_view(row, {JobState.QUEUED.value: row.size}, 0.0)
        return store.job_ids(connection, row.id)[0], view.model_dump_json()

    return await answer_once(request, body.digest, create, "/v1/arrays", JobArray, len(elements))


@router.get("", operation_id="list_arrays", response_model=Page[JobArray])
async def list_arrays(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """Arrays, newest first."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("array", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")

    def work(connection: sa.Connection) -> bytes:
        rows = list(store.page(connection, before, query.limit))
        states = store.states_of(connection, [row.id for row in rows])
        return write_page(rows, lambda row: array_view(row, states[row.id]), lambda row: row.id, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.get("/{array_id}", operation_id="show_array", response_model=JobArray)
async def show(request: Request, array_id: str, _: Annotated[Parameters, Query()]) -> JobArray:
    """One array: its jobs by state, and what they have cost."""
    return await _shown(context_of(request), array_id)


@router.post("/{array_id}/cancel", status_code=202, operation_id="cancel_array", response_model=JobArray)
async def cancel(request: Request, array_id: str, _: Annotated[Parameters, Query()]) -> JobArray:
    """End all jobs of the array.  Asking again is fine."""
    context = context_of(request)
    now = context.clock()

    def work(connection: sa.Connection) -> None:
        locked = jobs.lock_jobs(connection, store.job_ids(connection, array_id, active=True))
        changes = [jobs.Change(job, lifecycle.request_cancel(job, now)) for job in locked.values()]
        jobs.save_all(connection, changes)

    if is_id("array", array_id):
        await context.database.write(work)
    return await _shown(context, array_id)


async def _shown(context: Context, array_id: str) -> JobArray:
    now = context.clock()

    def work(connection: sa.Connection) -> JobArray | None:
        row = store.get(connection, array_id)
        if row is None:
            return None
        return array_view(
            row, store.states_of(connection, [row.id])[row.id], store.cost(connection, row.id, now)
        )

    found = await context.database.read(work) if is_id("array", array_id) else None
    if found is None:
        raise ApiProblem(404, "array_not_found", f"there is no array {array_id[:80]!r}")
    return found

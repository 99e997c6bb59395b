"""Arrays: many jobs that one specification describes."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cluster.policies.policies import Policies
from remora.errors import SpecError, SpecProblem
from remora.spec.spec import JobSpec
from remora.states import JobState
from remora.views import JobArray, Page
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem
from service.api.submissions import answer_once, check_bundle, read_elements, read_spec
from service.api.trace_contexts import traceparent_of
from service.api.views import array_view
from service.api.writes import Noted, write
from service.queue import lifecycle
from service.store import arrays as store
from service.store import jobs, submissions
from service.store.ids import is_id
from service.store.scoped import find_array

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
    now, access = context_of(request).clock(), access_of(request)
    traceparent = traceparent_of(request)

    def create(connection: sa.Connection, noted: Noted, policies: Policies) -> tuple[str, str]:
        row = submissions.submit_array(
            connection,
            body.spec,
            elements,
            now,
            access=access,
            by=access.principal.id,
            policies=policies,
            traceparent=traceparent,
        )
        noted.project, noted.object = row.project, row.id
        noted.after = {"name": row.name, "jobs": row.size, "code": body.spec.bundle}
        view = array_view(row, {JobState.QUEUED.value: row.size}, 0.0)
        return store.job_ids(connection, row.id)[0], view.model_dump_json()

    return await answer_once(request, body, create, "/v1/arrays", JobArray, len(elements))


@router.get("", operation_id="list_arrays", response_model=Page[JobArray])
async def list_arrays(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """Arrays, newest first."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("array", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")

    projects = access_of(request).projects

    def work(connection: sa.Connection) -> bytes:
        rows = list(store.page(connection, projects, before, query.limit))
        states = store.states_of(connection, [row.id for row in rows])
        return write_page(rows, lambda row: array_view(row, states[row.id]), lambda row: row.id, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.get("/{array_id}", operation_id="show_array", response_model=JobArray)
async def show(request: Request, array_id: str, _: Annotated[Parameters, Query()]) -> JobArray:
    """One array: its jobs by state, and what they have cost."""
    return await _shown(request, array_id)


@router.post("/{array_id}/cancel", status_code=202, operation_id="cancel_array", response_model=JobArray)
async def cancel(request: Request, array_id: str, _: Annotated[Parameters, Query()]) -> JobArray:
    """End all jobs of the array.  Asking again is fine."""
    now, access = context_of(request).clock(), access_of(request)

    def work(connection: sa.Connection, noted: Noted) -> None:
        row = find_array(connection, access, array_id)
        if row is None:
            raise _not_found(array_id)
        locked = jobs.lock_jobs(connection, store.job_ids(connection, array_id, active=True))
        changes = [jobs.Change(job, lifecycle.request_cancel(job, now)) for job in locked.values()]
        jobs.save_all(connection, changes)
        noted.project, noted.object = row.project, row.id
        noted.before, noted.after = {"active_jobs": len(changes)}, {"cancelled_jobs": len(changes)}

    await write(request, work)
    return await _shown(request, array_id)


async def _shown(request: Request, array_id: str) -> JobArray:
    context, access = context_of(request), access_of(request).reading
    now = context.clock()

    def work(connection: sa.Connection) -> JobArray | None:
        row = find_array(connection, access, array_id)
        if row is None:
            return None
        return array_view(
            row, store.states_of(connection, [row.id])[row.id], store.cost(connection, row.id, now)
        )

    found = await context.database.read(work)
    if found is None:
        raise _not_found(array_id)
    return found


def _not_found(array_id: str) -> ApiProblem:
    return ApiProblem(404, "array_not_found", f"there is no array {array_id[:80]!r}")

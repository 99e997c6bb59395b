"""Jobs: submit, list, show, cancel, and their attempts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cluster.policies.policies import Policies
from cluster.scheduling.queue_order import WAITS_IN_QUEUE, placed
from cluster.scheduling.quotas import has_quotas
from cluster.scheduling.shares import has_shares
from remora.errors import SpecError, SpecProblem
from remora.spec.overrides import MAX_OVERRIDES, overridden
from remora.spec.spec import JobSpec
from remora.states import JobState
from remora.views import Attempt, DryRun, Job, Page
from service.api.authorisation import access_of
from service.api.context import Context, context_of, job_of
from service.api.dry_runs import try_out
from service.api.hidden_job_ids import ForeignJobs, shown_job
from service.api.pages import as_json, write_page
from service.api.parameters import JobsParameters, Parameters, SubmitParameters, read_cursor
from service.api.problem_documents import ApiProblem, job_not_found
from service.api.submissions import answer_once, check_bundle, read_spec
from service.api.trace_contexts import traceparent_of
from service.api.views import attempt_view, job_view
from service.api.writes import Noted, write
from service.policies_in_force import policies_in_force
from service.queue import lifecycle
from service.queue.rows import JobRow
from service.store import jobs as store
from service.store import submissions
from service.store.ids import is_id
from service.store.scoped import find_job

router = APIRouter(prefix="/v1/jobs")


@router.post(
    "",
    status_code=201,
    operation_id="submit_job",
    response_model=Job,
    responses={200: {"model": DryRun, "description": "With `dry_run`: what would become of it."}},
)
async def submit(request: Request, query: Annotated[SubmitParameters, Query()]) -> Response:
    """Accept a job; once 201 is answered it is not lost.  With `Idempotency-Key` a repetition is answered alike.

    With `dry_run=true` nothing is stored, and the answer is a `DryRun`; arrays and schedules are taken, too.
    """
    if query.dry_run:
        return Response((await try_out(request)).model_dump_json(), media_type="application/json")
    body = await read_spec(request, _one_job)
    await check_bundle(request, body.spec)
    now, access = context_of(request).clock(), access_of(request)
    traceparent = traceparent_of(request)

    def create(connection: sa.Connection, noted: Noted, policies: Policies) -> tuple[str, str]:
        job = submissions.submit(
            connection,
            body.spec,
            now,
            access=access,
            by=access.principal.id,
            policies=policies,
            traceparent=traceparent,
        )
        noted.of_job(None, job)
        return job.id, job_view(job).model_dump_json()

    return await answer_once(request, body, create, "/v1/jobs", Job)


def _one_job(body: dict[str, Any]) -> JobSpec:
    spec = JobSpec.from_mapping(body)
    if spec.schedule is not None:
        text = "it is submitted again and again; POST it to /v1/schedules, as `remora submit` does"
        raise SpecError([SpecProblem("schedule", text)])
    if spec.array is not None:
        text = "it describes many jobs; POST it to /v1/arrays, as `remora submit` does"
        raise SpecError([SpecProblem("array", text)])
    return spec


@router.post("/{job_id}/clone", status_code=201, operation_id="clone_job", response_model=Job)
async def clone(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Submit a job again, with other values for some of its fields: `{"set": {"workers.max": 4}}`.

    With `Idempotency-Key` a repetition is answered alike.
    """
    original = await job_of(request, job_id, access_of(request).reading)

    def changed(body: dict[str, Any]) -> JobSpec:
        values = body.get("set") or {}
        if body.keys() - {"set"} or not isinstance(values, dict) or len(values) > MAX_OVERRIDES:
            said = f'give "set", at most {MAX_OVERRIDES} dotted names of fields with their values'
            raise ApiProblem(422, "invalid_change", said)
        return _one_job(overridden(original.spec, values))

    body = await read_spec(request, changed, salt=job_id)
    await check_bundle(request, body.spec)
    now, access = context_of(request).clock(), access_of(request)
    traceparent = traceparent_of(request)

    def create(connection: sa.Connection, noted: Noted, policies: Policies) -> tuple[str, str]:
        job = submissions.submit(
            connection,
            body.spec,
            now,
            f"a clone of {job_id}",
            access=access,
            by=access.principal.id,
            policies=policies,
            traceparent=traceparent,
        )
        noted.of_job(None, job)
        return job.id, job_view(job).model_dump_json()

    return await answer_once(request, body, create, "/v1/jobs", Job)


@router.get("", operation_id="list_jobs", response_model=Page[Job])
async def list_jobs(request: Request, query: Annotated[JobsParameters, Query()]) -> Response:
    """Jobs, newest first."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("job", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")

    context = context_of(request)
    now = context.clock()
    access = access_of(request)
    states, projects, limit = query.state, access.narrowed(query.project), query.limit
    array_id = query.array
    having = [
        (name, value if equals else None)
        for name, equals, value in (one.partition("=") for one in query.label)
    ]

    def work(connection: sa.Connection) -> bytes:
        waiting = store.waiting_on_page(
            connection,
            states=states,
            projects=projects,
            before=before,
            limit=limit,
            having=having,
            array_id=array_id,
        )
        place = _placing(connection, context, waiting, now)
        found = store.page_of_jobs(
            connection,
            states=states,
            projects=projects,
            before=before,
            limit=limit,
            having=having,
            array_id=array_id,
        )
        rows = (place(row) for row in found)
        shown = ForeignJobs(connection, access).job
        return write_page(rows, lambda row: shown(job_view(row)), lambda row: row.id, limit)

    return as_json(await context.database.read(work))


@router.get("/{job_id}", operation_id="show_job", response_model=Job)
async def show(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """One job; 304 when neither it nor its place in the line has changed since the answer with this `ETag`."""
    context, access = context_of(request), access_of(request)
    row = await job_of(request, job_id)
    tag = f'"{row.version}"'
    if row.message == WAITS_IN_QUEUE:
        now = context.clock()
        place = await context.database.read(lambda connection: _placing(connection, context, [job_id], now))
        row = place(row)
        # The place is no part of the row, and changes without a new version of it.
        tag = f'"{row.version}-{zlib.crc32((row.message or "").encode()):x}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    view = job_view(row)
    if access.projects is not None:
        view = await context.database.read(lambda connection: ForeignJobs(connection, access).job(view))
    return Response(view.model_dump_json(), headers={"ETag": tag}, media_type="application/json")


def _placing(
    connection: sa.Connection, context: Context, waiting: Sequence[str], now: float
) -> Callable[[JobRow], JobRow]:
    """Sets the places of those of the jobs that wait in the queue; they are counted now."""
    if not waiting:
        return lambda row: row
    policies = policies_in_force(connection, context.settings)
    # Where projects have shares, jobs ahead in other projects say nothing about a job's place.
    in_projects = has_shares(policies) or has_quotas(policies)
    ahead = store.jobs_ahead(connection, waiting, now, in_projects=in_projects)
    return lambda row: replace(row, message=placed(row.message, ahead.get(row.id), in_project=in_projects))


@router.post("/{job_id}/cancel", status_code=202, operation_id="cancel_job", response_model=Job)
async def cancel(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """End the job: at once while it waits, else as soon as its workers have ended.  Asking again is fine."""
    now, access = context_of(request).clock(), access_of(request)

    def work(connection: sa.Connection, noted: Noted) -> JobRow:
        row = find_job(connection, access, job_id, lock=True)
        if row is None:
            raise job_not_found(job_id)
        if row.state in (JobState.SUCCEEDED, JobState.FAILED):
            raise ApiProblem(409, "not_cancellable", f"the job has ended already: {row.state.value}")
        after = store.save(connection, row, lifecycle.request_cancel(row, now))
        noted.of_job(row, after)
        return after

    row = await write(request, work)
    return Response((await shown_job(request, row)).model_dump_json(), 202, media_type="application/json")


@router.get("/{job_id}/attempts", operation_id="list_attempts", response_model=Page[Attempt])
async def attempts(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Page[Attempt]:
    """Every try at the job, first one first."""
    await job_of(request, job_id)
    rows = await context_of(request).database.read(lambda connection: store.job_attempts(connection, job_id))
    return Page[Attempt](items=[attempt_view(row) for row in rows])

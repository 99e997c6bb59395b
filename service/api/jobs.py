"""Jobs: submit, list, show, cancel, and their attempts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from sqlalchemy.exc import IntegrityError
from starlette.responses import Response

from cluster.scheduling.queue_order import WAITS_FOR_TURN, placed
from cluster.scheduling.quotas import has_quotas
from cluster.scheduling.shares import has_shares
from remora.code.checks import check_code, needs_code
from remora.errors import SpecError, SpecProblem
from remora.spec.spec import MAX_SPEC_BYTES, MAX_SPEC_VALUES, JobSpec
from remora.states import JobState
from remora.views import Attempt, FieldProblem, Job, Page
from service.api.bodies import read_object
from service.api.context import Context, context_of, job_of
from service.api.pages import as_json, write_page
from service.api.parameters import JobsParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem, invalid_spec, job_not_found
from service.api.views import attempt_view, job_view
from service.policies_in_force import policies_in_force
from service.queue import intake, lifecycle
from service.queue.dependencies import Dependency, dependencies_of, why_impossible
from service.queue.rows import JobRow
from service.store import answers, bundles, dependencies
from service.store import jobs as store
from service.store.answers import SavedAnswer
from service.store.bundles import bundle_name
from service.store.ids import is_id, new_id
from service.stores import FIELD, UnknownStore, check_name

router = APIRouter(prefix="/v1/jobs")

#: Bytes of a job's body: a specification's, and as many for escapes and space.
MAX_JOB_BODY_BYTES = 2 * MAX_SPEC_BYTES


@dataclass(frozen=True)
class _Submission:
    spec: JobSpec
    body_digest: str
    key: str | None
    now: float


@router.post("", status_code=201, operation_id="submit_job", response_model=Job)
async def submit(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Accept a job; once 201 is answered it is not lost.  With `Idempotency-Key` a repetition is answered alike."""
    context = context_of(request)
    key = _idempotency_key(request)
    limit = min(context.settings.max_body_bytes, MAX_JOB_BODY_BYTES)
    spec, body_digest = await read_object(request, limit, MAX_SPEC_VALUES, context.checks, _read_spec)
    await _check_bundle(context, spec)
    submission = _Submission(spec, body_digest, key, context.clock())

    def work(connection: sa.Connection) -> tuple[str, bool]:
        return _submit(connection, submission, context.settings.max_active_jobs)

    try:
        answer, is_replay = await context.database.write(work)
    except IntegrityError:
        # The same key came twice at the same moment and the other request won: now its answer is there.
        answer, is_replay = await context.database.write(work)
    job = Job.model_validate_json(answer)
    headers = {"Location": f"/v1/jobs/{job.id}", "ETag": f'"{job.version}"'}
    if is_replay:
        headers["Idempotency-Replayed"] = "true"
    return Response(answer, 201, headers, media_type="application/json")


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 128 or not all(" " <= character <= "~" for character in key):
        raise ApiProblem(
            422, "invalid_idempotency_key", "Idempotency-Key takes 1 to 128 printable ASCII characters"
        )
    return key


def _read_spec(body: dict[str, Any]) -> tuple[JobSpec, str]:
    """What is submitted, and the digest by which a repetition is known."""
    try:
        spec = JobSpec.from_mapping(body)
    except SpecError as error:
        raise invalid_spec(error) from None
    canonical = json.dumps(body, sort_keys=True).encode()
    return spec, hashlib.sha256(canonical).hexdigest()


async def _check_bundle(context: Context, spec: JobSpec) -> None:
    if spec.code_folder is not None:
        message = "a folder on your machine is unknown here: upload it to /v1/bundles and give its digest"
        raise ApiProblem(
            422, "invalid_spec", f"code: {message}", errors=[FieldProblem(field="code", message=message)]
        )
    try:
        check_name(context.settings, spec.checkpoint.store)
    except UnknownStore as error:
        raise invalid_spec(SpecError([SpecProblem(FIELD, str(error))])) from None
    digest = spec.bundle
    if digest is not None and not await asyncio.to_thread(context.storage.exists, bundle_name(digest)):
        raise _no_bundle(digest)
    if digest is not None and needs_code(spec):
        await asyncio.to_thread(_check_code, context, spec, digest)


def _no_bundle(digest: str) -> ApiProblem:
    return ApiProblem(
        422,
        "bundle_not_found",
        f"there is no bundle {digest}",
        hint=f"PUT it to /v1/bundles/{digest} first",
    )


def _check_code(context: Context, spec: JobSpec, digest: str) -> None:
    try:
        with context.storage.open_read(bundle_name(digest)) as bundle:
            check_code(spec, bundle)
    except SpecError as error:
        raise invalid_spec(error) from None


def _submit(connection: sa.Connection, new: _Submission, max_active_jobs: int) -> tuple[str, bool]:
    if new.key is not None:
        saved = answers.find_answer(connection, new.key)
        if saved is not None and saved.body_digest != new.body_digest:
            raise ApiProblem(
                409,
                "idempotency_key_reused",
                "this Idempotency-Key was used with another body",
                hint="use a new key for a new job",
            )
        if saved is not None:
            return saved.answer, True
    refusal = intake.check(store.count_active(connection), max_active_jobs)
    if refusal is not None:
        raise ApiProblem(429, refusal.code, refusal.message, hint=refusal.hint, headers={"Retry-After": "10"})
    # Together with the job: the deletion of bundles sees both, or comes first, and the client uploads it again.
    if new.spec.bundle is not None and not bundles.use(connection, new.spec.bundle, new.now):
        raise _no_bundle(new.spec.bundle)
    row = _row(new.spec, new.now)
    awaited = _awaited(connection, row)
    row = store.insert_job(connection, lifecycle.submit(row, awaited))
    dependencies.insert(connection, [one for one in awaited if not one.is_met])
    answer = job_view(row).model_dump_json()
    if new.key is not None:
        answers.save_answer(connection, new.key, SavedAnswer(new.body_digest, row.id, answer), new.now)
    return answer, False


def _awaited(connection: sa.Connection, job: JobRow) -> list[Dependency]:
    """What a new job waits for.  Raises ApiProblem for jobs that are not there or have ended otherwise."""
    named = [one["job"] for one in job.spec["after"]]
    if not named:
        return []
    # Locked, so that an end of them is seen here or noted by the transaction that ends them.
    others = store.lock_jobs(connection, named)
    problems = [
        SpecProblem(f"after.{place}.job", f"there is no job {job_id}")
        for place, job_id in enumerate(named)
        if job_id not in others
    ]
    if not problems:
        found = dependencies_of(job, others)
        problems = [
            SpecProblem(f"after.{place}", f"{why}; leave it out, or write another `when`")
            for place, one in enumerate(found)
            if (why := why_impossible([one])) is not None
        ]
        if not problems:
            return found
    raise invalid_spec(SpecError(problems))


def _row(spec: JobSpec, now: float) -> JobRow:
    return JobRow(
        id=new_id("job", now),
        name=spec.name,
        project=spec.project,
        priority=spec.priority,
        spec=spec.to_mapping(),
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        worker_resources=spec.ray_resources(),
        retry_limit=spec.retry.limit,
        backoff_s=spec.retry.backoff_s,
        run_time_s=spec.limits.run_time_s,
        wait_time_s=spec.limits.wait_time_s,
        created_at=now,
        labels=spec.labels,
    )


@router.get("", operation_id="list_jobs", response_model=Page[Job])
async def list_jobs(request: Request, query: Annotated[JobsParameters, Query()]) -> Response:
    """Jobs, newest first."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("job", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")

    context = context_of(request)
    now = context.clock()
    states, project, limit = query.state, query.project, query.limit
    having = [
        (name, value if equals else None)
        for name, equals, value in (one.partition("=") for one in query.label)
    ]

    def work(connection: sa.Connection) -> bytes:
        waiting = store.waiting_on_page(
            connection, states=states, project=project, before=before, limit=limit, having=having
        )
        place = _placing(connection, context, waiting, now)
        found = store.page_of_jobs(
            connection, states=states, project=project, before=before, limit=limit, having=having
        )
        rows = (place(row) for row in found)
        return write_page(rows, job_view, lambda row: row.id, limit)

    return as_json(await context.database.read(work))


@router.get("/{job_id}", operation_id="show_job", response_model=Job)
async def show(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """One job; 304 when neither it nor its place in the line has changed since the answer with this `ETag`."""
    context = context_of(request)
    row = await job_of(request, job_id)
    tag = f'"{row.version}"'
    if row.message == WAITS_FOR_TURN:
        now = context.clock()
        place = await context.database.read(lambda connection: _placing(connection, context, [job_id], now))
        row = place(row)
        # The place is no part of the row, and changes without a new version of it.
        tag = f'"{row.version}-{zlib.crc32((row.message or "").encode()):x}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(job_view(row).model_dump_json(), headers={"ETag": tag}, media_type="application/json")


def _placing(
    connection: sa.Connection, context: Context, waiting: Sequence[str], now: float
) -> Callable[[JobRow], JobRow]:
    """Sets the places in the queue of those of the jobs that wait for their turn; they are counted now."""
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
    context = context_of(request)
    now = context.clock()

    def work(connection: sa.Connection) -> JobRow:
        row = store.lock_job(connection, job_id)
        if row is None or row.delete_requested_at is not None:
            raise job_not_found(job_id)
        if row.state in (JobState.SUCCEEDED, JobState.FAILED):
            raise ApiProblem(409, "not_cancellable", f"the job has ended already: {row.state.value}")
        return store.save(connection, row, lifecycle.request_cancel(row, now))

    if not is_id("job", job_id):
        raise job_not_found(job_id)
    row = await context.database.write(work)
    return Response(job_view(row).model_dump_json(), 202, media_type="application/json")


@router.get("/{job_id}/attempts", operation_id="list_attempts", response_model=Page[Attempt])
async def attempts(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Page[Attempt]:
    """Every try at the job, first one first."""
    await job_of(request, job_id)
    rows = await context_of(request).database.read(lambda connection: store.job_attempts(connection, job_id))
    return Page[Attempt](items=[attempt_view(row) for row in rows])

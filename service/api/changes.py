"""What owners change of their jobs: labels, and whether a job is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from remora.errors import SpecError
from remora.spec.fields import refuses_label
from remora.spec.spec import JobSpec
from remora.views import Job
from service.api.authorisation import access_of
from service.api.bodies import read_object
from service.api.context import context_of
from service.api.hidden_job_ids import shown_job
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem, invalid_spec, job_not_found
from service.api.writes import Noted, write
from service.queue import lifecycle, owners_changes
from service.queue.lifecycle import Decision
from service.queue.rows import JobRow
from service.store import deletion, dependencies, labels
from service.store import jobs as store
from service.store.scoped import find_job

router = APIRouter(prefix="/v1/jobs")

#: Bytes of a body that asks for a change, and values in it.
MAX_CHANGE_BYTES, MAX_CHANGE_VALUES = 64 * 1024, 500


@router.patch("/{job_id}/labels", operation_id="label_job", response_model=Job)
async def label(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Set labels, `{"name": "value"}`, and remove those whose value is null; others stay."""
    context = context_of(request)
    wanted = await read_object(request, MAX_CHANGE_BYTES, MAX_CHANGE_VALUES, context.checks, _labels)
    now = context.clock()

    def work(connection: sa.Connection, job: JobRow) -> JobRow:
        decision = owners_changes.relabel(job, wanted, now)
        if decision.events:
            labels.replace_all(connection, job.id, decision.job.labels)
        return store.save(connection, job, decision)

    return await _change(request, job_id, work, 200)


@router.post("/{job_id}/pause", status_code=202, operation_id="pause_job", response_model=Job)
async def pause(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Keep a job from running until it is resumed: its workers end after a checkpoint.  Asking again is fine."""
    now = context_of(request).clock()

    def work(connection: sa.Connection, job: JobRow) -> JobRow:
        owners_changes.check_not_ended(job, "paused")
        return store.save(connection, job, lifecycle.request_pause(job, now))

    return await _change(request, job_id, work, 202)


@router.post("/{job_id}/resume", status_code=202, operation_id="resume_job", response_model=Job)
async def resume(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Let a job go on that its owner paused.  Asking again is fine."""
    now = context_of(request).clock()

    def work(connection: sa.Connection, job: JobRow) -> JobRow:
        owners_changes.check_not_ended(job, "resumed")
        owners_changes.check_is_owners_pause(job)
        waits_for = dependencies.of_jobs(connection, [job.id]).get(job.id, ())
        return store.save(connection, job, lifecycle.request_resume(job, waits_for, now))

    return await _change(request, job_id, work, 202)


@router.post("/{job_id}/resize", status_code=202, operation_id="resize_job", response_model=Job)
async def resize(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Change how many workers a job may have, `{"min": 2, "max": 4}`: a running one grows or becomes smaller."""
    context = context_of(request)
    asked = await read_object(request, MAX_CHANGE_BYTES, MAX_CHANGE_VALUES, context.checks, _sizes)
    now = context.clock()

    def work(connection: sa.Connection, job: JobRow) -> JobRow:
        owners_changes.check_not_ended(job, "resized")
        workers = {**job.spec["workers"], **asked}
        try:
            spec = JobSpec.from_mapping({**job.spec, "workers": workers})
        except SpecError as error:
            raise invalid_spec(error) from None
        decision = owners_changes.resize(job, spec, now)
        if decision.events:
            store.save_sizes(connection, decision.job)
        return store.save(connection, job, decision)

    return await _change(request, job_id, work, 202)


@router.post("/{job_id}/stacks", status_code=202, operation_id="request_stacks", response_model=Job)
async def request_stacks(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Ask what the workers of a running job are doing: events `worker.stack` follow, one for each rank."""
    now = context_of(request).clock()

    def work(connection: sa.Connection, job: JobRow) -> JobRow:
        return store.save(connection, job, owners_changes.request_stacks(job, now))

    return await _change(request, job_id, work, 202)


@router.delete("/{job_id}", status_code=202, operation_id="delete_job", response_model=Job)
async def delete(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Delete an ended job with its logs, metrics, checkpoints and outputs, for good; it is hidden at once."""
    now = context_of(request).clock()

    def work(connection: sa.Connection, job: JobRow) -> JobRow:
        decision: Decision = owners_changes.request_deletion(job, deletion.models_of(connection, job.id), now)
        return store.save(connection, job, decision)

    return await _change(request, job_id, work, 202, takes_deleted=True)


async def _change(
    request: Request,
    job_id: str,
    change: Callable[[sa.Connection, JobRow], JobRow],
    status: int,
    *,
    takes_deleted: bool = False,
) -> Response:
    """Change the locked job and answer with it.  Raises ApiProblem."""
    access = access_of(request)

    def work(connection: sa.Connection, noted: Noted) -> JobRow:
        job = find_job(connection, access, job_id, lock=True, with_deleted=takes_deleted)
        if job is None:
            raise job_not_found(job_id)
        try:
            after = change(connection, job)
        except owners_changes.ChangeRefused as refused:
            raise ApiProblem(409, "not_changeable", str(refused)) from None
        noted.of_job(job, after)
        return after

    row = await write(request, work)
    headers = {"ETag": f'"{row.version}"'}
    shown = await shown_job(request, row)
    return Response(shown.model_dump_json(), status, headers, media_type="application/json")


def _sizes(body: dict[str, Any]) -> dict[str, Any]:
    if not body or not body.keys() <= {"min", "max"}:
        raise ApiProblem(422, "invalid_change", 'give "min", "max" or both: how many workers it may have')
    return body


def _labels(body: dict[str, Any]) -> dict[str, str | None]:
    for name, value in body.items():
        if value is not None and (refusal := refuses_label(name, value)):
            raise ApiProblem(422, "invalid_change", refusal)
    return body

"""Schedules: specifications that are submitted again and again."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from sqlalchemy.exc import IntegrityError
from starlette.responses import Response

from remora.errors import SpecError, SpecProblem
from remora.spec.cron import next_after
from remora.spec.spec import JobSpec
from remora.views import Page, Schedule, ScheduleRun
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem, invalid_spec
from service.api.submissions import check_bundle, no_bundle, read_elements, read_spec, scoped_key
from service.api.views import run_view, schedule_view
from service.api.writes import Noted, write
from service.policies_in_force import policies_in_force
from service.queue.schedules import ScheduleRow
from service.store import schedules as store
from service.store import secret_rows, submissions
from service.store.ids import is_id, new_id
from service.store.scoped import find_schedule

router = APIRouter(prefix="/v1/schedules")


@router.post("", status_code=201, operation_id="submit_schedule", response_model=Schedule)
async def submit(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Store a specification with a `schedule`, whose job is submitted at each of its times."""

    def read(body: dict[str, Any]) -> JobSpec:
        spec = JobSpec.from_mapping(body)
        if spec.schedule is None:
            raise SpecError([SpecProblem("schedule", "missing; submit one job to /v1/jobs")])
        return spec

    context, key, access = context_of(request), scoped_key(request), access_of(request)
    body = await read_spec(request, read, salt="schedule")
    if body.spec.array is not None:
        # What is wrong with one of its jobs is said now, and not at its first time.
        await read_elements(request, body.spec)
    await check_bundle(request, body.spec)
    now, spec = context.clock(), body.spec

    def work(connection: sa.Connection, noted: Noted) -> tuple[ScheduleRow, bool]:
        known = None if key is None else store.of_key(connection, key)
        if known is not None and known.body_digest != body.digest:
            said = "this Idempotency-Key was used with another body"
            raise ApiProblem(409, "idempotency_key_reused", said, hint="use a new key for a new job")
        if known is not None:
            noted.project, noted.object, noted.outcome = known.project, known.id, "replayed"
            return known, True
        policies = policies_in_force(connection, context.settings)
        try:
            secret_rows.check_there(connection, spec)
            submissions.use_bundle(connection, spec, now, access, policies)
            submissions.check_references(connection, spec, access)
        except submissions.BundleMissing as missing:
            raise no_bundle(str(missing)) from None
        except SpecError as error:
            raise invalid_spec(error) from None
        assert spec.schedule is not None
        row = ScheduleRow(
            id=new_id("sched", now),
            name=spec.name,
            project=spec.project,
            created_at=now,
            spec=spec.to_mapping(),
            next_at=next_after(spec.schedule.cron, spec.schedule.zone, now) or now,
            key=key,
            body_digest=body.digest,
            submitted_by=access.principal.id,
            credential=access.principal.credential,
            groups=list(access.principal.groups),
        )
        store.insert(connection, row, policies.limits_of(row.project).schedules)
        noted.project, noted.object = row.project, row.id
        noted.after = {"name": row.name, "cron": row.cron, "zone": row.zone, "code": spec.bundle}
        return row, False

    try:
        row, is_replay = await write(request, work)
    except IntegrityError:
        # The same key came twice at the same moment and the other request won.
        row, is_replay = await write(request, work)
    headers = {"Location": f"/v1/schedules/{row.id}"} | (
        {"Idempotency-Replayed": "true"} if is_replay else {}
    )
    return Response(schedule_view(row).model_dump_json(), 201, headers, media_type="application/json")


@router.get("", operation_id="list_schedules", response_model=Page[Schedule])
async def list_schedules(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """Schedules, newest first, each with its newest run."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("sched", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")

    projects = access_of(request).projects

    def work(connection: sa.Connection) -> bytes:
        rows = list(store.page(connection, projects, before, query.limit))
        newest = store.newest_runs(connection, [row.id for row in rows])
        return write_page(
            rows, lambda row: schedule_view(row, newest.get(row.id)), lambda row: row.id, query.limit
        )

    return as_json(await context_of(request).database.read(work))


@router.get("/{schedule_id}", operation_id="show_schedule", response_model=Schedule)
async def show(request: Request, schedule_id: str, _: Annotated[Parameters, Query()]) -> Schedule:
    """One schedule with its newest run."""
    access = access_of(request)

    def work(connection: sa.Connection) -> Schedule | None:
        row = find_schedule(connection, access, schedule_id)
        if row is None:
            return None
        newest = store.newest_runs(connection, [schedule_id])
        return schedule_view(row, newest.get(row.id))

    found = await context_of(request).database.read(work)
    if found is None:
        raise _not_found(schedule_id)
    return found


@router.get("/{schedule_id}/runs", operation_id="list_runs", response_model=Page[ScheduleRun])
async def runs(request: Request, schedule_id: str, query: Annotated[PageParameters, Query()]) -> Response:
    """What became of the times of a schedule, newest first."""
    try:
        before = None if query.cursor is None else float(read_cursor(query.cursor))
    except ValueError:
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave") from None

    access = access_of(request)

    def work(connection: sa.Connection) -> bytes | None:
        if find_schedule(connection, access, schedule_id) is None:
            return None
        found = store.runs(connection, schedule_id, before, query.limit)
        return write_page(found, run_view, lambda run: repr(run.at), query.limit)

    body = await context_of(request).database.read(work)
    if body is None:
        raise _not_found(schedule_id)
    return as_json(body)


@router.delete("/{schedule_id}", operation_id="delete_schedule", response_model=Schedule)
async def delete(request: Request, schedule_id: str, _: Annotated[Parameters, Query()]) -> Schedule:
    """Delete a schedule: it submits nothing any more.  Jobs that it has submitted stay."""
    access = access_of(request)

    def work(connection: sa.Connection, noted: Noted) -> ScheduleRow:
        row = find_schedule(connection, access, schedule_id, lock=True)
        if row is None:
            raise _not_found(schedule_id)
        store.delete(connection, row)
        noted.project, noted.object = row.project, row.id
        noted.before = {"name": row.name, "cron": row.cron, "zone": row.zone}
        return row

    return schedule_view(await write(request, work))


def _not_found(schedule_id: str) -> ApiProblem:
    return ApiProblem(404, "schedule_not_found", f"there is no schedule {schedule_id[:80]!r}")

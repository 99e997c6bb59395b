"""Profiles of running jobs: ask for one, which there are, and their traces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from remora.views import Page, Profile
from service.api.authorisation import access_of
from service.api.context import context_of, job_of
from service.api.pages import as_json
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem, job_not_found
from service.api.typed_bodies import Body, read_body
from service.api.writes import Noted, write
from service.queue.owners_changes import ChangeRefused
from service.queue.profiles import ProfileRow, request_profile
from service.storage_locations import UnknownStore, open_storage, url_of
from service.store import jobs, profiles
from service.store.scoped import find_job
from trainers.profiles import profile_name
from trainers.storage import Storage, StorageError

router = APIRouter(prefix="/v1/jobs/{job_id}/profiles")

_CHUNK = 2**20


class ProfileWanted(Body):
    """What is to be profiled."""

    steps: Annotated[int, Field(ge=1, le=2**31 - 1)] = 10
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


@router.post("", status_code=202, operation_id="request_profile", response_model=Profile)
async def request_one(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Profile the next steps of a rank of a running job, `{"steps": 10, "rank": 0}`."""
    wanted = await read_body(request, ProfileWanted)
    access, now = access_of(request), context_of(request).clock()

    def work(connection: sa.Connection, noted: Noted) -> ProfileRow:
        job = find_job(connection, access, job_id, lock=True)
        if job is None:
            raise job_not_found(job_id)
        known = profiles.of_job(connection, job.id)
        try:
            decision, row = request_profile(job, known, wanted.rank, wanted.steps, now)
        except ChangeRefused as refused:
            raise ApiProblem(409, "not_changeable", str(refused)) from None
        profiles.add(connection, row)
        jobs.save(connection, job, decision)
        noted.project, noted.object = job.project, job.id
        noted.after = {"profile": row.number, "rank": row.rank, "steps": row.steps}
        return row

    row = await write(request, work)
    return Response(_view(row).model_dump_json(), 202, media_type="application/json")


@router.get("", operation_id="list_profiles", response_model=Page[Profile])
async def list_profiles(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """All that were asked for, the oldest first."""
    await job_of(request, job_id)

    def work(connection: sa.Connection) -> str:
        found = [_view(row) for row in profiles.of_job(connection, job_id)]
        return Page[Profile](items=found).model_dump_json()

    return as_json(await context_of(request).database.read(work))


@router.get("/{number}/content", operation_id="download_profile")
async def content(request: Request, job_id: str, number: str, _: Annotated[Parameters, Query()]) -> Response:
    """The trace of one, in the format of Chrome's traces, compressed."""
    job = await job_of(request, job_id)
    rows = await context_of(request).database.read(lambda connection: profiles.of_job(connection, job_id))
    row = next((one for one in rows if str(one.number) == number), None)
    if row is None:
        raise _not_found(f"the job has no profile {number[:20]!a}")
    if row.file is None:
        raise _not_found(f"there is no trace: {row.message or 'the profile is under way'}")
    store = job.facts.checkpoint_store
    settings = context_of(request).settings
    try:
        storage = await asyncio.to_thread(lambda: open_storage(settings, url_of(settings, store)))
    except UnknownStore as error:
        raise _not_found(f"its trace cannot be read: {error}") from None
    name = profile_name(job.id, row.file)
    try:
        size = await asyncio.to_thread(storage.size, name)
    except FileNotFoundError:
        size = -1
    if size != row.size_bytes:
        raise _not_found("its trace is not in the storage any more")
    request.scope["remora.is_stream"] = True
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f'attachment; filename="{job.id}-profile-{row.number}.json.gz"',
        "ETag": f'"{row.sha256}"',
    }
    return StreamingResponse(_read(storage, name, size), media_type="application/gzip", headers=headers)


def _not_found(detail: str) -> ApiProblem:
    return ApiProblem(404, "profile_not_found", detail, hint="list the job's profiles")


def _read(storage: Storage, name: str, size: int) -> Iterator[bytes]:
    left = size
    with storage.open_read(name) as opened:
        while left and (chunk := opened.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
    if left:
        # The length is promised already: a cut answer is the only honest one.
        raise StorageError(f"{name} became shorter while it was read")


def _view(row: ProfileRow) -> Profile:
    return Profile(
        number=row.number,
        attempt=row.attempt,
        rank=row.rank,
        steps=row.steps,
        state=row.state,
        requested_at=row.requested_at,
        ended_at=row.ended_at,
        message=row.message,
        profiled_steps=row.profiled_steps,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
    )

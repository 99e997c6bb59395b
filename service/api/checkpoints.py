"""Checkpoints: which there are, and their content as one tar stream."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Iterator
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from remora.views import Checkpoint, Page
from service.api.context import context_of, job_of
from service.api.pages import as_json
from service.api.parameters import MAX_NUMBER, Parameters
from service.api.problem_documents import ApiProblem
from service.settings import Settings
from service.storage_locations import UnknownStore, open_location
from service.store import job_history
from trainers.storage import Storage, StorageError

router = APIRouter(prefix="/v1/jobs/{job_id}/checkpoints")

_CHUNK = 2**20
_BLOCK = tarfile.BLOCKSIZE
#: A tar archive ends with two empty blocks.
_END = b"\0" * (2 * _BLOCK)


@router.get("", operation_id="list_checkpoints", response_model=Page[Checkpoint])
async def list_checkpoints(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Complete saved states that were not removed yet, oldest first."""
    await job_of(request, job_id)

    def work(connection: sa.Connection) -> str:
        return Page[Checkpoint](items=job_history.job_checkpoints(connection, job_id)).model_dump_json()

    return as_json(await context_of(request).database.read(work))


@router.get("/{step}/content", operation_id="download_checkpoint")
async def content(request: Request, job_id: str, step: str, _: Annotated[Parameters, Query()]) -> Response:
    """All files of a checkpoint as a tar archive."""
    job = await job_of(request, job_id)
    checkpoint = None
    if step.isascii() and step.isdigit() and int(step[:17]) <= MAX_NUMBER:
        number = int(step[:17])
        checkpoint = await context_of(request).database.read(
            lambda connection: job_history.get_checkpoint(connection, job_id, number)
        )
    if checkpoint is None:
        raise _not_found(
            step, f"the newest one is of step {job.checkpoint_step}" if job.checkpoint_step else None
        )
    storage = await asyncio.to_thread(_open, context_of(request).settings, checkpoint)
    request.scope["remora.is_stream"] = True
    headers = {
        "Content-Length": str(_size(checkpoint)),
        "Content-Disposition": f'attachment; filename="{job_id}-step-{checkpoint.step}.tar"',
    }
    return StreamingResponse(_tar(storage, checkpoint), media_type="application/x-tar", headers=headers)


def _not_found(step: str, hint: str | None) -> ApiProblem:
    return ApiProblem(404, "checkpoint_not_found", f"there is no checkpoint of step {step[:20]!a}", hint=hint)


def _open(settings: Settings, checkpoint: Checkpoint) -> Storage:
    """The storage of a checkpoint whose files are all there.  Raises ApiProblem when retention was quicker."""
    try:
        storage = open_location(settings, checkpoint.location)
    except UnknownStore as error:
        raise _not_found(str(checkpoint.step), str(error)) from None
    try:
        complete = all(storage.size(name) == size for name, size in checkpoint.files.items())
    except FileNotFoundError:
        complete = False
    if not complete:
        raise _not_found(str(checkpoint.step), "its files were removed meanwhile; list the checkpoints again")
    return storage


def _header(checkpoint: Checkpoint, name: str) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = checkpoint.files[name]
    entry.mtime = int(checkpoint.committed_at)
    entry.mode = 0o644
    return entry.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % _BLOCK


def _size(checkpoint: Checkpoint) -> int:
    entries = sum(
        len(_header(checkpoint, name)) + size + _padding(size) for name, size in checkpoint.files.items()
    )
    return entries + len(_END)


def _tar(storage: Storage, checkpoint: Checkpoint) -> Iterator[bytes]:
    for name, size in sorted(checkpoint.files.items()):
        yield _header(checkpoint, name)
        left = size
        with storage.open_read(name) as file:
            while left and (chunk := file.read(min(_CHUNK, left))):
                left -= len(chunk)
                yield chunk
        if left:
            # The length is promised already: a cut answer is the only honest one.
            raise StorageError(f"{name} of checkpoint {checkpoint.step} became shorter while it was read")
        yield b"\0" * _padding(size)
    yield _END

"""Outputs of jobs, and the models made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from remora.views import ModelVersion, OutputFile, Page
from service.api.authorisation import access_of
from service.api.context import context_of, job_of
from service.api.pages import as_json, write_page
from service.api.parameters import (
    MAX_NUMBER,
    OutputsParameters,
    PageParameters,
    Parameters,
    read_cursor,
    read_number_cursor,
)
from service.api.problem_documents import ApiProblem
from service.identities.principals import Access
from service.storage_locations import UnknownStore, open_location
from service.store import outputs as store
from service.store.outputs import ModelRow
from trainers.storage import Storage, StorageError

router = APIRouter(prefix="/v1")

_CHUNK = 2**20


@router.get("/jobs/{job_id}/outputs", operation_id="list_outputs", response_model=Page[OutputFile])
async def list_outputs(
    request: Request, job_id: str, query: Annotated[OutputsParameters, Query()]
) -> Response:
    """Files that the job's script wrote into its outputs folder, by name; they are there while it runs, too."""
    after = read_cursor(query.cursor) if query.cursor is not None else ""
    await job_of(request, job_id)

    def work(connection: sa.Connection) -> bytes:
        row = store.get_outputs(connection, job_id)
        files = {} if row is None else row.files
        later = sorted(name for name in files if name > after)
        return write_page(later, lambda name: _file(name, files[name]), lambda name: name, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.get("/jobs/{job_id}/outputs/{name:path}", operation_id="download_output")
async def output(request: Request, job_id: str, name: str, _: Annotated[Parameters, Query()]) -> Response:
    """The content of one of them."""
    await job_of(request, job_id)
    row = await context_of(request).database.read(lambda connection: store.get_outputs(connection, job_id))
    if row is None or name not in row.files:
        raise ApiProblem(
            404, "output_not_found", f"the job has no output {name[:200]!a}", hint="remora outputs lists them"
        )
    return await _content(request, row.location, name, row.files[name])


@router.get("/models", operation_id="list_models", response_model=Page[ModelVersion])
async def list_models(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """The newest version of every model, by name."""
    after = read_cursor(query.cursor) if query.cursor is not None else ""

    projects = access_of(request).projects

    def work(connection: sa.Connection) -> bytes:
        rows = store.page_of_models(connection, projects, after, query.limit)
        return write_page(rows, _view, lambda row: row.name, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.get("/models/{name}/versions", operation_id="list_model_versions", response_model=Page[ModelVersion])
async def list_versions(request: Request, name: str, query: Annotated[PageParameters, Query()]) -> Response:
    """Versions of a model, newest first."""
    before, access = read_number_cursor(query.cursor, MAX_NUMBER), access_of(request)

    def work(connection: sa.Connection) -> bytes:
        rows = _versions(connection, access, name, before, query.limit)
        first = next(rows, None)
        if first is None and query.cursor is None:
            raise _model_not_found(name)
        return write_page(
            chain(() if first is None else (first,), rows), _view, lambda row: row.version, query.limit
        )

    return as_json(await context_of(request).database.read(work))


@router.get("/models/{name}/versions/{version}/files/{file:path}", operation_id="download_model_file")
async def model_file(
    request: Request, name: str, version: str, file: str, _: Annotated[Parameters, Query()]
) -> Response:
    """The content of one file of a model."""
    number = int(version) if version.isascii() and version.isdecimal() and len(version) < 10 else 0
    access = access_of(request)
    rows = await context_of(request).database.read(
        lambda connection: list(_versions(connection, access, name, number + 1, 1))
    )
    if not rows or rows[0].version != number:
        raise _model_not_found(f"{name[:100]}:{version[:20]}")
    if file not in rows[0].files:
        raise ApiProblem(404, "output_not_found", f"the model has no file {file[:200]!a}")
    return await _content(request, rows[0].location, file, rows[0].files[file])


def _versions(
    connection: sa.Connection, access: Access, name: str, before: int, limit: int
) -> Iterator[ModelRow]:
    if "\0" in name:
        return iter(())
    # The column is a 32-bit one.
    return store.page_of_versions(connection, access.projects, name, min(before, 2**31 - 1), limit)


def _model_not_found(name: str) -> ApiProblem:
    text = f"there is no model {name[:120]!a}"
    return ApiProblem(404, "model_not_found", text, hint="remora models lists them")


def _file(name: str, file: Mapping[str, Any]) -> OutputFile:
    return OutputFile(name=name, size_bytes=file["size_bytes"], sha256=file["sha256"])


def _view(row: ModelRow) -> ModelVersion:
    return ModelVersion(
        name=row.name,
        version=row.version,
        digest=row.digest,
        size_bytes=sum(file["size_bytes"] for file in row.files.values()),
        job_id=row.job_id,
        attempt=row.attempt,
        output=row.output,
        code=row.code,
        command=row.command,
        created_at=row.created_at,
        files=[_file(name, file) for name, file in sorted(row.files.items())],
    )


async def _content(request: Request, location: str, name: str, file: Mapping[str, Any]) -> Response:
    """A file of the storage as a stream.  Raises ApiProblem when a newer version has just replaced it."""
    try:
        storage = await asyncio.to_thread(open_location, context_of(request).settings, location)
    except UnknownStore as error:
        text = f"{name[:200]!a} cannot be read: {error}"
        raise ApiProblem(404, "output_not_found", text) from None
    try:
        size = await asyncio.to_thread(storage.size, file["stored"])
    except FileNotFoundError:
        size = -1
    if size != file["size_bytes"]:
        raise ApiProblem(
            404, "output_not_found", f"{name[:200]!a} was replaced meanwhile", hint="list the outputs again"
        )
    request.scope["remora.is_stream"] = True
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}",
        "ETag": f'"{file["sha256"]}"',
    }
    return StreamingResponse(
        _read(storage, file["stored"], size), media_type="application/octet-stream", headers=headers
    )


def _read(storage: Storage, stored: str, size: int) -> Iterator[bytes]:
    left = size
    with storage.open_read(stored) as opened:
        while left and (chunk := opened.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
    if left:
        # The length is promised already: a cut answer is the only honest one.
        raise StorageError(f"{stored} became shorter while it was read")

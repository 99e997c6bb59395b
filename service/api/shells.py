"""Shells in workers of running jobs: open one, type and read, close it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from remora.views import Page, ShellExchange, ShellOutput, ShellSession
from service.api.authorisation import access_of
from service.api.context import context_of, job_of
from service.api.pages import as_json
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem, job_not_found
from service.api.typed_bodies import Body, read_body
from service.api.writes import Noted, write
from service.queue.owners_changes import ChangeRefused
from service.queue.rows import JobRow
from service.queue.shells import MOST_WAITING, ShellRow, WantedShell, open_shell, problem_of
from service.store import jobs
from service.store import shells as store
from service.store.scoped import find_job
from trainers.shells import CHUNK_BYTES, MOST_CELLS, STDOUT, OutputChunk

router = APIRouter(prefix="/v1/jobs/{job_id}/shells")

#: Seconds between two looks for output: at first, and once there was none for a while.
_LOOK_S, _SLOW_LOOK_S, _SLOW_AFTER_S = 0.03, 0.1, 5.0
#: Chunks of output in one answer.
_MOST_CHUNKS = 16
#: Seconds after which a client that only asks for output is written down again.
_SEEN_EVERY_S = 10.0
#: Seconds that a request waits for output, at most.
_MOST_WAIT_S = 20.0

#: Characters of JSON of a command in the audit, whose rows are bounded.
_MOST_AUDITED = 3000

Cells = Annotated[int, Field(ge=1, le=MOST_CELLS)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]


class ShellWanted(Body):
    """Which shell is to be opened."""

    rank: Number = 0
    command: Annotated[tuple[str, ...], Field(max_length=128)] = ()
    rows: Cells | None = None
    columns: Cells | None = None
    term: Annotated[str, Field(max_length=64)] = "dumb"


class Exchange(Body):
    """What is typed, in base64 and with its number, and which output is known."""

    seq: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    data: Annotated[str, Field(max_length=4 * (CHUNK_BYTES // 3 + 1))] = ""
    rows: Cells | None = None
    columns: Cells | None = None
    after: Number = 0
    wait_s: Annotated[float, Field(ge=0, le=_MOST_WAIT_S)] = 0.0

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns, where both are there."""
        return None if self.rows is None or self.columns is None else (self.rows, self.columns)


@router.post("", status_code=201, operation_id="open_shell", response_model=ShellSession)
async def open_one(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """Open a shell in a rank of a running job, with a terminal where `rows` and `columns` are given."""
    wanted = await read_body(request, ShellWanted)
    size = None if wanted.rows is None or wanted.columns is None else (wanted.rows, wanted.columns)
    if (problem := problem_of(wanted.command, wanted.term, size)) is not None:
        raise ApiProblem(422, "invalid_parameter", problem)
    access, now, is_on = access_of(request), context_of(request).clock(), _are_on(request)
    asked = WantedShell(
        rank=wanted.rank,
        command=wanted.command,
        term=wanted.term,
        size=size,
        principal=access.principal.id,
        credential=access.principal.credential,
    )

    def work(connection: sa.Connection, noted: Noted) -> ShellRow:
        job = find_job(connection, access, job_id, lock=True)
        if job is None:
            raise job_not_found(job_id)
        if not is_on:
            raise _turned_off()
        try:
            decision, row = open_shell(job, store.of_job(connection, job.id), asked, now)
        except ChangeRefused as refused:
            raise ApiProblem(409, "not_changeable", str(refused)) from None
        store.add(connection, row)
        jobs.save(connection, job, decision)
        noted.project, noted.object = job.project, job.id
        noted.after = {"shell": row.number, "rank": row.rank, **_audited(row.command)}
        return row

    row = await write(request, work)
    return Response(_view(row).model_dump_json(), 201, media_type="application/json")


def _audited(command: Sequence[str]) -> dict[str, Any]:
    """The command for the audit; of a long one the beginning, its bytes and their digest."""
    if len(json.dumps(command)) <= _MOST_AUDITED:
        return {"command": list(command)}
    text = shlex.join(command)
    content = text.encode()
    # A character takes six characters of JSON at most.
    beginning = text[: _MOST_AUDITED // 6]
    digest = hashlib.sha256(content).hexdigest()
    return {"command": f"{beginning} ...", "command_bytes": len(content), "command_sha256": digest}


@router.get("", operation_id="list_shells", response_model=Page[ShellSession])
async def list_shells(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Response:
    """The newest that were opened, the oldest of them first."""
    await job_of(request, job_id)

    def work(connection: sa.Connection) -> str:
        found = [_view(row) for row in store.of_job(connection, job_id)]
        return Page[ShellSession](items=found).model_dump_json()

    return as_json(await context_of(request).database.read(work))


@router.post("/{number}/exchange", operation_id="exchange_shell", response_model=ShellExchange)
async def exchange(request: Request, job_id: str, number: str, _: Annotated[Parameters, Query()]) -> Response:
    """Type into a shell, and read what it has printed after `after`, waiting up to `wait_s` seconds for it."""
    asked = await read_body(request, Exchange)
    content = _content(asked)
    row, is_read = await _found(request, job_id, number, asked.after)
    if not _are_on(request) and row.ended_at is None:
        raise _turned_off()
    now = context_of(request).clock()
    is_news = asked.seq is not None or asked.size not in (None, row.size) or is_read
    if is_news or now - row.seen_at > _SEEN_EVERY_S:
        row = await _noted(request, row, asked, content, now)
    if asked.wait_s:
        request.scope["remora.is_stream"] = True
    row, chunks = await _output(request, row, asked)
    shown = [
        ShellOutput(
            seq=seq, stream="stdout" if stream == STDOUT else "stderr", data=base64.b64encode(chunk).decode()
        )
        for seq, stream, chunk in chunks
    ]
    answer = ShellExchange(shell=_view(row), input_seq=row.input_seq, output=shown)
    return as_json(answer.model_dump_json())


@router.delete("/{number}", status_code=202, operation_id="close_shell", response_model=ShellSession)
async def close(request: Request, job_id: str, number: str, _: Annotated[Parameters, Query()]) -> Response:
    """Ask for the end of a shell."""
    access, now = access_of(request), context_of(request).clock()

    def work(connection: sa.Connection, noted: Noted) -> ShellRow:
        job = find_job(connection, access, job_id, lock=True)
        if job is None:
            raise job_not_found(job_id)
        row = _named(connection, job, number)
        closed = row
        if row.ended_at is None and row.close_requested_at is None:
            closed = replace(row, close_requested_at=now)
            store.note_client(connection, closed)
        noted.project, noted.object = job.project, job.id
        noted.before = {"shell": row.number, "state": row.state}
        return closed

    row = await write(request, work)
    return Response(_view(row).model_dump_json(), 202, media_type="application/json")


async def _found(request: Request, job_id: str, number: str, after: int) -> tuple[ShellRow, bool]:
    """A shell that the principal of the request has opened, and whether output up to `after` is kept.

    Raises ApiProblem and Forbidden.
    """
    job = await job_of(request, job_id)

    def work(connection: sa.Connection) -> tuple[ShellRow, bool]:
        row = _named(connection, job, number)
        return row, after > 0 and store.has_output(connection, row, after)

    row, is_read = await context_of(request).database.read(work)
    if row.principal != access_of(request).principal.id:
        # What others type and read is theirs, also for admins.
        raise _not_found(job.id, number)
    return row, is_read


async def _noted(request: Request, row: ShellRow, asked: Exchange, content: bytes, now: float) -> ShellRow:
    """Store what the client says."""

    def work(connection: sa.Connection) -> ShellRow:
        # Locks the job's row, so that two requests of one client do not store the same number twice.
        jobs.lock_job(connection, row.job_id)
        kept = store.get(connection, row.job_id, row.number)
        if kept is None:
            raise _not_found(row.job_id, str(row.number))
        store.forget_output(connection, kept, min(asked.after, kept.output_seq))
        after = replace(kept, seen_at=now)
        if after.size is not None and asked.size is not None:
            after = replace(after, rows=asked.rows, columns=asked.columns)
        if asked.seq is not None and kept.ended_at is None:
            after = _typed(connection, after, asked.seq, content, now)
        store.note_client(connection, after)
        return after

    return await context_of(request).database.write(work)


def _typed(connection: sa.Connection, row: ShellRow, seq: int, content: bytes, now: float) -> ShellRow:
    """Keep a chunk of input, unless it is kept already, or too many wait; then it is to be sent again."""
    if seq > row.input_seq + 1:
        raise ApiProblem(
            409, "input_out_of_order", f"the next chunk of input has the number {row.input_seq + 1}"
        )
    if seq <= row.input_seq or store.count_input(connection, row) >= MOST_WAITING:
        return row
    row = replace(row, input_seq=seq, input_at=now)
    store.put_input(connection, row, content)
    return row


async def _output(request: Request, row: ShellRow, asked: Exchange) -> tuple[ShellRow, list[OutputChunk]]:
    """The output after what the client knows, once there is some, the shell has ended or the time is over."""
    context = context_of(request)

    def work(connection: sa.Connection) -> tuple[ShellRow | None, list[OutputChunk]]:
        # In this order: what was printed before the end is there when the end is.
        kept = store.get(connection, row.job_id, row.number)
        return kept, store.read_output(connection, row, asked.after, _MOST_CHUNKS)

    place, mine = (row.job_id, row.number), object()
    readers, began = context.shell_readers, time.monotonic()
    if asked.wait_s:
        readers[place] = mine
    try:
        while True:
            kept, chunks = await context.database.read(work)
            if kept is None:
                raise _not_found(row.job_id, str(row.number))
            waited = time.monotonic() - began
            is_over = (
                waited >= asked.wait_s or readers.get(place) is not mine or context.feed.closing.is_set()
            )
            if chunks or kept.ended_at is not None or is_over:
                return kept, chunks
            pause = _LOOK_S if waited < _SLOW_AFTER_S else _SLOW_LOOK_S
            await asyncio.sleep(min(pause, max(0.0, asked.wait_s - waited)))
    finally:
        if readers.get(place) is mine:
            del readers[place]


def _named(connection: sa.Connection, job: JobRow, number: str) -> ShellRow:
    row = None
    if number.isascii() and number.isdigit() and len(number) < 10:
        row = store.get(connection, job.id, int(number))
    if row is None:
        raise _not_found(job.id, number)
    return row


def _content(asked: Exchange) -> bytes:
    try:
        content = base64.b64decode(asked.data, validate=True)
    except (binascii.Error, ValueError):
        raise ApiProblem(422, "invalid_parameter", "data: it is no base64") from None
    if len(content) > CHUNK_BYTES:
        raise ApiProblem(422, "invalid_parameter", f"data: a chunk has at most {CHUNK_BYTES} bytes")
    return content


def _are_on(request: Request) -> bool:
    return context_of(request).settings.shells


def _turned_off() -> ApiProblem:
    return ApiProblem(
        403,
        "shells_off",
        "shells are off in this service",
        hint="its operator turns them on with REMORA_SHELLS=true",
    )


def _not_found(job_id: str, number: str) -> ApiProblem:
    return ApiProblem(
        404, "shell_not_found", f"the job {job_id} has no shell {number[:20]!a} of yours", hint="open one"
    )


def _view(row: ShellRow) -> ShellSession:
    return ShellSession(
        number=row.number,
        attempt=row.attempt,
        rank=row.rank,
        principal=row.principal,
        command=list(row.command),
        state=row.state,
        requested_at=row.requested_at,
        opened_at=row.opened_at,
        ended_at=row.ended_at,
        message=row.message,
        exit_code=row.exit_code,
    )

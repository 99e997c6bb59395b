"""Events, logs and metrics of a job: JSON pages, plain text, or streams that can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Annotated, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from remora.views import Event, LogLine, MetricPoint, Page
from service.api.authentication import principal_of
from service.api.authorisation import access_of
from service.api.context import Context, context_of, job_of
from service.api.hidden_job_ids import ForeignJobs
from service.api.pages import as_json, write_page
from service.api.parameters import (
    MAX_NUMBER,
    EventsParameters,
    LogsParameters,
    MetricsParameters,
    read_number_cursor,
)
from service.api.problem_documents import ApiProblem, invalid_parameter
from service.api.sse import PING, EventStream, StreamOwner, frame
from service.identities.principals import Access
from service.policies_in_force import policies_in_force
from service.queue.rows import JobRow
from service.store import job_history
from service.store.job_history import LogFilter, Position
from service.store.scoped import find_job

router = APIRouter(prefix="/v1/jobs/{job_id}")

#: Seconds between two signs of life on a stream that has nothing to say.
PING_S = 15.0
#: Entries that a stream reads at once.
CHUNK = 500

EntryT = TypeVar("EntryT", Event, LogLine)
ReadPage = Callable[[int, int], Awaitable[Sequence[EntryT]]]


def still_allowed(request: Request, job_id: str) -> Callable[[], Awaitable[bool]] | None:
    """Whether the sender of the request may still read the job; None: that cannot change."""
    context = context_of(request)
    if not context.identities.is_required:
        return None

    async def look() -> bool:
        try:
            principal = await context.identities.authenticate(request.scope["remora.proof"])
        except ApiProblem:
            return False
        if principal is None:
            return False
        access = Access(principal)
        return (
            await context.database.read(lambda connection: find_job(connection, access, job_id)) is not None
        )

    return look


def _wants(request: Request, media_type: str) -> bool:
    return media_type in request.headers.get("accept", "")


def _resume_after(request: Request, otherwise: int) -> int:
    """What a client that connects again has seen: it says so in `Last-Event-ID`."""
    last = request.headers.get("last-event-id")
    if last is None or last == "":
        return otherwise
    if not (last.isascii() and last.isdigit()) or len(last) > 16 or int(last) > MAX_NUMBER:
        raise invalid_parameter("Last-Event-ID", "expected the id of an event of this stream, a number")
    return int(last)


async def _frames(
    context: Context,
    job_id: str,
    kind: str,
    after: int,
    read: ReadPage[EntryT],
    seq_of: Callable[[Position], int],
    shown_to: Hashable,
) -> AsyncGenerator[bytes]:
    """Every entry above `after` as it comes, then `end` once the job is terminal and everything was sent.

    `shown_to`: what is read depends on it, as on who reads, or on a filter.
    """
    with context.feed.follow(job_id):
        while (position := await context.feed.look(job_id)) is not None:
            # Entries up to `position` are stored for good, so what is read now has no holes.
            while after < seq_of(position):
                # What is stored up to the position never changes, so that all who are that far can share it.
                key = (job_id, kind, shown_to, after, position)
                page = await context.feed.shared(key, partial(read, after, CHUNK))
                for entry in page:
                    yield frame(kind, entry.model_dump_json(), entry.seq)
                newest = page[-1].seq if page else after
                after = newest if len(page) == CHUNK else max(newest, seq_of(position))
            if position.is_terminal:
                yield frame("end", "{}")
                return
            while not await context.feed.changed(job_id, position, PING_S):
                yield PING


async def _stream(request: Request, job: JobRow, frames: AsyncGenerator[bytes]) -> EventStream:
    """A stream of a job, within the limits of its principal and of its project.  Raises ApiProblem."""
    context = context_of(request)
    policies = await context.database.read(lambda connection: policies_in_force(connection, context.settings))
    owner = StreamOwner(principal_of(request), job.project, policies)
    return EventStream(frames, context.feed.closing, context.streams, owner, still_allowed(request, job.id))


@router.get("/events", operation_id="list_events", response_model=Page[Event])
async def events(request: Request, job_id: str, query: Annotated[EventsParameters, Query()]) -> Response:
    """What happened to the job: a page, or a stream with `Accept: text/event-stream`."""
    job = await job_of(request, job_id)
    context, access = context_of(request), access_of(request)
    after = read_number_cursor(query.cursor, query.after)

    def page(connection: sa.Connection, after: int, limit: int) -> Sequence[Event]:
        shown = ForeignJobs(connection, access).event
        return [shown(one) for one in job_history.page_of_events(connection, job_id, after, limit)]

    async def read(after: int, limit: int) -> Sequence[Event]:
        return await context.database.read(lambda connection: page(connection, after, limit))

    if _wants(request, "text/event-stream"):
        after = _resume_after(request, after)
        principal = principal_of(request).id
        frames = _frames(
            context, job_id, "event", after, read, lambda position: position.event_seq, principal
        )
        return await _stream(request, job, frames)

    def work(connection: sa.Connection) -> bytes:
        found = page(connection, after, query.limit)
        return write_page(found, lambda one: one, lambda one: one.seq, query.limit)

    return as_json(await context.database.read(work))


@router.get("/logs", operation_id="list_logs", response_model=Page[LogLine])
async def logs(request: Request, job_id: str, query: Annotated[LogsParameters, Query()]) -> Response:
    """What the workers printed: a page, a stream, or text with `Accept: text/plain`."""
    job = await job_of(request, job_id)
    context = context_of(request)
    wanted = LogFilter(query.rank, query.attempt, query.contains)
    after = read_number_cursor(query.cursor, query.after)
    read = partial(_wanted_lines, context, job_id, wanted)

    resumes = request.headers.get("last-event-id") and _wants(request, "text/event-stream")
    if query.tail is not None and query.cursor is None and not resumes:
        after = max(after, await _tail_start(context, job_id, wanted, query.tail))
    if _wants(request, "text/event-stream"):
        after = _resume_after(request, after)
        frames = _frames(context, job_id, "log", after, read, lambda position: position.log_seq, wanted)
        return await _stream(request, job, frames)
    if _wants(request, "text/plain"):
        request.scope["remora.is_stream"] = True
        return StreamingResponse(_text(after, read), media_type="text/plain; charset=utf-8")

    lines = await read(after, query.limit)
    written = partial(write_page, lines, lambda line: line, lambda line: line.seq, query.limit)
    return as_json(await asyncio.to_thread(written))


async def _tail_start(context: Context, job_id: str, wanted: LogFilter, tail: int) -> int:
    """The number after which the last `tail` wanted lines follow, found as `_wanted_lines` finds its own."""
    search = await context.database.read(
        partial(job_history.begin_tail, job_id=job_id, wanted=wanted, tail=tail)
    )
    while search.missing and search.upto > search.least:
        look = partial(job_history.go_on_with_tail, job_id=job_id, wanted=wanted, search=search)
        search = await context.database.read(look)
    return search.upto


async def _wanted_lines(
    context: Context, job_id: str, wanted: LogFilter, after: int, limit: int
) -> Sequence[LogLine]:
    """The first `limit` wanted lines above `after`, by one query after the other, between which others have theirs."""
    found: list[LogLine] = []
    position: int | None = after
    while position is not None:
        look = partial(
            job_history.scan_logs,
            job_id=job_id,
            wanted=wanted,
            after=position,
            limit=limit - len(found),
        )
        lines, position = await context.database.read(look)
        found += lines
    return found


async def _text(after: int, read: ReadPage[LogLine]) -> AsyncIterator[bytes]:
    while page := await read(after, CHUNK):
        yield "".join(f"{line.text}\n" for line in page).encode()
        after = page[-1].seq


@router.get("/metrics", operation_id="list_metrics", response_model=Page[MetricPoint])
async def metrics(request: Request, job_id: str, query: Annotated[MetricsParameters, Query()]) -> Response:
    """What the script reported, by step; with `points` the least, the greatest and the last of that number of parts."""
    await job_of(request, job_id)
    after = read_number_cursor(query.cursor, query.after_step)
    points, database = query.points, context_of(request).database

    def work(connection: sa.Connection) -> bytes:
        if points is not None:
            few = job_history.few_points(connection, job_id, after, points)
            return Page[MetricPoint](items=few).model_dump_json().encode()
        page = job_history.page_of_metrics(connection, job_id, after, query.limit)
        return write_page(page, lambda point: point, lambda point: point.step, query.limit)

    return as_json(await database.read(work))

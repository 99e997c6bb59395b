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
    JobEventsParameters,
    LogsParameters,
    MetricsParameters,
    TailParameters,
    read_number_cursor,
)
from service.api.problem_documents import ApiProblem, invalid_parameter
from service.api.sse import PING, EventStream, StreamOwner, frame
from service.identities.principals import Access
from service.policies_in_force import policies_in_force
from service.queue.rows import JobRow
from service.store import job_history, metric_summaries
from service.store.job_history import EventFilter, Filter, LogFilter, Position
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
async def events(request: Request, job_id: str, query: Annotated[JobEventsParameters, Query()]) -> Response:
    """What happened to the job: a page, or a stream with `Accept: text/event-stream`."""
    job = await job_of(request, job_id)
    context, access = context_of(request), access_of(request)
    wanted = EventFilter(tuple(sorted(set(query.kind))))
    after = await _begin(request, context, job_id, wanted, query)
    read = partial(
        _wanted_entries, context, job_id, wanted, lambda connection: ForeignJobs(connection, access).event
    )
    if _wants(request, "text/event-stream"):
        shown_to = (principal_of(request).id, wanted)
        frames = _frames(context, job_id, "event", after, read, lambda position: position.event_seq, shown_to)
        return await _stream(request, job, frames)
    return await _page(await read(after, query.limit), query.limit)


@router.get("/logs", operation_id="list_logs", response_model=Page[LogLine])
async def logs(request: Request, job_id: str, query: Annotated[LogsParameters, Query()]) -> Response:
    """What the workers printed: a page, a stream, or text with `Accept: text/plain`."""
    job = await job_of(request, job_id)
    context = context_of(request)
    wanted = LogFilter(query.rank, query.attempt, query.contains)
    after = await _begin(request, context, job_id, wanted, query)
    read = partial(_wanted_entries, context, job_id, wanted, lambda _: lambda line: line)
    if _wants(request, "text/event-stream"):
        frames = _frames(context, job_id, "log", after, read, lambda position: position.log_seq, wanted)
        return await _stream(request, job, frames)
    if _wants(request, "text/plain"):
        request.scope["remora.is_stream"] = True
        return StreamingResponse(_text(after, read), media_type="text/plain; charset=utf-8")
    return await _page(await read(after, query.limit), query.limit)


async def _page(entries: Sequence[EntryT], limit: int) -> Response:
    written = partial(write_page, entries, lambda entry: entry, lambda entry: entry.seq, limit)
    return as_json(await asyncio.to_thread(written))


async def _begin(
    request: Request, context: Context, job_id: str, wanted: Filter[EntryT], query: TailParameters
) -> int:
    """The number after which the entries follow that a request asks for.  Raises ApiProblem."""
    after = read_number_cursor(query.cursor, query.after)
    is_stream = _wants(request, "text/event-stream")
    resumes = is_stream and request.headers.get("last-event-id")
    # What follows a page or an entry of the tail is not cut again.
    if query.tail is not None and query.cursor is None and not resumes:
        after = max(after, await _tail_start(context, job_id, wanted, query.tail))
    return _resume_after(request, after) if is_stream else after


async def _tail_start(context: Context, job_id: str, wanted: Filter[EntryT], tail: int) -> int:
    """The number after which the last `tail` wanted entries follow, found as `_wanted_entries` finds its own."""
    search = await context.database.read(
        partial(job_history.begin_tail, job_id=job_id, wanted=wanted, tail=tail)
    )
    while search.missing and search.upto > search.least:
        look = partial(job_history.go_on_with_tail, job_id=job_id, wanted=wanted, search=search)
        search = await context.database.read(look)
    return search.upto


async def _wanted_entries(
    context: Context,
    job_id: str,
    wanted: Filter[EntryT],
    shown: Callable[[sa.Connection], Callable[[EntryT], EntryT]],
    after: int,
    limit: int,
) -> Sequence[EntryT]:
    """The first `limit` wanted entries above `after`, by one query after the other, between which others have theirs.

    `shown` makes of each what the sender of the request may see.
    """
    found: list[EntryT] = []
    position: int | None = after

    def look(connection: sa.Connection, after: int, limit: int) -> tuple[list[EntryT], int | None]:
        entries, goes_on_after = job_history.scan(connection, job_id, wanted, after, limit)
        return list(map(shown(connection), entries)), goes_on_after

    while position is not None:
        entries, position = await context.database.read(
            partial(look, after=position, limit=limit - len(found))
        )
        found += entries
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
            few = metric_summaries.few_points(connection, job_id, after, points)
            return Page[MetricPoint](items=few).model_dump_json().encode()
        page = job_history.page_of_metrics(connection, job_id, after, query.limit)
        return write_page(page, lambda point: point, lambda point: point.step, query.limit)

    return as_json(await database.read(work))

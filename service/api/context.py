"""Shared objects of the routes, kept in `app.state.remora`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import Request

from service.api.feed import Feed
from service.api.problem_documents import job_not_found
from service.api.prometheus import Telemetry
from service.api.replays import Replays
from service.api.sse import OpenStreams
from service.api.validation_thread import Checks
from service.queue.rows import JobRow
from service.settings import Settings
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.ids import is_id
from service.store.jobs import get_job
from service.store.leases import LeaseWatch
from trainers.storage import Storage


@dataclass(frozen=True)
class Context:
    """The parts of a running API."""

    settings: Settings
    database: Database
    storage: Storage
    feed: Feed
    telemetry: Telemetry
    replays: Replays = field(default_factory=Replays)
    streams: OpenStreams = field(default_factory=OpenStreams)
    checks: Checks = field(default_factory=Checks)
    #: Seconds since 1970.
    clock: Callable[[], float] = CLOCK
    #: For how long the controller's lease has not been renewed.
    lease: LeaseWatch = field(default_factory=LeaseWatch)


def context_of(request: Request) -> Context:
    """The context of the application that answers the request."""
    context: Context = request.app.state.remora
    return context


async def job_of(request: Request, job_id: str) -> JobRow:
    """The job that a path names.  Raises ApiProblem `job_not_found`."""
    row = None
    if is_id("job", job_id):
        row = await context_of(request).database.read(lambda connection: get_job(connection, job_id))
    if row is None or row.delete_requested_at is not None:
        raise job_not_found(job_id)
    return row

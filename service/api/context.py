"""Shared objects of the routes, kept in `app.state.remora`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import Request

from service.api.authentication import Authenticator
from service.api.authorisation import access_of
from service.api.feed import Feed
from service.api.problem_documents import job_not_found
from service.api.prometheus import Telemetry
from service.api.rates import Rate, Rates
from service.api.replays import Replays
from service.api.sse import OpenStreams
from service.api.validation_thread import Checks
from service.identities.principals import Access
from service.listening import LOCAL_ONLY, Listening
from service.openid.code_exchange import CodeExchange
from service.queue.rows import JobRow
from service.settings import Settings
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.leases import LeaseWatch
from service.store.scoped import find_job
from trainers.storage import Storage


@dataclass(frozen=True)
class Context:
    """The parts of a running API."""

    settings: Settings
    database: Database
    storage: Storage
    feed: Feed
    telemetry: Telemetry
    #: Who sends a request.
    identities: Authenticator = field(default_factory=lambda: Authenticator(()))
    #: By which names, and through which proxies.
    reached: Listening = LOCAL_ONLY
    #: Requests of each principal; None: any number.
    rates: Rates | None = None
    #: Refusals for want of a role that the audit notes, of each principal and operation.
    denials: Rates = field(default_factory=lambda: Rates(Rate(per_s=1 / 60, burst=10.0)))
    replays: Replays = field(default_factory=Replays)
    streams: OpenStreams = field(default_factory=OpenStreams)
    checks: Checks = field(default_factory=Checks)
    #: By which people sign in on the page; None: no one is configured.
    exchange: CodeExchange | None = None
    #: Sign-ins of each network.
    sign_in_rates: Rates = field(default_factory=lambda: Rates(Rate(per_s=0.5, burst=30.0)))
    #: Codes that are redeemed in all, of each issuer: each is a request to it.
    redeem_rates: Rates = field(default_factory=lambda: Rates(Rate(per_s=10.0, burst=200.0)))
    #: Seconds since 1970.
    clock: Callable[[], float] = CLOCK
    #: The newest request that waits for output of a shell, by its job and number: an earlier one waits no more.
    shell_readers: dict[tuple[str, int], object] = field(default_factory=dict)
    #: For how long the lease of each cluster's controller has not been renewed, by its name.
    leases: dict[str, LeaseWatch] = field(default_factory=dict)


def context_of(request: Request) -> Context:
    """The context of the application that answers the request."""
    context: Context = request.app.state.remora
    return context


async def job_of(request: Request, job_id: str, access: Access | None = None) -> JobRow:
    """The job that a path names; `access` is that of the request unless another one is given.

    Raises ApiProblem `job_not_found`, and Forbidden.
    """
    mine = access_of(request) if access is None else access
    row = await context_of(request).database.read(lambda connection: find_job(connection, mine, job_id))
    if row is None:
        raise job_not_found(job_id)
    return row

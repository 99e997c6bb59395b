"""The application: routes, errors and the parts they share."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from fastapi import Depends, FastAPI

import remora
from remora.views import Problem
from service.api import (
    alerts,
    arrays,
    audit,
    budgets,
    bundles,
    changes,
    checkpoints,
    cluster,
    costs,
    drills,
    grants,
    jobs,
    ledgers,
    loads,
    nodes,
    outputs,
    page_sign_in,
    phases,
    plans,
    policies,
    pools,
    problem_documents,
    profiles,
    projects,
    ray_programs,
    schedules,
    secrets,
    security_scheme,
    sessions,
    shells,
    sign_in,
    streams,
    tokens,
    web_page,
    writes,
)
from service.api.authentication import ApiTokens, Authenticator, Way
from service.api.authorisation import authorise
from service.api.context import Context
from service.api.feed import Feed
from service.api.gate import Gate
from service.api.issued_tokens import IssuedTokens
from service.api.prometheus import Telemetry
from service.api.rates import Rates
from service.api.replays import Replays
from service.api.validation_thread import Checks
from service.listening import listening
from service.openid.bearers import Bearers
from service.openid.code_exchange import CodeExchange
from service.openid.keys import KeyCache
from service.private_home import make_private
from service.settings import Settings
from service.steady_clock import CLOCK
from service.storage_locations import close_folders, open_storage
from service.store.database import Database
from service.store.migrate import migrate
from service.tracing.opening import request_spans

#: Seconds after which an upload that did not end is taken for interrupted.
STALE_UPLOAD_S = 24 * 3600.0


def _problem_schema() -> dict[str, Any]:
    """That of an error answer; what it is made of is described beside it, as parts of other answers."""
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs")
    return schema


def create_app(settings: Settings) -> FastAPI:
    """The API as an ASGI application; its lifespan opens and migrates the database.  Raises StoreError there.

    Raises TracingUnusable for settings with a collector to which no traces can be sent.
    """
    telemetry = Telemetry()
    spans = request_spans(settings)
    reached = listening(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        make_private(settings.home)
        close_folders(settings)
        database = Database(settings.database)
        feed = Feed(database)
        replays = Replays()
        checks = Checks()
        proofs = ApiTokens(database, CLOCK)
        # Only issuers are asked; to read the certificates of this machine takes longer than the rest of a start.
        asking = httpx2.AsyncClient(verify=bool(settings.openid) or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        keys = KeyCache(asking, time.monotonic)
        bearers = Bearers(settings.openid, keys, CLOCK)
        ways: list[Way] = (
            [proofs, IssuedTokens(database, bearers)] if settings.authentication == "required" else []
        )
        looking: asyncio.Task[None] | None = None
        try:
            await asyncio.to_thread(migrate, database)
            await asyncio.to_thread(bundles.forget_interrupted, settings.home, time.time() - STALE_UPLOAD_S)
            looking = asyncio.create_task(feed.run())
            app.state.remora = Context(
                settings,
                database,
                open_storage(settings, settings.storage),
                feed,
                telemetry,
                Authenticator(ways),
                reached,
                Rates.of(settings.max_requests_per_s),
                replays=replays,
                checks=checks,
                exchange=CodeExchange(asking, bearers, time.monotonic) if ways else None,
            )
            yield
        finally:
            feed.close()
            await replays.close()
            checks.close()
            await proofs.close()
            await keys.close()
            await asking.aclose()
            if looking is not None:
                looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await looking
            await asyncio.to_thread(database.close)
            if spans is not None:
                await asyncio.to_thread(spans.close)

    app = FastAPI(
        telemetry={"tracing": False, "metrics": False, "logs": False} if spans is None else spans.telemetry,
        title="Remora",
        version=remora.__version__,
        lifespan=lifespan,
        # Nothing is answered before the table of permissions was asked.
        dependencies=[Depends(authorise)],
        # The interactive pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={
            "default": {
                "description": "An error with a stable code.",
                "content": {"application/problem+json": {"schema": _problem_schema()}},
            }
        },
    )
    parts = (
        jobs.router,
        changes.router,
        arrays.router,
        alerts.router,
        schedules.router,
        streams.router,
        phases.router,
        checkpoints.router,
        outputs.router,
        loads.router,
        profiles.router,
        shells.router,
        bundles.router,
        nodes.router,
        pools.router,
        ray_programs.router,
        drills.router,
        cluster.router,
        policies.router,
        plans.router,
        ledgers.router,
        costs.router,
        budgets.router,
        projects.router,
        audit.router,
        grants.router,
        secrets.router,
        sessions.router,
        sign_in.router,
        page_sign_in.router,
        tokens.router,
        web_page.router,
    )
    problem_documents.install(app, [*app.routes, *(route for part in parts for route in part.routes)])
    writes.install(app)
    for part in parts:
        app.include_router(part)
    security_scheme.describe(app)
    app.add_middleware(Gate, telemetry=telemetry)
    return app

"""Writes of requests: what is done and the row of the audit that records it are one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from fastapi import FastAPI, Request
from starlette.responses import Response

from remora.process_log import request_id
from remora.terminal_text import printable
from service.api.authorisation import operation_of
from service.api.context import context_of
from service.api.problem_documents import ApiProblem, forbidden
from service.identities.permissions import PERMISSIONS
from service.identities.principals import Forbidden, Principal
from service.queue.intake import LimitReached
from service.queue.rows import JobRow
from service.store import audit
from service.store.audit import AuditRow
from service.store.ids import new_id

T = TypeVar("T")

#: Characters of JSON that are kept of an object before and after, each.
MOST_FACTS = 4096
#: Methods that write nothing.
_READS = ("GET", "HEAD", "OPTIONS")


@dataclass
class Noted:
    """What a write notes of itself for the audit."""

    project: str | None = None
    object: str | None = None
    #: What changed, before and after; None: it was not there, or there is nothing to say.
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    #: `done`; `replayed` when a repeated request was answered as before; `denied`.
    outcome: str = "done"

    def of_job(self, before: JobRow | None, after: JobRow) -> None:
        """A job was made or changed."""
        self.project, self.object = after.project, after.id
        self.before, self.after = changed(None if before is None else _facts(before), _facts(after))


def changed(
    before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Those of the facts that differ; all of what was not there before."""
    if before is None:
        return None, after
    names = [name for name in after if before.get(name) != after[name]]
    return {name: before.get(name) for name in names}, {name: after[name] for name in names}


async def write(request: Request, work: Callable[[sa.Connection, Noted], T]) -> T:
    """Do `work` in a transaction that records it in the audit; it has to bear being run again.

    Raises what `work` raises; then nothing was done, and the audit says nothing.
    """
    row_of = _row_maker(request)

    def audited(connection: sa.Connection) -> T:
        noted = Noted()
        result = work(connection, noted)
        audit.append(connection, row_of(noted))
        return result

    return await context_of(request).database.write(audited)


def appender(request: Request) -> Callable[[sa.Connection, Noted], None]:
    """What records in the audit a write whose transaction is made elsewhere."""
    row_of = _row_maker(request)
    return lambda connection, noted: audit.append(connection, row_of(noted))


async def note(request: Request, noted: Noted) -> None:
    """Record in the audit what was done elsewhere than in the database."""

    def work(_: sa.Connection, fresh: Noted) -> None:
        vars(fresh).update(vars(noted))

    await write(request, work)


def install(app: FastAPI) -> None:
    """Answer 403 to what a principal may not do, and record it in the audit; 429 to what would exceed a limit."""

    @app.exception_handler(Forbidden)
    async def _forbidden(request: Request, error: Forbidden) -> Response:
        await _note_denied(request)
        return forbidden(str(error)).response()

    @app.exception_handler(LimitReached)
    async def _limit_reached(_: Request, error: LimitReached) -> Response:
        refusal = error.refusal
        headers = {"Retry-After": "10"}
        return ApiProblem(429, refusal.code, refusal.message, hint=refusal.hint, headers=headers).response()


async def _note_denied(request: Request) -> None:
    """Record in the audit that a principal was refused a write for want of a role."""
    permission = PERMISSIONS.get(operation_of(request))
    is_write = request.method not in _READS and permission is not None and not permission.is_read
    principal: Principal | None = request.scope.get("remora.principal")
    if is_write and principal is not None and _is_noted(request, principal):
        named = next(iter(request.path_params.values()), None)
        await note(request, Noted(object=None if named is None else str(named)[:200], outcome="denied"))


def _is_noted(request: Request, principal: Principal) -> bool:
    """Some denials in a row are noted, and then one in a minute: who repeats them must not fill the database."""
    denials = context_of(request).denials
    return not denials.take(f"{principal.id} {operation_of(request)}", time.monotonic())


def _row_maker(request: Request) -> Callable[[Noted], AuditRow]:
    now = context_of(request).clock()
    principal: Principal = request.scope["remora.principal"]
    client = request.client
    # Of this task: the transaction has a thread of its own.
    asked = request_id.get()

    def row(noted: Noted) -> AuditRow:
        return AuditRow(
            id=new_id("audit", now),
            at=now,
            principal=principal.id,
            credential=principal.credential,
            address=None if client is None else client.host[:64],
            agent=printable(request.headers.get("user-agent", "")[:200]) or None,
            operation=operation_of(request),
            project=noted.project,
            object=noted.object,
            before=_bounded(noted.before),
            after=_bounded(noted.after),
            request_id=asked,
            outcome=noted.outcome,
        )

    return row


def _facts(job: JobRow) -> dict[str, Any]:
    """What people do to a job."""
    return {
        "name": job.name,
        "state": job.state.value,
        "code": job.facts.code,
        "priority": job.priority,
        "labels": dict(job.labels),
        "workers": [job.min_workers, job.max_workers],
        "is_cancelled": job.cancel_requested_at is not None,
        "is_paused": job.pause_requested_at is not None,
        "is_deleted": job.delete_requested_at is not None,
    }


def _bounded(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    if len(json.dumps(facts)) > MOST_FACTS:
        return {"omitted": f"more than {MOST_FACTS} characters", "names": sorted(facts)[:50]}
    return dict(facts)

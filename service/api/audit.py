"""The audit: who wrote what, when and from where."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from remora.identity_views import AuditEntry
from remora.roles import Role
from remora.views import Page
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, read_cursor
from service.api.problem_documents import ApiProblem
from service.store import audit as store
from service.store.audit import AuditRow
from service.store.ids import is_id

router = APIRouter(prefix="/v1/audit")


class AuditParameters(PageParameters):
    """Which part of the audit."""

    project: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] | None = None


@router.get("", operation_id="list_audit", response_model=Page[AuditEntry])
async def list_audit(request: Request, query: Annotated[AuditParameters, Query()]) -> Response:
    """Writes, newest first: all for operators, those in their projects for admins of projects."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("audit", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    projects = access_of(request).principal.projects_with(Role.ADMIN)
    if query.project is not None:
        is_there = projects is None or query.project in projects
        projects = frozenset({query.project}) if is_there else frozenset()

    def work(connection: sa.Connection) -> bytes:
        rows = store.page(connection, projects, before, query.limit)
        return write_page(rows, _view, lambda row: row.id, query.limit)

    return as_json(await context_of(request).database.read(work))


def _view(row: AuditRow) -> AuditEntry:
    return AuditEntry(**vars(row))

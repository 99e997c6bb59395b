"""Roles of users and groups in projects."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from remora.identity_views import Grant
from remora.roles import EVERYWHERE, Role
from remora.views import Page
from service.api.authentication import principal_of
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem, invalid_parameter
from service.api.typed_bodies import Body, read_body
from service.api.writes import Noted, write
from service.identities import granting
from service.identities.principals import Forbidden, Principal
from service.store import grants as store
from service.store.grants import GrantRow

router = APIRouter(prefix="/v1/grants")


class _Wanted(Body):
    role: Role


@router.get("", operation_id="list_grants", response_model=Page[Grant])
async def list_grants(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """Roles of users and groups in the projects that one administers, by project and subject."""
    after = None
    if query.cursor is not None:
        project, _, subject = read_cursor(query.cursor).partition(" ")
        after = (project, subject)
    projects = access_of(request).principal.projects_with(Role.ADMIN)

    def work(connection: sa.Connection) -> bytes:
        rows = store.page(connection, projects, after, query.limit)
        return write_page(rows, _view, lambda row: f"{row.project} {row.subject}", query.limit)

    return as_json(await context_of(request).database.read(work))


@router.put("/{project}/{subject:path}", operation_id="put_grant", response_model=Grant)
async def put_grant(request: Request, project: str, subject: str, _: Annotated[Parameters, Query()]) -> Grant:
    """Give a user or a group a role in a project, `{"role": "viewer"}`, in place of the one that it has there.

    The project `*` with the role `operator` stands for the whole service.
    """
    wanted = await read_body(request, _Wanted)
    if not granting.is_subject(subject):
        raise invalid_parameter(
            "subject", "expected user: or group: and a name of at most 280 printable characters"
        )
    if problem := granting.problem_of({project: wanted.role}):
        raise invalid_parameter("role", problem)
    principal, now = principal_of(request), context_of(request).clock()
    _check(principal, project, wanted.role)
    row = GrantRow(
        subject=subject, project=project, role=wanted.role, created_by=principal.id, created_at=now
    )

    def work(connection: sa.Connection, noted: Noted) -> None:
        before = store.put(connection, row)
        noted.project, noted.object = _project(project), subject
        noted.before = None if before is None else {"role": before.role.value, "project": project}
        noted.after = {"role": row.role.value, "project": project}

    await write(request, work)
    return _view(row)


@router.delete("/{project}/{subject:path}", operation_id="remove_grant", response_model=Grant)
async def remove_grant(
    request: Request, project: str, subject: str, _: Annotated[Parameters, Query()]
) -> Grant:
    """Take the role of a user or a group in a project away; tokens keep theirs until they are revoked."""
    _check(principal_of(request), project, Role.OPERATOR if project == EVERYWHERE else Role.ADMIN)

    def work(connection: sa.Connection, noted: Noted) -> GrantRow:
        found = granting.is_subject(subject)
        before = store.remove(connection, subject, project) if found else None
        if before is None:
            raise ApiProblem(404, "grant_not_found", f"{subject[:80]!r} has no role in {project[:80]!r}")
        noted.project, noted.object = _project(project), subject
        noted.before = {"role": before.role.value, "project": project}
        return before

    return _view(await write(request, work))


def _check(principal: Principal, project: str, role: Role) -> None:
    """Raise Forbidden when the principal does not give roles there."""
    if refused := granting.why_not(principal, {project: role}):
        raise Forbidden(refused)


def _project(project: str) -> str | None:
    """None: only operators read of it in the audit."""
    return None if project == EVERYWHERE else project


def _view(row: GrantRow) -> Grant:
    return Grant(**vars(row))

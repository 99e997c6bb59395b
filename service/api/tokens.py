"""API tokens: who one is, and tokens created, listed and revoked."""

from __future__ import annotations

import secrets
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from remora.identity_views import NewToken, Token, WhoAmI
from remora.roles import Role
from remora.terminal_text import one_line
from remora.views import Page
from service.api.authentication import principal_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem, invalid_parameter
from service.api.typed_bodies import Body, read_body
from service.api.writes import Noted, write
from service.identities import granting, tokens
from service.identities.principals import Forbidden, Principal
from service.identities.tokens import MOST_NAME, SECRET_BYTES, TokenRow
from service.policies_in_force import policies_in_force
from service.store import tokens as store
from service.store.ids import is_id, new_id

router = APIRouter(prefix="/v1")

#: Seconds that a token is good for by default, and at most.
USUAL_S, MOST_S = 90 * 86_400.0, 3650 * 86_400.0


class _Wanted(Body):
    name: Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
    #: By project; `*` with `operator` for the whole service.
    grants: dict[str, Role]
    #: None: it does not expire.
    expires_in_s: Annotated[float, Field(gt=0, le=MOST_S)] | None = USUAL_S
    #: Whom it stands for: None for itself, one's own id, or for operators the id of a user.
    owner: Annotated[str, Field(max_length=210)] | None = None


@router.get("/whoami", operation_id="whoami", response_model=WhoAmI)
async def whoami(request: Request, _: Annotated[Parameters, Query()]) -> WhoAmI:
    """Who sends this request, as far as the service knows, and in which roles."""
    principal = principal_of(request)
    return WhoAmI(
        id=principal.id,
        name=principal.name,
        is_operator=principal.is_operator,
        grants=dict(principal.grants),
        token_id=principal.credential,
        authentication=context_of(request).settings.authentication,
    )


@router.post("/tokens", status_code=201, operation_id="create_token", response_model=NewToken)
async def create_token(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Create a token: `{"name": "nightly", "grants": {"vision": "submitter"}, "expires_in_s": 86400}`.

    This is the only answer with its text.
    """
    wanted = await read_body(request, _Wanted)
    principal = principal_of(request)
    _check(wanted, principal)
    now = context_of(request).clock()
    token_id = new_id("tok", now)
    text = tokens.text_of(token_id, secrets.token_bytes(SECRET_BYTES))
    presented = tokens.read(text)
    assert presented is not None
    row = TokenRow(
        id=token_id,
        digest=presented.digest,
        name=one_line(wanted.name) or token_id,
        owner=wanted.owner or f"token:{token_id}",
        created_by=principal.id,
        created_at=now,
        expires_at=None if wanted.expires_in_s is None else now + wanted.expires_in_s,
        grants=wanted.grants,
    )

    def work(connection: sa.Connection, noted: Noted) -> None:
        policies = policies_in_force(connection, context_of(request).settings)
        store.insert(connection, row, None if principal.is_operator else policies)
        noted.object, noted.after = row.id, facts(row)
        noted.project = only_project(row)

    await write(request, work)
    answer = NewToken(**_fields(row), token=text)
    headers = {"Location": f"/v1/tokens/{row.id}", "Cache-Control": "no-store"}
    return Response(answer.model_dump_json(), 201, headers, media_type="application/json")


@router.get("/tokens", operation_id="list_tokens", response_model=Page[Token])
async def list_tokens(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """One's own tokens, and those with a role in a project that one administers; newest first."""
    before = read_cursor(query.cursor) if query.cursor is not None else None
    if before is not None and not is_id("tok", before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    principal = principal_of(request)
    projects = principal.projects_with(Role.ADMIN)

    def work(connection: sa.Connection) -> bytes:
        rows = store.page(connection, principal.id, projects, before, query.limit)
        return write_page(rows, lambda row: _view(row, principal), lambda row: row.id, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.delete("/tokens/{token_id}", operation_id="revoke_token", response_model=Token)
async def revoke_token(request: Request, token_id: str, _: Annotated[Parameters, Query()]) -> Token:
    """Revoke a token: within five seconds it is good for nothing.  Asking again is fine."""
    principal, now = principal_of(request), context_of(request).clock()

    def work(connection: sa.Connection, noted: Noted) -> TokenRow:
        row = store.get(connection, token_id) if is_id("tok", token_id) else None
        if row is None or not granting.sees_token(principal, row):
            raise ApiProblem(404, "token_not_found", f"there is no token {token_id[:80]!r}")
        if refused := granting.why_not_revoke(principal, row):
            raise Forbidden(refused)
        store.revoke(connection, token_id, now)
        noted.object, noted.project = row.id, only_project(row)
        noted.before = facts(row)
        noted.outcome = "done" if row.revoked_at is None else "unchanged"
        after = store.get(connection, token_id)
        assert after is not None
        return after

    return _view(await write(request, work), principal)


def _check(wanted: _Wanted, principal: Principal) -> None:
    """Raise ApiProblem for roles that there are not, and Forbidden for those that the principal cannot give."""
    if problem := granting.problem_of(wanted.grants):
        raise invalid_parameter("grants", problem)
    owner, is_own = wanted.owner, granting.may_have_own(principal, wanted.owner)
    if owner is not None and not granting.is_user(owner):
        raise invalid_parameter(
            "owner", "expected user: and a name; leave it out for a token that stands for itself"
        )
    if owner is not None and not is_own and not principal.is_operator:
        raise Forbidden("only operators create tokens that stand for someone else")
    if refused := granting.why_not(principal, wanted.grants, is_own=is_own):
        raise Forbidden(refused)


def only_project(row: TokenRow) -> str | None:
    """The project whose admins read of it in the audit; None: it has roles in several, or is an operator's."""
    projects = list(row.grants)
    return projects[0] if len(projects) == 1 else None


def facts(row: TokenRow) -> dict[str, object]:
    """What the audit says of a token."""
    return {
        "name": row.name,
        "owner": row.owner,
        "grants": {project: role.value for project, role in row.grants.items()},
        "expires_at": row.expires_at,
    }


def _fields(row: TokenRow) -> dict[str, object]:
    return {name: value for name, value in vars(row).items() if name != "digest"}


def _view(row: TokenRow, principal: Principal) -> Token:
    """Roles in projects of others are not shown."""
    shown = {
        project: role
        for project, role in row.grants.items()
        if granting.is_own(principal, row) or principal.has(Role.ADMIN, project)
    }
    return Token(**{**_fields(row), "grants": shown})

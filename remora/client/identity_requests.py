"""Requests about identities: who one is, tokens, roles and the audit.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote

from remora.client.requests import PAGE_ITEMS, Answer, Request
from remora.errors import ConfigurationError, NotFound
from remora.identity_views import AuditEntry, Grant, NewToken, Token, WhoAmI
from remora.roles import Role
from remora.views import Page, SignInWays, View

ViewT = TypeVar("ViewT", bound=View)

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def whoami() -> Request[WhoAmI]:
    """Who sends the request."""
    return Request(method="GET", path="/v1/whoami", parse=_one(WhoAmI))


def sign_in_ways() -> Request[SignInWays]:
    """How people prove to the service who they are; asked without a token."""
    return Request(method="GET", path="/v1/sign-in", parse=_one(SignInWays))


def create_token(
    name: str, grants: Mapping[str, Role | str], expires_in_s: float | None, owner: str | None
) -> Request[NewToken]:
    """A new token; sent once, as a second one would be another."""
    body = {"name": name, "grants": dict(grants), "expires_in_s": expires_in_s, "owner": owner}
    return Request(method="POST", path="/v1/tokens", json=body, parse=_one(NewToken))


def list_tokens(cursor: str | None = None) -> Request[Page[Token]]:
    """One page of tokens, newest first."""
    return Request(method="GET", path="/v1/tokens", params=_params(cursor), parse=_one(Page[Token]))


def revoke_token(token_id: str) -> Request[Token]:
    """Make a token good for nothing.  Raises NotFound for a text that cannot be an id."""
    if not _ID.fullmatch(token_id):
        raise NotFound(404, "token_not_found", "there is no such token; name it by its id, tok_...")
    return Request(method="DELETE", path=f"/v1/tokens/{token_id}", parse=_one(Token))


def list_grants(cursor: str | None = None) -> Request[Page[Grant]]:
    """One page of roles of users and groups."""
    return Request(method="GET", path="/v1/grants", params=_params(cursor), parse=_one(Page[Grant]))


def put_grant(subject: str, project: str, role: Role | str) -> Request[Grant]:
    """Give a role."""
    path = _grant_path(subject, project)
    return Request(method="PUT", path=path, json={"role": str(role)}, parse=_one(Grant))


def remove_grant(subject: str, project: str) -> Request[Grant]:
    """Take a role away."""
    return Request(method="DELETE", path=_grant_path(subject, project), parse=_one(Grant))


def list_audit(project: str | None, limit: int, cursor: str | None = None) -> Request[Page[AuditEntry]]:
    """One page of the audit, newest first."""
    params = {**_params(cursor), "limit": str(min(limit, PAGE_ITEMS))}
    params |= {} if project is None else {"project": project}
    return Request(method="GET", path="/v1/audit", params=params, parse=_one(Page[AuditEntry]))


def _grant_path(subject: str, project: str) -> str:
    for text, what in ((subject, "the user or group"), (project, "the project")):
        if not text.strip():
            raise ConfigurationError(f"{what} is empty: name it")
    return f"/v1/grants/{quote(project, safe='')}/{quote(subject, safe='')}"


def _params(cursor: str | None) -> dict[str, str]:
    return {} if cursor is None else {"cursor": cursor}


def _one(view: type[ViewT]) -> Callable[[Answer], ViewT]:
    return lambda answer: view.model_validate_json(answer.content)

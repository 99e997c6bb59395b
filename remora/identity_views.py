"""What the API answers about identities: who one is, tokens, roles and the audit."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from remora.roles import Role
from remora.views import View


class WhoAmI(View):
    """Who sent the request, as far as the service knows."""

    #: `token:tok_...`, `user:...`, or `local` where nothing has to be proved.
    id: str
    name: str
    is_operator: bool
    #: The role in each project; an operator needs none.
    grants: dict[str, Role] = Field(default_factory=dict)
    #: Id of the token that proved it.
    token_id: str | None = None
    #: `none` or `required`.
    authentication: str


class Token(View):
    """An API token, without its secret, which is stored nowhere."""

    id: str
    name: str
    #: Id of the principal that it stands for.
    owner: str
    #: By project; `*` with `operator` for the whole service.
    grants: dict[str, Role] = Field(default_factory=dict)
    created_by: str
    created_at: float
    #: None: it does not expire.
    expires_at: float | None = None
    revoked_at: float | None = None
    #: To the minute.
    last_used_at: float | None = None


class NewToken(Token):
    """A token that was just created: the only answer with its text."""

    #: Keep it as a password is kept.
    token: str = Field(repr=False)


class Grant(View):
    """The role of a user or of a group of users in a project."""

    #: `user:...` or `group:...`.
    subject: str
    #: `*` with `operator` for the whole service.
    project: str
    role: Role
    created_by: str
    created_at: float


class AuditEntry(View):
    """One write: who did what, when, and from where."""

    id: str
    at: float
    #: Id of the principal, and of the token that it used.
    principal: str
    credential: str | None = None
    #: Where the request came from, and which program sent it, as that says.
    address: str | None = None
    agent: str | None = None
    #: The operation of the API, as in `/openapi.json`.
    operation: str
    project: str | None = None
    #: What it was done to.
    object: str | None = None
    #: What changed of it; None: it was not there, or there is nothing to say.
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    #: Names the request in the service's log.
    request_id: str | None = None
    #: `done`, `unchanged`, `replayed` (a repeated request, answered as before) or `denied`.
    outcome: str

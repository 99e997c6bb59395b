"""Who sends a request: each way of proving it is tried, and what was proved is remembered for some seconds.

A way looks at headers and says who it is, or None when they hold nothing for it.  Further ways, such as tokens of an
issuer or the session of a page, are added to the list of `Authenticator`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fastapi import Request
from sqlalchemy.exc import DBAPIError

from service.api.problem_documents import ApiProblem
from service.identities import tokens
from service.identities.principals import LOCAL, Principal
from service.identities.tokens import Presented, Standing
from service.store import tokens as store
from service.store.database import Database
from service.store.failures import why_failed

log = logging.getLogger(__name__)

#: Seconds for which a token that was good is taken for good.  A stream is looked at every two seconds beside that, so
#: that a revocation acts within five.
REMEMBERED_S = 3.0
#: Tokens that are remembered at most.
MOST_REMEMBERED = 1024
#: Seconds between two notes of a token's use.
USE_S = 60.0

_SENTENCES = {
    Standing.UNKNOWN: ("invalid_token", "the token is none that this service knows"),
    Standing.EXPIRED: ("token_expired", "the token has expired"),
    Standing.REVOKED: ("token_revoked", "the token was revoked"),
}


class Way(Protocol):
    """One way of proving who one is."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Who the headers prove to have sent the request; None: they hold nothing of this way.

        Names of headers are in lower case.  Raises ApiProblem 401 for what proves nothing, and DBAPIError.
        """


class Authenticator:
    """All ways of the service, in their order; with none everyone is the operator `local`."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways = tuple(ways)

    @property
    def is_required(self) -> bool:
        """False: nothing has to be proved."""
        return bool(self._ways)

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Who it is; None: the headers claim nothing.  Raises ApiProblem 401, and DBAPIError."""
        if not self._ways:
            return LOCAL
        for way in self._ways:
            if (found := await way.authenticate(headers)) is not None:
                return found
        return None


def proof_missing() -> ApiProblem:
    """The request has to say who sends it."""
    return ApiProblem(
        401,
        "authentication_required",
        "this service asks for a token",
        hint="run `remora login`, set REMORA_TOKEN, or send Authorization: Bearer with it",
        headers={"WWW-Authenticate": 'Bearer realm="remora"'},
    )


def proof_refused(code: str, detail: str) -> ApiProblem:
    """What the request brought proves nothing."""
    return ApiProblem(
        401,
        code,
        detail,
        hint="ask an operator, or an admin of your project, for another: remora tokens create",
        headers={
            "WWW-Authenticate": f'Bearer realm="remora", error="invalid_token", error_description="{detail}"'
        },
    )


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer ...`, or None when there is no such header or another scheme."""
    scheme, _, value = headers.get("authorization", "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


class Remembered:
    """Who good tokens stand for, for some seconds, by the digest of the whole token."""

    def __init__(self) -> None:
        #: Until when (monotonic) each is believed.
        self._principals: dict[bytes, tuple[Principal, float]] = {}

    def get(self, token: str) -> Principal | None:
        """Who it stands for, or None: it has to be verified."""
        principal, until = self._principals.get(_digest(token), (None, 0.0))
        return principal if time.monotonic() < until else None

    def put(self, token: str, principal: Principal) -> None:
        """It was verified now."""
        if len(self._principals) >= MOST_REMEMBERED:
            # Dictionaries keep the order of insertion: the oldest goes.
            del self._principals[next(iter(self._principals))]
        key = _digest(token)
        self._principals.pop(key, None)
        self._principals[key] = (principal, time.monotonic() + REMEMBERED_S)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class ApiTokens:
    """Tokens of the service itself: one statement for each that is not remembered."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        """`clock` says seconds since 1970."""
        self._database = database
        self._clock = clock
        self._remembered = Remembered()
        self._noting: set[asyncio.Task[None]] = set()

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """See `Way`."""
        text = bearer(headers)
        if text is None or not text.startswith(f"{tokens.PREFIX}_"):
            return None
        principal = self._remembered.get(text)
        if principal is None:
            principal = await self._verified(tokens.read(text))
            self._remembered.put(text, principal)
        return principal

    async def _verified(self, presented: Presented | None) -> Principal:
        if presented is None:
            raise proof_refused(*_SENTENCES[Standing.UNKNOWN])
        row = await self._database.read(lambda connection: store.get(connection, presented.token_id))
        now = self._clock()
        standing = tokens.standing(presented, row, now)
        if row is None or standing is not Standing.GOOD:
            raise proof_refused(*_SENTENCES[standing])
        if row.last_used_at is None or row.last_used_at < now - USE_S:
            task = asyncio.create_task(self._note_use(row.id, now))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)
        return tokens.principal_of(row)

    async def _note_use(self, token_id: str, now: float) -> None:
        """For people who look which tokens are not needed any more; a request does not wait for it."""
        try:
            await self._database.write(
                lambda connection: store.note_use(connection, token_id, now, before=now - USE_S)
            )
        except DBAPIError as error:
            log.warning("the use of the token %s was not noted: %s", token_id, why_failed(error))

    async def close(self) -> None:
        """Wait for what is being noted."""
        await asyncio.gather(*self._noting, return_exceptions=True)


def principal_of(request: Request) -> Principal:
    """Who sends the request, which the gate has let in.  Raises ApiProblem 401 for one without a proof."""
    principal: Principal | None = request.scope.get("remora.principal")
    if principal is None:
        raise proof_missing()
    return principal

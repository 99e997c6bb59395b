"""Redeems the codes of sign-ins at the token endpoints of issuers (RFC 6749, 4.1.3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from service.openid.bearers import Bearers
from service.openid.code_flow import SignInBegun, SignInFailed, client_proof
from service.openid.documents import TIMEOUT_S, configuration_of, fetch_object, secure_endpoint
from service.openid.issuers import Issuer
from service.openid.keys import REFRESH_S, RETRY_S, IssuerUnreachableError
from service.openid.verification import MAX_TOKEN_CHARACTERS, TokenRefusedError

log = logging.getLogger(__name__)

#: Bytes of a file with a secret.
_MOST_SECRET_BYTES = 4096


@dataclass
class _Known:
    configuration: dict[str, Any] | None = None
    #: Monotonic seconds of the last answer and of the last question; None: never.
    fetched_at: float | None = None
    tried_at: float | None = None
    problem: str = "it was not asked yet"
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CodeExchange:
    """Asks issuers for their endpoints, and for tokens.  `clock` is monotonic, in seconds."""

    def __init__(self, client: httpx2.AsyncClient, bearers: Bearers, clock: Callable[[], float]) -> None:
        self._client = client
        self._bearers = bearers
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def page_of(self, issuer: Issuer) -> str:
        """The URL of the page at which people sign in.  Raises SignInFailed."""
        return self._endpoint(await self._configuration(issuer), "authorization_endpoint", issuer)

    async def redeem(self, issuer: Issuer, begun: SignInBegun, code: str, redirect_uri: str) -> str:
        """The token that the service accepts, of the person who has signed in.  Raises SignInFailed."""
        configuration = await self._configuration(issuer)
        secret = await asyncio.to_thread(_secret, issuer.client_secret_file)
        headers, proof = client_proof(
            issuer, secret, configuration.get("token_endpoint_auth_methods_supported")
        )
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": begun.verifier,
            **proof,
        }
        url = self._endpoint(configuration, "token_endpoint", issuer)
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                status, found = await fetch_object(
                    self._client, url, method="POST", good=(200, 400, 401), data=form, headers=headers
                )
        except (httpx2.HTTPError, ValueError, TimeoutError) as error:
            text = str(error)[:300] or type(error).__name__
            raise SignInFailed("issuer_unreachable", f"the issuer gives no token: {text}") from None
        if status != 200:
            said = str(found.get("error", ""))[:100]
            raise SignInFailed("sign_in_refused", f"the issuer refuses the code: {said!a}")
        tokens = {name: _token(found.get(name)) for name in ("id_token", "access_token")}
        await self._check(issuer, tokens["id_token"], begun)
        if (token := tokens[issuer.accepts]) is None:
            raise SignInFailed("sign_in_refused", f"the issuer gave no {issuer.accepts}")
        return token

    async def _check(self, issuer: Issuer, id_token: str | None, begun: SignInBegun) -> None:
        if id_token is None:
            raise SignInFailed("sign_in_refused", "the issuer gave no ID token")
        try:
            await self._bearers.check_id_token(id_token, issuer, begun.nonce)
        except TokenRefusedError as refused:
            raise SignInFailed("sign_in_refused", str(refused)) from None
        except IssuerUnreachableError as error:
            raise SignInFailed("issuer_unreachable", str(error)) from None

    def _endpoint(self, configuration: dict[str, Any], name: str, issuer: Issuer) -> str:
        try:
            return secure_endpoint(configuration, name)
        except ValueError as error:
            raise SignInFailed("issuer_unreachable", f"{issuer.issuer}: {error}") from None

    async def _configuration(self, issuer: Issuer) -> dict[str, Any]:
        known = self._known.setdefault(issuer.issuer, _Known())
        async with known.lock:
            if self._is_due(known):
                await self._fetch(issuer, known)
        if known.configuration is None:
            raise SignInFailed("issuer_unreachable", f"the issuer {issuer.issuer}: {known.problem}")
        return known.configuration

    def _is_due(self, known: _Known) -> bool:
        now = self._clock()
        if known.tried_at is not None and now - known.tried_at < RETRY_S:
            return False
        return known.fetched_at is None or now - known.fetched_at >= REFRESH_S

    async def _fetch(self, issuer: Issuer, known: _Known) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                known.configuration = await configuration_of(self._client, issuer)
            known.fetched_at = self._clock()
        except (httpx2.HTTPError, ValueError, TimeoutError) as error:
            # The one before goes on being used.
            known.problem = str(error)[:300] or type(error).__name__
            log.warning("the endpoints of the issuer %s were not fetched: %s", issuer.issuer, known.problem)
        finally:
            known.tried_at = self._clock()


def _token(given: object) -> str | None:
    return given if isinstance(given, str) and 0 < len(given) <= MAX_TOKEN_CHARACTERS else None


def _secret(path: Path | None) -> str | None:
    """The text of the file.  Raises SignInFailed."""
    if path is None:
        return None
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(_MOST_SECRET_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text or len(text) > _MOST_SECRET_BYTES:
        raise SignInFailed("issuer_unreachable", f"the file {path} of `client_secret_file` has no secret")
    return text

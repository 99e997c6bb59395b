"""The public keys of issuers, fetched from them and kept; a key that is new is fetched once it is needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx2
import jwt

from service.openid.documents import TIMEOUT_S, configuration_of, fetch_object, secure_endpoint
from service.openid.issuers import Issuer
from service.openid.verification import ALGORITHMS

log = logging.getLogger(__name__)

#: Keys of one issuer.
MAX_KEYS = 100
#: Seconds after which keys are fetched again, so that one that was withdrawn ends.
REFRESH_S = 3600.0
#: Seconds between two fetches at least: tokens of strangers must not make us ask an issuer without end.
RETRY_S = 10.0
#: Seconds for which keys are used while their issuer does not answer.
STALE_S = 24 * 3600.0


class IssuerUnreachableError(Exception):
    """The issuer gave no keys, and there are none of it that could still be used."""


@dataclass
class _Known:
    keys: Mapping[str, jwt.PyJWK] = field(default_factory=dict)
    #: Monotonic seconds; None: never.
    fetched_at: float | None = None
    tried_at: float | None = None
    problem: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    refreshing: asyncio.Task[None] | None = None


class KeyCache:
    """The keys of each issuer.  `clock` is monotonic, in seconds."""

    def __init__(self, client: httpx2.AsyncClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def keys_of(self, issuer: Issuer, *, is_key_missing: bool = False) -> Mapping[str, jwt.PyJWK]:
        """The issuer's keys by `kid`; fetched where they are old, or where one that is asked for is missing.

        Raises IssuerUnreachableError.
        """
        known = self._known.setdefault(issuer.issuer, _Known())
        if self._is_due(known, is_key_missing):
            if self._is_usable(known) and not is_key_missing:
                # Nothing waits for an issuer that may be silent, while its keys are there.
                if known.refreshing is None or known.refreshing.done():
                    known.refreshing = asyncio.create_task(self._refresh_once(issuer, known, is_key_missing))
            else:
                await self._refresh_once(issuer, known, is_key_missing)
        age = None if known.fetched_at is None else self._clock() - known.fetched_at
        if age is None or age > STALE_S:
            raise IssuerUnreachableError(f"the issuer {issuer.issuer} gives no keys: {known.problem}")
        return known.keys

    async def close(self) -> None:
        """End what is being fetched."""
        tasks = [known.refreshing for known in self._known.values() if known.refreshing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh_once(self, issuer: Issuer, known: _Known, is_key_missing: bool) -> None:
        async with known.lock:
            # Requests that waited for the lock find what the first one fetched.
            if self._is_due(known, is_key_missing):
                await self._refresh(issuer, known)

    def _is_usable(self, known: _Known) -> bool:
        return known.fetched_at is not None and self._clock() - known.fetched_at <= STALE_S

    def _is_due(self, known: _Known, is_key_missing: bool) -> bool:
        now = self._clock()
        if known.tried_at is not None and now - known.tried_at < RETRY_S:
            return False
        return is_key_missing or known.fetched_at is None or now - known.fetched_at >= REFRESH_S

    async def _refresh(self, issuer: Issuer, known: _Known) -> None:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                keys = await self._fetch(issuer)
        except (httpx2.HTTPError, ValueError, TimeoutError) as error:
            known.problem = str(error)[:300] or type(error).__name__
            log.warning("the keys of the issuer %s were not fetched: %s", issuer.issuer, known.problem)
            return
        finally:
            # Not before: requests that come meanwhile wait for the lock, and then for nothing.
            known.tried_at = self._clock()
        known.keys, known.fetched_at, known.problem = keys, self._clock(), ""

    async def _fetch(self, issuer: Issuer) -> dict[str, jwt.PyJWK]:
        """Raises httpx2.HTTPError and ValueError."""
        url = secure_endpoint(await configuration_of(self._client, issuer), "jwks_uri")
        _, document = await fetch_object(self._client, url)
        listed = document.get("keys")
        if not isinstance(listed, list) or len(listed) > MAX_KEYS:
            raise ValueError(f"it has no list of at most {MAX_KEYS} keys")
        return dict(pair for one in listed if (pair := _key(one)) is not None)


def _key(given: object) -> tuple[str, jwt.PyJWK] | None:
    """A key for signatures; None for those of other uses and kinds, which issuers publish beside them."""
    if (
        not isinstance(given, dict)
        or given.get("use", "sig") != "sig"
        or not isinstance(given.get("kid"), str)
    ):
        return None
    try:
        key = jwt.PyJWK(given)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    return (given["kid"], key) if key.algorithm_name in ALGORITHMS else None

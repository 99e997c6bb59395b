"""Finds the issuer of a token and asks its keys who the bearer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import jwt

from service.openid.issuers import Issuer
from service.openid.keys import KeyCache
from service.openid.verification import (
    Identity,
    TokenRefusedError,
    UnknownKeyError,
    check_id_token,
    issuer_of,
    verify,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Bearer:
    """An identity, and the name by which the operator calls its issuer."""

    issuer: str
    identity: Identity

    @property
    def user(self) -> str:
        """The subject of grants: `user:ISSUER/SUBJECT`."""
        return f"user:{self.issuer}/{self.identity.subject}"

    @property
    def groups(self) -> frozenset[str]:
        """The subjects of grants to groups: `group:ISSUER/GROUP`."""
        return frozenset(f"group:{self.issuer}/{group}" for group in self.identity.groups)


class Bearers:
    """Verifies tokens of the given issuers, by the operator's names.  `clock` gives seconds since 1970."""

    def __init__(self, issuers: Mapping[str, Issuer], keys: KeyCache, clock: Callable[[], float]) -> None:
        self._names = {issuer.issuer: name for name, issuer in issuers.items()}
        self._issuers = issuers
        self._keys = keys
        self._clock = clock

    async def bearer_of(self, token: str) -> Bearer:
        """Who shows this token.  Raises TokenRefusedError, and IssuerUnreachableError where there are no keys."""
        name = self._names.get(issuer_of(token))
        if name is None:
            raise TokenRefusedError("the token is of an issuer that this service does not trust")
        issuer = self._issuers[name]
        identity = await self._with_keys(issuer, lambda keys: verify(token, issuer, keys, self._clock()))
        return Bearer(name, identity)

    async def check_id_token(self, token: str, issuer: Issuer, nonce: str) -> None:
        """Check that the token belongs to the sign-in of that nonce.  Raises what `bearer_of` does."""
        await self._with_keys(
            issuer, lambda keys: check_id_token(token, issuer, keys, self._clock(), nonce=nonce)
        )

    async def _with_keys(self, issuer: Issuer, check: Callable[[Mapping[str, jwt.PyJWK]], T]) -> T:
        """What the check returns with the issuer's keys; they are fetched where it needs a new one."""
        try:
            return check(await self._keys.keys_of(issuer))
        except UnknownKeyError:
            return check(await self._keys.keys_of(issuer, is_key_missing=True))

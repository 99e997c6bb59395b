"""Tokens of OpenID Connect issuers as proofs: who the bearer is, and the roles that he and his groups were given."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import sqlalchemy as sa

from remora.roles import Role
from service.api.authentication import Remembered, bearer, proof_refused
from service.api.problem_documents import ApiProblem
from service.identities.principals import Principal
from service.openid.bearers import Bearer, Bearers
from service.openid.keys import IssuerUnreachableError
from service.openid.verification import TokenRefusedError
from service.store import grants, signed_out
from service.store.database import Database

log = logging.getLogger(__name__)


class IssuedTokens:
    """Tokens that were signed by an issuer: no statement for one that is remembered, two for each that is not."""

    def __init__(self, database: Database, bearers: Bearers) -> None:
        self._database = database
        self._bearers = bearers
        self._remembered = Remembered()

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """See `service.api.authentication.Way`."""
        text = bearer(headers)
        # Three parts (RFC 7515); what is no such token may be one of another way.
        if text is None or text.count(".") != 2:
            return None
        principal = self._remembered.get(text)
        if principal is None:
            principal = await self._principal_of(text)
            self._remembered.put(text, principal)
        return principal

    async def _principal_of(self, text: str) -> Principal:
        try:
            found = await self._bearers.bearer_of(text)
        except TokenRefusedError as refused:
            raise proof_refused("invalid_token", str(refused)) from None
        except IssuerUnreachableError as error:
            log.error("%s", error)  # noqa: TRY400 - the sentence says it all
            raise ApiProblem(
                503, "issuer_unreachable", str(error), hint="try again", headers={"Retry-After": "10"}
            ) from None
        return await self._with_roles(found, text)

    async def _with_roles(self, found: Bearer, text: str) -> Principal:
        subjects = {found.user, *found.groups}

        def work(connection: sa.Connection) -> tuple[bool, dict[str, Role]]:
            return signed_out.is_there(connection, text), dict(grants.of_subjects(connection, subjects))

        is_over, roles = await self._database.read(work)
        if is_over:
            raise proof_refused("token_revoked", "the bearer of the token has signed out")
        return Principal.with_roles(found.user, found.identity.name, roles, groups=found.groups)

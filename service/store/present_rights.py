"""What a principal may do now that is not here to prove it: the submitter of a schedule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from remora.roles import Role
from service.identities.principals import EVERYTHING, LOCAL, Access, Principal
from service.identities.tokens import principal_of
from service.store import grants, tokens

#: With what the names of principals begin that are tokens.
_KIND = "token:"


@dataclass(frozen=True)
class Absent:
    """By what someone had its roles."""

    #: Id of the principal; None: before there were any.
    principal: str | None
    #: Id of its token; None: an issuer said who it is.
    credential: str | None = None
    #: None: not known, as what it submitted was stored by a release that did not ask.
    groups: Collection[str] | None = ()

    @property
    def token(self) -> str | None:
        """Id of its token, which a principal that is a token names itself; None: an issuer said who it is."""
        if self.credential is None and self.principal is not None and self.principal.startswith(_KIND):
            return self.principal.removeprefix(_KIND)
        return self.credential


def access_now(
    connection: sa.Connection, absent: Absent, project: str, now: float
) -> tuple[Access, str | None]:
    """What it may do in the project now, and why it may not submit there; None: it may.

    What was submitted before anything had to be proved is the operator's.  Whether a user still is in a group of an
    issuer is not known before the user comes again; where its groups are not known, the user may what it could then.
    """
    if absent.principal in (None, LOCAL.id):
        return EVERYTHING, None
    principal = Principal(id=absent.principal, name=absent.principal)
    if absent.token is None:
        if absent.groups is None:
            return EVERYTHING, None
        roles = grants.of_subjects(connection, {absent.principal, *absent.groups})
        principal = Principal.with_roles(absent.principal, absent.principal, roles, groups=absent.groups)
    else:
        row = tokens.get(connection, absent.token)
        if row is None or row.revoked_at is not None:
            return Access(principal), f"the token {absent.token} was revoked"
        if row.expires_at is not None and now >= row.expires_at:
            return Access(principal), f"the token {absent.token} has expired"
        principal = principal_of(row)
    if principal.has(Role.SUBMITTER, project):
        return Access(principal), None
    return Access(principal), f"{absent.principal} may not submit to the project {project} any more"

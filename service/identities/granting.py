"""Who may give which role: no principal more than it has (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from remora.roles import EVERYWHERE, Role
from remora.spec.fields import is_name
from service.identities.principals import MOST_PROJECTS, Principal
from service.identities.tokens import TokenRow

#: Users and groups whose roles are stored here; others prove who they are.
_SUBJECT = re.compile(r"(user|group):[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,279}")


def is_subject(text: str) -> bool:
    """True for what roles can be given to: `user:NAME` and `group:NAME`; names of an issuer are `ISSUER/NAME`."""
    return _SUBJECT.fullmatch(text) is not None and text.isprintable() and text == text.strip()


def is_user(text: str) -> bool:
    """True for the id of a user."""
    return text.startswith("user:") and is_subject(text)


def problem_of(grants: Mapping[str, Role]) -> str | None:
    """What is wrong with roles by project, for every principal; None: nothing."""
    if not grants:
        return "a token needs a role in a project, or operator in *"
    if len(grants) > MOST_PROJECTS:
        return f"a token has roles in at most {MOST_PROJECTS} projects"
    for project, role in grants.items():
        if (project == EVERYWHERE) != (role is Role.OPERATOR):
            return "the role operator is for the whole service, which is written *, and no other role is"
        if project != EVERYWHERE and not is_name(project):
            return f"{project[:80]!a} is no name of a project"
    return None


def may_have_own(principal: Principal, owner: str | None) -> bool:
    """Whether a token for this owner is one of the principal's own, which may have what the principal has.

    A token has none: those that it made for itself would live longer than it.
    """
    return owner == principal.id and principal.credential is None and is_user(principal.id)


def why_not(principal: Principal, grants: Mapping[str, Role], *, is_own: bool = False) -> str | None:
    """Why this principal may not give these roles; None: it may.

    Admins give the roles of their projects; a token of one's own may have what one has.
    """
    for project, role in sorted(grants.items()):
        if project == EVERYWHERE:
            if not principal.is_operator:
                return "only operators make operators"
            continue
        has_it = is_own and principal.has(role, project)
        if not has_it and not principal.has(Role.ADMIN, project):
            return f"to give roles in the project {project} you need to be its admin"
    return None


def sees_token(principal: Principal, token: TokenRow) -> bool:
    """True for its own tokens, and those with a role in a project that it administers."""
    return is_own(principal, token) or any(principal.has(Role.ADMIN, project) for project in token.grants)


def is_own(principal: Principal, token: TokenRow) -> bool:
    """It stands for this principal, or this principal has made it."""
    return principal.is_operator or principal.id in (token.owner, token.created_by)


def why_not_revoke(principal: Principal, token: TokenRow) -> str | None:
    """Why this principal may not revoke a token that it sees; None: it may."""
    if is_own(principal, token) or all(principal.has(Role.ADMIN, project) for project in token.grants):
        return None
    return "it has roles in other projects, too: ask an operator to revoke it"

"""API tokens: their text, what is stored of them, and whether one is good now (pure).

A token is `rmr_<id>_<secret>`.  The secret has 256 random bits, so a plain SHA-256 of it is as hard to find as itself;
only that is stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from remora.roles import Role
from service.identities.principals import Principal

PREFIX = "rmr"
SECRET_BYTES = 32
#: Characters of a token's name.
MOST_NAME = 200
_TOKEN = re.compile(r"rmr_(tok_[0-9A-HJKMNP-TV-Z]{26})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """What is stored of a token; times are seconds since 1970."""

    id: str
    #: SHA-256 of its secret, hexadecimal.
    digest: str
    name: str
    #: Id of the principal that it stands for.
    owner: str
    created_by: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    #: By project; `*` with `operator` for the whole service.
    grants: Mapping[str, Role] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Without the digest."""
        return f"<TokenRow {self.id} {self.name!r} of {self.owner}>"


@dataclass(frozen=True)
class Presented:
    """What a request brought: the id it names and the digest of the secret it knows."""

    token_id: str
    digest: str = field(repr=False)


class Standing(StrEnum):
    """What a presented token is worth."""

    GOOD = "good"
    #: There is none of that id and secret.
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REVOKED = "revoked"


def text_of(token_id: str, secret: bytes) -> str:
    """The token as its owner keeps it; `secret` are `SECRET_BYTES` random bytes."""
    return f"{PREFIX}_{token_id}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def read(text: str) -> Presented | None:
    """What a text says, or None when it is no token at all."""
    found = _TOKEN.fullmatch(text) if len(text) <= 100 else None
    return None if found is None else Presented(found[1], hashlib.sha256(found[2].encode()).hexdigest())


def standing(presented: Presented, row: TokenRow | None, now: float) -> Standing:
    """What the token is worth now.  Only who proves the secret learns that it expired or was revoked."""
    # Compared also without a row: the time says nothing about which ids there are.
    known = "" if row is None else row.digest
    is_proved = hmac.compare_digest(known.encode(), presented.digest.encode())
    if row is None or not is_proved:
        return Standing.UNKNOWN
    if row.revoked_at is not None:
        return Standing.REVOKED
    if row.expires_at is not None and now >= row.expires_at:
        return Standing.EXPIRED
    return Standing.GOOD


def principal_of(row: TokenRow) -> Principal:
    """Who a good token stands for."""
    return Principal.with_roles(row.owner, row.name, row.grants, credential=row.id)

"""Tokens of issuers whose bearers signed out: they are good for nothing from then on, until they expire.

The service cannot revoke such a token at its issuer, and only its digest is stored.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from service.store.rows import upsert
from service.store.tables import signed_out


def put(connection: sa.Connection, token: str, until: float) -> None:
    """The bearer of the token signed out; it expires before `until`.  Once more changes nothing."""
    upsert(connection, signed_out, [{"digest": _digest(token), "until": until}], replace=False)


def is_there(connection: sa.Connection, token: str) -> bool:
    """Whether the bearer of the token signed out."""
    found = sa.select(signed_out.c.digest).where(signed_out.c.digest == _digest(token))
    return connection.execute(found).first() is not None


def forget(connection: sa.Connection, now: float, most: int) -> None:
    """Delete `most` of those at most whose tokens have expired."""
    over = sa.select(signed_out.c.digest).where(signed_out.c.until < now).limit(most)
    connection.execute(sa.delete(signed_out).where(signed_out.c.digest.in_(over)))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()

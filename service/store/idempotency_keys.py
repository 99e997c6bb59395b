"""Saved answers, so that a request that is sent twice is done once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import sqlalchemy as sa

from service.identities.principals import LOCAL, Principal
from service.store.rows import insert_into
from service.store.tables import idempotency

_ANSWER = sa.select(idempotency).where(idempotency.c.key == sa.bindparam("of"))


@dataclass(frozen=True)
class SavedAnswer:
    """The first answer to a request with an `Idempotency-Key`."""

    #: SHA-256 of the request's body, hexadecimal.
    body_digest: str
    job_id: str
    #: The answer's body as it was sent.
    answer: str


def key_of(principal: Principal, key: str) -> str:
    """Under what the answer to this principal's request with an `Idempotency-Key` is saved.

    Two principals may use the same key.  The column takes 128 characters, which is what a key alone may have; no two
    principals can make theirs digest to the same.
    """
    if principal.id == LOCAL.id:
        return key
    return hashlib.sha256(f"{principal.id}\0{key}".encode()).hexdigest()


def find_answer(connection: sa.Connection, key: str) -> SavedAnswer | None:
    """The answer saved for the key, or None."""
    row = connection.execute(_ANSWER, {"of": key}).first()
    return None if row is None else SavedAnswer(row.body_digest, row.job_id, row.answer)


def save_answer(connection: sa.Connection, key: str, answer: SavedAnswer, now: float) -> None:
    """Save the first answer for a key.  Raises IntegrityError when there is one."""
    row = {
        "key": key,
        "body_digest": answer.body_digest,
        "job_id": answer.job_id,
        "answer": answer.answer,
        "created_at": now,
    }
    connection.execute(insert_into(idempotency), row)


def has_answers(connection: sa.Connection, before: float) -> bool:
    """True when there are answers that were saved before the given time."""
    statement = sa.select(idempotency.c.key).where(idempotency.c.created_at < before).limit(1)
    return connection.execute(statement).first() is not None


def forget_answers(connection: sa.Connection, before: float) -> int:
    """Remove answers that were saved before the given time; how many there were."""
    return connection.execute(sa.delete(idempotency).where(idempotency.c.created_at < before)).rowcount

"""Runs work in one transaction: again after a conflict, and once where the answer to a COMMIT is lost.

When a connection breaks while COMMIT is under way, the server may have done it.  PostgreSQL knows what became of every
transaction by its number, so that number is asked for before the COMMIT, and asked about on another connection after
it: work that was committed is not done again, and its result stands.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from service.store.failures import Unsure

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

#: How many times work is run at most.
_TRIES = 5
#: Seconds in which a database has to say what became of a transaction, and between two questions.
PATIENCE_S, _PAUSE_S = 10.0, 0.1

_NUMBER = sa.text("SELECT CAST(pg_current_xact_id_if_assigned() AS text)")
_FATE = sa.text("SELECT pg_xact_status(CAST(:number AS xid8))")


class Fate(StrEnum):
    """What became of a transaction, in PostgreSQL's words."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in progress"


def run(engine: sa.Engine, work: Work[T]) -> T:
    """Run `work` in a transaction and return what it returns; it has to bear being run again after one that failed.

    Raises Unsure when a connection broke during COMMIT and the server does not say whether it committed.
    """
    for left in range(_TRIES - 1, -1, -1):
        number: str | None = None
        try:
            with engine.begin() as connection:
                result = work(connection)
                number = _number(connection)
        except DBAPIError as error:
            if number is not None and error.connection_invalidated and _was_committed(engine, number, error):
                return result
            if not left or not is_conflict(error):
                raise
        else:
            return result
    raise AssertionError("unreachable: the last try returns or raises")


def is_conflict(error: DBAPIError) -> bool:
    """True when the same transaction may succeed if it is simply run again."""
    code = getattr(error.orig, "sqlstate", None)
    locked = isinstance(error.orig, sqlite3.OperationalError) and "locked" in str(error.orig)
    return code in ("40001", "40P01", "55P03") or locked or error.connection_invalidated


def _number(connection: sa.Connection) -> str | None:
    """The number of this transaction on the server; None when it wrote nothing, or the database has no numbers."""
    if connection.dialect.name != "postgresql":
        return None
    found = connection.execute(_NUMBER).scalar()
    return None if found is None else str(found)


def _was_committed(engine: sa.Engine, number: str, error: DBAPIError) -> bool:
    """Whether a transaction was committed whose connection broke.  Raises Unsure."""
    until = time.monotonic() + PATIENCE_S
    while True:
        fate = _fate(engine, number, error)
        if fate in (Fate.COMMITTED, Fate.ABORTED):
            return fate is Fate.COMMITTED
        if time.monotonic() > until:
            raise _unsure(error) from error
        time.sleep(_PAUSE_S)


def _fate(engine: sa.Engine, number: str, error: DBAPIError) -> Fate | None:
    """None: the server does not answer.  Raises Unsure when it does not know."""
    try:
        with engine.connect() as connection:
            said = connection.execute(_FATE, {"number": number}).scalar()
    except OperationalError:
        return None
    except DBAPIError:
        # A standby that took over does not know it.
        said = None
    if said is None:
        raise _unsure(error) from error
    return Fate(said)


def _unsure(error: DBAPIError) -> Unsure:
    return Unsure(error.statement, error.params, error.orig or error)

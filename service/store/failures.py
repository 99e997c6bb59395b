"""What the store raises on purpose, and what errors of the database are and what to do about each (pure)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError


class StoreError(Exception):
    """The database cannot be used; the message is one sentence for people."""


class Fenced(Exception):
    """Another process holds the lease now: the transaction is rolled back and the work must be dropped."""


class Unsure(OperationalError):
    """The connection broke while a transaction was being committed, and it is not known whether it was."""


class DatabaseFailure(StrEnum):
    """Why a database request failed."""

    FULL = "full"
    READ_ONLY = "read_only"
    BROKEN_DISK = "broken_disk"
    DAMAGED = "damaged"
    #: A connection broke during COMMIT.
    UNSURE = "unsure"
    AWAY = "away"
    #: It rejected this one transaction.
    REFUSED = "refused"


#: One sentence each; those that are not here depend on the error.
SENTENCES = {
    DatabaseFailure.FULL: (
        "the disk of the database is full: free space on it or give it more; what was accepted is stored, and the"
        " service goes on by itself"
    ),
    DatabaseFailure.READ_ONLY: (
        "the database may only be read: let the service's user write to it; for SQLite that is the file, its folder"
        " and their disk, for PostgreSQL a server that is no standby"
    ),
    DatabaseFailure.BROKEN_DISK: (
        "the disk of the database fails: look into the system's log, and see to a backup first"
    ),
    DatabaseFailure.DAMAGED: "the database is damaged: stop the service and restore a backup",
    DatabaseFailure.UNSURE: (
        "the connection to the database broke while something was stored, and it is not known whether it was: look"
        " before you send it again"
    ),
}

#: By SQLSTATE, as PostgreSQL says it.
_STATES = {
    "53100": DatabaseFailure.FULL,
    "25006": DatabaseFailure.READ_ONLY,
    "58030": DatabaseFailure.BROKEN_DISK,
    "XX001": DatabaseFailure.DAMAGED,
    "XX002": DatabaseFailure.DAMAGED,
}
#: By what the names of SQLite's error codes begin with.
_NAMES = {
    "SQLITE_FULL": DatabaseFailure.FULL,
    "SQLITE_READONLY": DatabaseFailure.READ_ONLY,
    "SQLITE_IOERR": DatabaseFailure.BROKEN_DISK,
    "SQLITE_CORRUPT": DatabaseFailure.DAMAGED,
    "SQLITE_NOTADB": DatabaseFailure.DAMAGED,
}


def failure_of(error: Exception) -> DatabaseFailure:
    """What a database error means."""
    if isinstance(error, Unsure):
        return DatabaseFailure.UNSURE
    original: Any = error.orig if isinstance(error, DBAPIError) else None
    state = str(getattr(original, "sqlstate", None) or "")
    name = str(getattr(original, "sqlite_errorname", None) or "")
    if state in _STATES:
        return _STATES[state]
    for beginning, failure in _NAMES.items():
        if name.startswith(beginning):
            return failure
    return DatabaseFailure.AWAY if isinstance(error, OperationalError) else DatabaseFailure.REFUSED


def is_database_wide(error: DBAPIError) -> bool:
    """True when no other transaction would succeed now either."""
    return failure_of(error) is not DatabaseFailure.REFUSED


def why_failed(error: Exception) -> str:
    """One sentence for people about a database error, and what to do."""
    failure = failure_of(error)
    if failure in SENTENCES:
        return SENTENCES[failure]
    if failure is DatabaseFailure.AWAY and isinstance(error, DBAPIError):
        return f"the database does not answer: {str(error.orig).strip().splitlines()[0]}"
    return f"the database refused: {type(error).__name__}"

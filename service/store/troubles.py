"""What is wrong with a database that refuses, and what to do about it (pure)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError

from service.store.errors import Unsure


class Trouble(StrEnum):
    """Why the database did not do what it was asked for."""

    FULL = "full"
    READ_ONLY = "read_only"
    BROKEN_DISK = "broken_disk"
    DAMAGED = "damaged"
    #: A connection broke during COMMIT.
    UNSURE = "unsure"
    AWAY = "away"
    #: It refused this one transaction.
    REFUSED = "refused"


#: One sentence each; those that are not here depend on the error.
SENTENCES = {
    Trouble.FULL: (
        "the disk of the database is full: make room on it or give it more; what was accepted is stored, and the"
        " service goes on by itself"
    ),
    Trouble.READ_ONLY: (
        "the database may only be read: let the service's user write to it; for SQLite that is the file, its folder"
        " and their disk, for PostgreSQL a server that is no standby"
    ),
    Trouble.BROKEN_DISK: "the disk of the database fails: look into the system's log, and see to a backup first",
    Trouble.DAMAGED: "the database is damaged: stop the service and restore a backup",
    Trouble.UNSURE: (
        "the connection to the database broke while something was stored, and it is not known whether it was: look"
        " before you send it again"
    ),
}

#: By SQLSTATE, as PostgreSQL says it.
_STATES = {
    "53100": Trouble.FULL,
    "25006": Trouble.READ_ONLY,
    "58030": Trouble.BROKEN_DISK,
    "XX001": Trouble.DAMAGED,
    "XX002": Trouble.DAMAGED,
}
#: By what the names of SQLite's error codes begin with.
_NAMES = {
    "SQLITE_FULL": Trouble.FULL,
    "SQLITE_READONLY": Trouble.READ_ONLY,
    "SQLITE_IOERR": Trouble.BROKEN_DISK,
    "SQLITE_CORRUPT": Trouble.DAMAGED,
    "SQLITE_NOTADB": Trouble.DAMAGED,
}


def trouble_of(error: Exception) -> Trouble:
    """What a database error means."""
    if isinstance(error, Unsure):
        return Trouble.UNSURE
    original: Any = error.orig if isinstance(error, DBAPIError) else None
    state = str(getattr(original, "sqlstate", None) or "")
    name = str(getattr(original, "sqlite_errorname", None) or "")
    if state in _STATES:
        return _STATES[state]
    for beginning, trouble in _NAMES.items():
        if name.startswith(beginning):
            return trouble
    return Trouble.AWAY if isinstance(error, OperationalError) else Trouble.REFUSED


def concerns_everybody(error: DBAPIError) -> bool:
    """True when no other transaction would succeed now either."""
    return trouble_of(error) is not Trouble.REFUSED


def why_failed(error: Exception) -> str:
    """One sentence for people about a database error, and what to do."""
    trouble = trouble_of(error)
    if trouble in SENTENCES:
        return SENTENCES[trouble]
    if trouble is Trouble.AWAY and isinstance(error, DBAPIError):
        return f"the database does not answer: {str(error.orig).strip().splitlines()[0]}"
    return f"the database refused: {type(error).__name__}"

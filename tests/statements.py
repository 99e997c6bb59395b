"""Counts the statements that a database is sent: what grows with the number of jobs grows in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from service.store.database import Database


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The texts of the statements that are sent while the block runs, in their order; one for many rows is one."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    engines = {database.engine, database._reading}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)

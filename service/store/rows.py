"""Rows of the database to frozen values and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.queue.rows import AttemptRow, DrilledJob, DrillRow, JobRow, NodeRow

RowT = TypeVar("RowT", JobRow, AttemptRow, NodeRow)


def to_row(kind: type[RowT], row: sa.Row[Any]) -> RowT:
    """A frozen value from a row of its table."""
    return kind(**row._mapping)


def to_rows(kind: type[RowT], rows: Iterable[sa.Row[Any]]) -> list[RowT]:
    """Frozen values from rows of their table."""
    return [to_row(kind, row) for row in rows]


def columns(row: JobRow | AttemptRow | NodeRow) -> dict[str, Any]:
    """The values of a row by column."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


def to_drill(row: sa.Row[Any]) -> DrillRow:
    """A drill from its row; its jobs are stored as one JSON value."""
    return DrillRow(**{**row._mapping, "jobs": [DrilledJob(**job) for job in row.jobs]})


def drill_columns(drill: DrillRow) -> dict[str, Any]:
    """The values of a drill by column."""
    return asdict(drill)


def upsert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], *, replace: bool) -> None:
    """Insert rows; one whose primary key exists is replaced, or left as it is."""
    if not rows:
        return
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = make(table)
    keys = [column.name for column in table.primary_key]
    if not replace:
        connection.execute(statement.on_conflict_do_nothing(index_elements=keys), rows)
        return
    values = {
        column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys
    }
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values), rows)

"""Rows of the database to frozen values and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.queue.ledger import UseRow
from service.queue.rows import AttemptRow, DrilledJob, DrillRow, JobRow, NodeRow
from service.store.tables import metadata

RowT = TypeVar("RowT", JobRow, AttemptRow, NodeRow, UseRow)

#: Ids in one statement: databases bound its parameters.
_AT_ONCE = 500
#: What is decided once and for all when a job is accepted; no later statement writes it again.
FIXED_OF_JOBS = (
    "name",
    "project",
    "priority",
    "spec",
    "min_workers",
    "max_workers",
    "worker_resources",
    "retry_limit",
    "backoff_s",
    "run_time_s",
    "wait_time_s",
    "created_at",
    "array_id",
    "array_index",
    "parameters",
    "stop_rule",
    "submitted_by",
    "traceparent",
    "cluster",
    # Changed by statements of their own.
    "labels",
    "deleted_at",
)
_FIXED = {
    "jobs": FIXED_OF_JOBS,
    # Spans are noted by a statement of their own.
    "attempts": ("job_id", "attempt", "created_at", "fabric", "traced_at", "is_traced", "cluster"),
}


def in_parts(ids: Sequence[str]) -> list[Sequence[str]]:
    """The ids in parts that one statement may name."""
    return [ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE)]


@lru_cache
def insert_into(table: sa.Table) -> sa.Insert:
    """The statement that inserts whole rows; it is built once, and so are its text and the keys of what it takes."""
    return sa.insert(table)


@lru_cache
def update_of(table: sa.Table) -> sa.Update:
    """The statement that changes rows of jobs or attempts by `changing_columns`; built once."""
    values = {name: sa.bindparam(f"new_{name}", type_=table.c[name].type) for name in _changing(table)}
    return sa.update(table).where(table.c.id == sa.bindparam("old_id")).values(values)


def changing_columns(table: sa.Table, row: JobRow | AttemptRow) -> dict[str, Any]:
    """What `update_of` takes for a row."""
    names = _changing(table)
    return {"old_id": row.id, **{f"new_{name}": getattr(row, name) for name in names}}


@lru_cache
def _changing(table: sa.Table) -> tuple[str, ...]:
    fixed = {"id", *_FIXED[table.name]}
    return tuple(column.name for column in table.columns if column.name not in fixed)


def to_row(kind: type[RowT], row: sa.Row[Any]) -> RowT:
    """A frozen value from a row of its table."""
    return kind(**row._mapping)


def to_rows(kind: type[RowT], rows: sa.CursorResult[Any]) -> list[RowT]:
    """Frozen values from rows of their table."""
    names = tuple(rows.keys())
    if names != _NAMES[kind.__name__]:
        return [kind(**dict(zip(names, row, strict=True))) for row in rows.all()]
    # As `copy` and `pickle` do: a frozen value sets one attribute after the other, four times as slowly, and every
    # tick reads hundreds of rows.
    values = []
    for row in rows.all():
        value = object.__new__(kind)
        value.__dict__.update(zip(names, row, strict=True))
        values.append(value)
    return values


def _names_of(kind: type[Any], table: str) -> tuple[str, ...] | None:
    """Its fields, in the order of the columns; None when more is done to make one than to set them."""
    found = tuple(column.name for column in metadata.tables[table].columns)
    is_plain = not hasattr(kind, "__post_init__") and set(found) == {one.name for one in fields(kind)}
    return found if is_plain else None


_NAMES = {
    kind.__name__: _names_of(kind, table)
    for kind, table in ((JobRow, "jobs"), (AttemptRow, "attempts"), (NodeRow, "nodes"), (UseRow, "uses"))
}


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
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, replace), rows)


@lru_cache
def _upsert(dialect: str, table: sa.Table, replace: bool) -> sa.Insert:
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = make(table)
    keys = [column.name for column in table.primary_key]
    if not replace:
        return statement.on_conflict_do_nothing(index_elements=keys)
    values = {
        column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=values)

"""Pages of what belongs to some projects, newest first, by the index of projects and ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa


def newest_of(
    statement: sa.Select[Any],
    table: sa.Table,
    projects: Collection[str] | None,
    conditions: Sequence[sa.ColumnElement[bool]],
    limit: int,
) -> sa.Select[Any]:
    """The newest `limit` rows of a table in these projects, of those that meet the conditions, newest id first.

    Of several projects the newest of each are found by the index of projects and ids, whatever others have.
    """
    statement = statement.order_by(table.c.id.desc()).limit(limit)
    if projects is None:
        return statement.where(*conditions)
    if len(projects) <= 1:
        return statement.where(_only(table, projects), *conditions)
    parts = [
        sa.select(table.c.id)
        .where(table.c.project == project, *conditions)
        .order_by(table.c.id.desc())
        .limit(limit)
        .subquery()
        for project in sorted(projects)
    ]
    return statement.where(table.c.id.in_(sa.union_all(*(sa.select(part.c.id) for part in parts))))


def _only(table: sa.Table, projects: Collection[str]) -> sa.ColumnElement[bool]:
    """In the one project, or in none."""
    for project in projects:
        return table.c.project == project
    return sa.false()

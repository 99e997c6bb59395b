"""Roles of users and of groups of users in projects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from remora.roles import Role
from service.store.rows import upsert
from service.store.tables import grants


@dataclass(frozen=True, kw_only=True)
class GrantRow:
    """One role; `project` is `*` for operators."""

    #: `user:...` or `group:...`.
    subject: str
    project: str
    role: Role
    created_by: str
    created_at: float


def put(connection: sa.Connection, grant: GrantRow) -> GrantRow | None:
    """Store a role in place of the one that the subject had in the project, which is returned."""
    before = get(connection, grant.subject, grant.project)
    upsert(connection, grants, [vars(grant)], replace=True)
    return before


def get(connection: sa.Connection, subject: str, project: str) -> GrantRow | None:
    """The role of the subject in the project, or None."""
    mine = grants.c.subject == subject, grants.c.project == project
    row = connection.execute(sa.select(grants).where(*mine)).first()
    return None if row is None else GrantRow(**row._mapping)


def remove(connection: sa.Connection, subject: str, project: str) -> GrantRow | None:
    """Take the role away; what it was, or None."""
    before = get(connection, subject, project)
    connection.execute(sa.delete(grants).where(grants.c.subject == subject, grants.c.project == project))
    return before


def of_subjects(connection: sa.Connection, subjects: Collection[str]) -> dict[str, Role]:
    """The highest role in each project that a user has by itself or by one of its groups; `*` for operators."""
    found: dict[str, Role] = {}
    for row in connection.execute(sa.select(grants).where(grants.c.subject.in_(sorted(subjects)))):
        held = found.get(row.project)
        found[row.project] = row.role if held is None or row.role.includes(held) else held
    return found


def page(
    connection: sa.Connection,
    projects: Collection[str] | None,
    after: tuple[str, str] | None,
    limit: int,
) -> list[GrantRow]:
    """Roles in these projects (None: all), by project and subject; `after` is the last one of the page before."""
    place = sa.tuple_(grants.c.project, grants.c.subject)
    statement = sa.select(grants).order_by(grants.c.project, grants.c.subject).limit(limit)
    if projects is not None:
        statement = statement.where(grants.c.project.in_(sorted(projects)))
    if after is not None:
        statement = statement.where(place > sa.tuple_(*(sa.literal(one) for one in after)))
    return [GrantRow(**row._mapping) for row in connection.execute(statement)]

"""Secrets of projects, encrypted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import sqlalchemy as sa

from remora.errors import SpecError, SpecProblem
from remora.spec.spec import JobSpec
from service.queue.intake import Kept
from service.queue.secrets import SecretRow
from service.store import alerts, kept_amounts
from service.store.rows import upsert
from service.store.tables import secret_versions, secrets


def get(connection: sa.Connection, project: str, name: str) -> SecretRow | None:
    """One secret, or None."""
    return _one(connection.execute(_of(project, name)).first())


def lock(connection: sa.Connection, project: str, name: str) -> SecretRow | None:
    """One secret, kept from changing by others until the transaction ends, or None."""
    return _one(connection.execute(_of(project, name).with_for_update()).first())


def of_project(
    connection: sa.Connection, project: str, names: Iterable[str] | None = None
) -> list[SecretRow]:
    """Secrets of a project, by name; of these names alone, when some are given."""
    statement = sa.select(secrets).where(secrets.c.project == project).order_by(secrets.c.name)
    if names is not None:
        statement = statement.where(secrets.c.name.in_(sorted(names)))
    return [SecretRow(**row._mapping) for row in connection.execute(statement)]


def put(connection: sa.Connection, row: SecretRow, most: int | None = None) -> None:
    """Store a secret in place of the one of its name, if there is one; its version is the newest of that name.

    Raises IntegrityError beside another one, and LimitReached when its project would have more than `most`.
    """
    is_there = sa.and_(secrets.c.project == row.project, secrets.c.name == row.name)
    if connection.execute(sa.update(secrets).where(is_there).values(asdict(row))).rowcount == 0:
        connection.execute(sa.insert(secrets), asdict(row))
        kept_amounts.take(connection, kept_amounts.project_holder(row.project), Kept.SECRETS, 1, most)
    upsert(
        connection,
        secret_versions,
        [{"project": row.project, "name": row.name, "version": row.version}],
        replace=True,
    )


def newest_version(connection: sa.Connection, project: str, name: str) -> int:
    """The last version that a secret of this name had, also if it was deleted; 0: there was none."""
    mine = secret_versions.c.project == project, secret_versions.c.name == name
    return int(connection.execute(sa.select(secret_versions.c.version).where(*mine)).scalar() or 0)


def delete(connection: sa.Connection, project: str, name: str) -> None:
    """Delete a secret; fine when there is none.  Its version stays: the next one of its name has a higher one."""
    statement = sa.delete(secrets).where(secrets.c.project == project, secrets.c.name == name)
    gone = connection.execute(statement).rowcount
    kept_amounts.add(connection, {(kept_amounts.project_holder(project), Kept.SECRETS): -gone})


def is_any(connection: sa.Connection) -> bool:
    """True when some project has a secret, or there is an alert, whose destination is one."""
    if connection.execute(sa.select(secrets.c.name).limit(1)).first() is not None:
        return True
    return alerts.is_any(connection)


def of_other_keys(
    connection: sa.Connection, key_id: str, after: tuple[str, str] | None, limit: int
) -> list[SecretRow]:
    """Secrets that are not encrypted with this key, locked, behind a project and name, in their order."""
    statement = (
        sa.select(secrets)
        .where(secrets.c.key_id != key_id)
        .order_by(secrets.c.project, secrets.c.name)
        .limit(limit)
        .with_for_update()
    )
    if after is not None:
        project, name = after
        behind = sa.or_(
            secrets.c.project > project, sa.and_(secrets.c.project == project, secrets.c.name > name)
        )
        statement = statement.where(behind)
    return [SecretRow(**row._mapping) for row in connection.execute(statement)]


def check_there(connection: sa.Connection, spec: JobSpec) -> None:
    """Raise SpecError for each secret of a job that its project does not have."""
    uses = spec.environment.secrets
    if not uses:
        return
    statement = sa.select(secrets.c.name).where(
        secrets.c.project == spec.project, secrets.c.name.in_([use.name for use in uses])
    )
    known = set(connection.execute(statement).scalars())
    problems = [
        SpecProblem(f"environment.secrets.{place}", missing(spec.project, use.name))
        for place, use in enumerate(uses)
        if use.name not in known
    ]
    if problems:
        raise SpecError(problems)


def missing(project: str, name: str) -> str:
    """What is said of a secret that a project does not have."""
    return f"the project {project} has no secret {name}; store it with: remora secrets set {name} --project {project}"


def _of(project: str, name: str) -> sa.Select[tuple[object, ...]]:
    return sa.select(secrets).where(secrets.c.project == project, secrets.c.name == name)


def _one(row: sa.Row[tuple[object, ...]] | None) -> SecretRow | None:
    return None if row is None else SecretRow(**row._mapping)

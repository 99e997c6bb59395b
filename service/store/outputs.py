"""Outputs of jobs, and the models that succeeded jobs made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.queue.intake import Kept
from service.queue.new_models import NewModel, models_of
from service.queue.rows import JobRow, NewEvent
from service.store import kept_amounts
from service.store.rows import in_parts, upsert
from service.store.tables import models, outputs

#: Versions of models that a page reads together.
_TOGETHER = 10


@dataclass(frozen=True, kw_only=True)
class OutputsRow:
    """What a job's outputs are."""

    job_id: str
    attempt: int
    committed_at: float
    #: A path or a URL; `stored` of each file is relative to it.
    location: str
    #: By name: `size_bytes`, `sha256`, `stored`.
    files: dict[str, dict[str, Any]]
    #: Of all of them.
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One version of a model."""

    name: str
    version: int
    job_id: str
    attempt: int
    output: str
    created_at: float
    digest: str
    #: Digest of the job's code bundle.
    code: str | None
    command: list[str]
    location: str
    files: dict[str, dict[str, Any]]
    project: str


def save_outputs(connection: sa.Connection, rows: list[dict[str, Any]], projects: Mapping[str, str]) -> None:
    """Replace what the outputs of these jobs are; `projects` has the job's by the id of each."""
    before = sizes(connection, [row["job_id"] for row in rows])
    sized = [row | {"size_bytes": sum(one["size_bytes"] for one in row["files"].values())} for row in rows]
    upsert(connection, outputs, sized, replace=True)
    more: Counter[tuple[str, Kept]] = Counter()
    for row in sized:
        holder = kept_amounts.project_holder(projects[row["job_id"]])
        more[holder, Kept.OUTPUT_BYTES] += row["size_bytes"] - before.get(row["job_id"], 0)
    kept_amounts.add(connection, more)


def forget_outputs(connection: sa.Connection, job_id: str, project: str) -> None:
    """The files of a job's outputs are gone."""
    size = sizes(connection, [job_id]).get(job_id, 0)
    connection.execute(sa.delete(outputs).where(outputs.c.job_id == job_id))
    kept_amounts.add(connection, {(kept_amounts.project_holder(project), Kept.OUTPUT_BYTES): -size})


def sizes(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, int]:
    """Bytes of the outputs of those of the jobs that have some."""
    found: dict[str, int] = {}
    for part in in_parts(job_ids):
        statement = sa.select(outputs.c.job_id, outputs.c.size_bytes).where(outputs.c.job_id.in_(part))
        found |= {row.job_id: row.size_bytes for row in connection.execute(statement)}
    return found


def get_outputs(connection: sa.Connection, job_id: str) -> OutputsRow | None:
    """The job's outputs, or None while there are none."""
    row = connection.execute(sa.select(outputs).where(outputs.c.job_id == job_id)).first()
    return None if row is None else OutputsRow(**row._mapping)


def register_models(
    connection: sa.Connection, job: JobRow, now: float, *, is_complete: bool = True
) -> list[NewEvent]:
    """Make a new version of each model that the succeeded job asks for; returns what to report.

    Unless the list of its outputs `is_complete`, none is made: older files would pass for the newest ones.
    """
    if not any(models_of(job, {})):
        return []
    kept = get_outputs(connection, job.id)
    events = []
    for model in models_of(job, kept.files if kept is not None else {}):
        if is_complete and kept is not None and model.files:
            events.append(_register(connection, job, kept, model, now))
        else:
            events.append(_not_registered(job, model, now, is_complete=is_complete))
    return events


def _not_registered(job: JobRow, model: NewModel, now: float, *, is_complete: bool) -> NewEvent:
    effect = f"so there is no new version of the model {model.name}"
    if not is_complete:
        return NewEvent(
            at=now,
            kind="job.model_refused",
            message=f"the newest outputs, {model.output} among them, or their list were not stored, {effect}",
            attempt=job.attempt,
            data={"model": model.name, "output": model.output},
        )
    return NewEvent(
        at=now,
        kind="job.model_missing",
        message=f"the output {model.output} holds no file, {effect}",
        attempt=job.attempt,
        data={"model": model.name, "output": model.output},
    )


def _register(
    connection: sa.Connection, job: JobRow, kept: OutputsRow, model: NewModel, now: float
) -> NewEvent:
    version = _next_version(connection, model.name)
    row = {
        "name": model.name,
        "version": version,
        "job_id": job.id,
        "attempt": kept.attempt,
        "output": model.output,
        "created_at": now,
        "digest": model.digest,
        "code": job.facts.code,
        "command": job.spec.get("command") or [],
        "location": kept.location,
        "files": model.files,
        "project": job.project,
    }
    connection.execute(sa.insert(models).values(row))
    return NewEvent(
        at=now,
        kind="job.model_registered",
        message=f"the output {model.output} is version {version} of the model {model.name}",
        attempt=job.attempt,
        data={"model": model.name, "output": model.output, "version": version, "digest": model.digest},
    )


def _next_version(connection: sa.Connection, name: str) -> int:
    newest = connection.execute(
        sa.select(sa.func.max(models.c.version)).where(models.c.name == name)
    ).scalar()
    return int(newest or 0) + 1


def page_of_models(
    connection: sa.Connection, projects: Collection[str] | None, after: str, limit: int
) -> Iterator[ModelRow]:
    """The newest version in these projects (None: in all) of each model whose name sorts behind `after`, by name.

    They are read as they are asked for, while the transaction lasts: lists of files may be large.
    """
    behind = models.c.name > after
    if projects is None:
        newest = _newest(behind, limit).subquery()
    else:
        # The first names of each project by its index, whatever others have.
        parts = [
            _newest(sa.and_(models.c.project == one, behind), limit).subquery() for one in sorted(projects)
        ]
        if not parts:
            return
        found = sa.union_all(*(sa.select(part) for part in parts)).subquery()
        version = sa.func.max(found.c.version).label("version")
        newest = (
            sa.select(found.c.name, version)
            .group_by(found.c.name)
            .order_by(found.c.name)
            .limit(limit)
            .subquery()
        )
    same = sa.and_(models.c.name == newest.c.name, models.c.version == newest.c.version)
    yield from _read(connection, sa.select(models).join(newest, same).order_by(models.c.name))


def _newest(condition: sa.ColumnElement[bool], limit: int) -> sa.Select[tuple[str, int]]:
    version = sa.func.max(models.c.version).label("version")
    statement = sa.select(models.c.name, version).where(condition)
    return statement.group_by(models.c.name).order_by(models.c.name).limit(limit)


def page_of_versions(
    connection: sa.Connection, projects: Collection[str] | None, name: str, before: int, limit: int
) -> Iterator[ModelRow]:
    """Versions of a model below `before` in these projects (None: in all), newest first; read like the models."""
    statement = (
        sa.select(models)
        .where(models.c.name == name, models.c.version < before)
        .order_by(models.c.version.desc())
        .limit(limit)
    )
    if projects is not None:
        statement = statement.where(models.c.project.in_(sorted(projects)))
    yield from _read(connection, statement)


def _read(connection: sa.Connection, statement: sa.Select[Any]) -> Iterator[ModelRow]:
    with connection.execute(statement.execution_options(yield_per=_TOGETHER)) as found:
        for row in found:
            yield ModelRow(**row._mapping)

"""Jobs that their owners delete: what is left of them in the database, step by step.

A job's row stays, empty and hidden, while the bill or a saved answer needs it; then retention deletes it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.queue.rows import JobRow
from service.store.outputs import forget_outputs
from service.store.pruning import empty_job, is_needed, remove_job
from service.store.rows import to_row
from service.store.tables import (
    GOING_JOBS,
    attempts,
    checkpoints,
    idempotency,
    job_labels,
    jobs,
    models,
    profiles,
    shell_pieces,
    shells,
)

#: A job that may be deleted now: nothing of it runs, and nothing that it left is being listed.
_GOING = sa.select(jobs).where(
    GOING_JOBS,
    ~sa.exists().where(
        attempts.c.job_id == jobs.c.id,
        sa.or_(attempts.c.released_at.is_(None), attempts.c.listed_at.is_(None)),
    ),
)


def next_going(connection: sa.Connection) -> JobRow | None:
    """A job whose files are to be deleted now, or None."""
    row = connection.execute(_GOING.order_by(jobs.c.delete_requested_at, jobs.c.id).limit(1)).first()
    return None if row is None else to_row(JobRow, row)


def models_of(connection: sa.Connection, job_id: str) -> list[str]:
    """Versions of models that are its outputs, `digits:3`."""
    statement = sa.select(models.c.name, models.c.version).where(models.c.job_id == job_id)
    rows = connection.execute(statement.order_by(models.c.name, models.c.version))
    return [f"{row.name}:{row.version}" for row in rows]


def forget(connection: sa.Connection, job_id: str, now: float, most: int) -> bool:
    """Its files are gone: delete about `most` rows of it; False when there is more."""
    if not empty_job(connection, job_id, most)[1]:
        return False
    project = connection.execute(sa.select(jobs.c.project).where(jobs.c.id == job_id)).scalar_one()
    forget_outputs(connection, job_id, project)
    for table in (checkpoints, job_labels, profiles, shell_pieces, shells):
        connection.execute(sa.delete(table).where(table.c.job_id == job_id))
    is_answered = sa.select(sa.exists().where(idempotency.c.job_id == job_id))
    if is_needed(connection, job_id) or connection.execute(is_answered).scalar():
        # The specification may hold what its owner does not want to be kept.
        blank: dict[str, Any] = {"spec": {}, "labels": {}, "message": None, "deleted_at": now}
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(blank))
    else:
        remove_job(connection, job_id)
    return True

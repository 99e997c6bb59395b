"""Labels of jobs: in the job's row for those who read it, and one row each for those who look for jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from service.store.rows import insert_into
from service.store.tables import job_labels, jobs

#: A label's name, and its value; None: any value.
Label = tuple[str, str | None]


def insert(connection: sa.Connection, by_job: Mapping[str, Mapping[str, str]]) -> None:
    """Those of new jobs, whose rows have them, by job."""
    rows = [
        {"job_id": job_id, "name": name, "value": value}
        for job_id, labels in by_job.items()
        for name, value in labels.items()
    ]
    if rows:
        connection.execute(insert_into(job_labels), rows)


def replace_all(connection: sa.Connection, job_id: str, labels: Mapping[str, str]) -> None:
    """The labels of a job, which is locked, are now these."""
    connection.execute(sa.delete(job_labels).where(job_labels.c.job_id == job_id))
    insert(connection, {job_id: labels})
    connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(labels=dict(labels)))


def have_all(labels: Sequence[Label]) -> list[sa.ColumnElement[bool]]:
    """Conditions for jobs that have all of these labels."""
    conditions: list[sa.ColumnElement[bool]] = []
    for name, value in labels:
        having = sa.select(job_labels.c.job_id).where(job_labels.c.name == name)
        conditions.append(
            jobs.c.id.in_(having if value is None else having.where(job_labels.c.value == value))
        )
    return conditions

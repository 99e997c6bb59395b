"""What one principal finds: the one place where a query asks whose an object is.

An object of a project that it does not see is as if it were not there.  What it sees and may not do this to raises
Forbidden.  The service's own work asks with `EVERYTHING`.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from service.identities.principals import Access
from service.queue.alerts import AlertRow
from service.queue.arrays import ArrayRow
from service.queue.rows import JobRow
from service.queue.schedules import ScheduleRow
from service.store import alerts, arrays, jobs, schedules
from service.store.ids import is_id
from service.store.rows import in_parts
from service.store.tables import jobs as jobs_table


def find_job(
    connection: sa.Connection, access: Access, job_id: str, *, lock: bool = False, with_deleted: bool = False
) -> JobRow | None:
    """The job for this principal, locked if asked, or None; one that its owner deletes is not there.

    Raises Forbidden.
    """
    if not is_id("job", job_id):
        return None
    row = (jobs.lock_job if lock else jobs.get_job)(connection, job_id)
    if (
        row is None
        or not access.sees(row.project)
        or (row.delete_requested_at is not None and not with_deleted)
    ):
        return None
    access.check(row.project, row.submitted_by)
    return row


def find_array(connection: sa.Connection, access: Access, array_id: str) -> ArrayRow | None:
    """The array for this principal, or None.  Raises Forbidden."""
    row = arrays.get(connection, array_id) if is_id("array", array_id) else None
    if row is None or not access.sees(row.project):
        return None
    access.check(row.project, row.submitted_by)
    return row


def find_schedule(
    connection: sa.Connection, access: Access, schedule_id: str, *, lock: bool = False
) -> ScheduleRow | None:
    """The schedule for this principal, locked if asked, or None.  Raises Forbidden."""
    if not is_id("sched", schedule_id):
        return None
    row = (schedules.lock if lock else schedules.get)(connection, schedule_id)
    if row is None or not access.sees(row.project):
        return None
    access.check(row.project, row.submitted_by)
    return row


def find_alert(
    connection: sa.Connection, access: Access, alert_id: str, *, lock: bool = False
) -> AlertRow | None:
    """The alert for this principal, locked if asked, or None; one of the whole cluster is there for operators.

    Raises Forbidden.
    """
    row = alerts.get(connection, alert_id, lock=lock) if is_id("alert", alert_id) else None
    if row is None or not access.sees(row.project):
        return None
    access.check(row.project, row.owner)
    return row


def visible_jobs(connection: sa.Connection, access: Access, job_ids: Iterable[str]) -> set[str]:
    """Those of the jobs that are there for this principal; at least it need not be able to change them."""
    projects = access.projects
    found: set[str] = set()
    for ids in in_parts(sorted(set(job_ids))):
        statement = sa.select(jobs_table.c.id, jobs_table.c.project).where(
            jobs_table.c.id.in_(ids), jobs_table.c.delete_requested_at.is_(None)
        )
        rows = connection.execute(statement)
        found |= {row.id for row in rows if projects is None or row.project in projects}
    return found

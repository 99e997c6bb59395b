"""What a new alert watches of the jobs that are there already."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from remora.alert_kinds import AlertKind
from remora.roles import EVERYWHERE
from remora.states import JobState
from service.queue.alert_watches import Watch, watch_from
from service.queue.alerts import AlertRow, Fact
from service.store.tables import jobs

#: Jobs that a new alert begins to watch, the newest ones; later ones are watched from their events on.
MOST_JOBS = 1000
_KINDS = {JobState.QUEUED: AlertKind.JOB_WAITS, JobState.RUNNING: AlertKind.JOB_SLOW}
_COLUMNS = ("id", "name", "project", "submitted_by", "state", "attempt", "event_seq", "created_at")


def watches_of(connection: sa.Connection, alert: AlertRow) -> Sequence[Watch]:
    """Watches of its jobs that wait or run, as if these had begun to when the alert was created."""
    states = [state for state, kind in _KINDS.items() if kind.value in alert.kinds]
    if not states:
        return ()
    mine = sa.select(*(jobs.c[name] for name in _COLUMNS)).where(jobs.c.state.in_(states))
    if alert.project != EVERYWHERE:
        mine = mine.where(jobs.c.project == alert.project)
    rows = connection.execute(mine.order_by(jobs.c.id.desc()).limit(MOST_JOBS))
    found = (watch_from(alert, _fact_of(row, alert.created_at)) for row in rows)
    return [watch for watch in found if watch is not None]


def _fact_of(row: sa.Row[tuple[object, ...]], now: float) -> Fact:
    kind = _KINDS[row.state]
    return Fact(
        kind=kind,
        # A job that never had an attempt has waited since it was submitted.
        at=row.created_at if row.state is JobState.QUEUED and not row.attempt else now,
        project=row.project,
        submitted_by=row.submitted_by,
        about=row.id,
        name=row.name,
        event="",
        event_seq=row.event_seq,
        attempt=row.attempt,
        message="",
    )

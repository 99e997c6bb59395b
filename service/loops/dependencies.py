"""Lets jobs wait in the queue once the jobs that they name have ended, or ends them when that cannot come."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from remora.states import JobState
from service.loops.tick import Tick
from service.queue import lifecycle
from service.store import dependencies
from service.store import jobs as store

#: Jobs that are looked at in one tick; the others follow in the next ticks.
BATCH = 500


def settle_dependencies(tick: Tick, job_ids: Sequence[str]) -> None:
    """Decide about these jobs, which wait for others of which some have ended.  Raises Fenced."""
    if not job_ids:
        return

    def work(connection: sa.Connection) -> None:
        locked = store.lock_jobs(connection, job_ids)
        found = dependencies.of_jobs(connection, job_ids)
        changes = [
            store.Change(job, lifecycle.others_ended(job, found.get(job_id, ()), tick.now))
            for job_id, job in locked.items()
            if job.state in (JobState.QUEUED, JobState.PAUSED)
        ]
        seen = [one for some in found.values() for one in some if one.ended_as is not None]
        dependencies.forget(connection, seen)
        store.save_all(connection, changes)

    tick.apply(work)

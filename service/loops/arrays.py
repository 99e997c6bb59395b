"""Lets the next jobs of arrays wait in the queue when others of the same array have ended."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from remora.states import JobState
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.arrays import released
from service.store import arrays, dependencies
from service.store import jobs as store


def settle_arrays(tick: Tick, array_ids: Sequence[str]) -> None:
    """Decide about these arrays, of which jobs have ended.  Raises Fenced."""
    if not array_ids:
        return
    candidates = released(tick.load(lambda connection: arrays.queues(connection, array_ids)))

    def work(connection: sa.Connection) -> None:
        # Jobs are locked before their arrays, as where one ends.
        locked = store.lock_jobs(connection, candidates)
        arrays.note(connection, array_ids, has_news=False)
        wanted = set(released(arrays.queues(connection, array_ids)))
        others = dependencies.of_jobs(connection, [job_id for job_id in locked if job_id in wanted])
        changes = [
            store.Change(job, lifecycle.release_from_array(job, others.get(job_id, ()), tick.now))
            for job_id, job in locked.items()
            if job_id in wanted and job.state is JobState.QUEUED and job.is_held
        ]
        store.save_all(connection, changes)
        # What became free between the two looks is decided about in the next tick.
        if wanted - {change.before.id for change in changes}:
            arrays.note(connection, array_ids)

    tick.apply(work)

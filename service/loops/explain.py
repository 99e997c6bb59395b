"""Stores why a plan does not do more: for pools, for nodes, and for running jobs that could use more workers.

Nothing is written while the reasons stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from cluster.scheduling.actions import Wait
from remora.states import JobState
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.plan_reasons import is_news, renewed, shortened
from service.queue.rows import AttemptRow, JobRow
from service.store import jobs as job_store
from service.store import waits as store


def explain(tick: Tick, waits: Sequence[Wait], running: Sequence[tuple[JobRow, AttemptRow]]) -> None:
    """Store the reasons of a plan, except those of waiting jobs, which `dispatch` stores.  Raises Fenced."""
    before = tick.load(partial(store.all_waits, cluster=tick.cluster))
    after = [replace(row, cluster=tick.cluster) for row in renewed(before, waits, tick.now)]
    why = {wait.job_id: shortened(wait.reason) for wait in waits if wait.job_id is not None}
    news = [
        job.id
        for job, _ in running
        if job.state is JobState.RUNNING and is_news(job.why_short, why.get(job.id))
    ]
    if set(before) == set(after) and not news:
        return

    def work(connection: sa.Connection) -> None:
        store.replace_waits(connection, before, after)
        locked = job_store.lock_jobs(connection, news)
        changes = [
            job_store.Change(job, lifecycle.report_short(job, why.get(job.id)))
            for job in locked.values()
            if job.state is JobState.RUNNING
        ]
        job_store.save_all(connection, changes)

    tick.apply(work)

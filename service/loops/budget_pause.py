"""Pauses jobs without an attempt while the cluster's budget is spent, and resumes them when it is available again.

Running jobs are stopped by `track` once their nodes have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import sqlalchemy as sa

from cluster.policies.policies import BudgetStep
from cluster.scheduling.money import Money
from remora.states import JobState
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.plan_reasons import is_news
from service.queue.rows import JobRow
from service.store import jobs as store

#: Jobs that are changed in one tick; the others follow in the next ticks.
BATCH = 200


def apply_budget_pause(tick: Tick, money: Money) -> None:
    """Pause or resume jobs without an attempt, as the budget says.  Raises Fenced."""
    paused = tick.load(partial(store.paused_jobs, cluster=tick.cluster))
    if not money.reached(BudgetStep.PAUSE):
        _change(tick, list(paused), JobState.PAUSED, lambda job: lifecycle.resume(job, tick.now))
        return
    says = pause_message(money)
    news = [job_id for job_id, message in paused.items() if is_news(message, says)]
    _change(tick, news, JobState.PAUSED, lambda job: lifecycle.report_paused(job, says))
    waiting = tick.load(partial(store.queued_again, cluster=tick.cluster, limit=BATCH))
    _change(tick, waiting, JobState.QUEUED, lambda job: lifecycle.pause(job, says, tick.now))


def _change(
    tick: Tick, job_ids: Sequence[str], state: JobState, decide: Callable[[JobRow], lifecycle.Decision]
) -> None:
    """Write the decisions about the first `BATCH` of the jobs, if they are still in this state."""
    if not job_ids:
        return

    def work(connection: sa.Connection) -> None:
        locked = store.lock_jobs(connection, job_ids[:BATCH])
        changes = [
            store.Change(job, decide(job))
            for job in locked.values()
            # Its owner may have paused it meanwhile.
            if job.state is state and job.pause_requested_at is None
        ]
        store.save_all(connection, changes)

    tick.apply(work)


def pause_message(money: Money) -> str:
    """The message of a paused job: the budget, what is spent of it, and when the pause ends."""
    return (
        f"the cluster's budget has reached its last step: {money.words}; it waits {money.ends}, and then goes on"
        " by itself from its newest checkpoint"
    )

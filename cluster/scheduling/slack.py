"""The slack of a job with a deadline, and whether the job may rely on spot (pure).

All decisions about deadlines use it: what is bought, which job is next, where a job starts, and what moves.  All times
are in seconds, and only `START_UP_S` is a guess, used until a start was measured.

A job relies on spot as long as it could lose it at the worst moment and still be in time on demand: the work since its
checkpoint is done again, and an on-demand machine is made and starts the job, for which twice the usual time is
counted.  A job that waits has to start before it can lose anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from cluster.scheduling.view import START_UP_S, JobDemand

#: A start on an on-demand machine counts this many times: the first may be refused or fail, and plans take time.
STARTS = 2.0
#: Seconds for which an urgent job does not take free spot: within them the plan orders on-demand machines.
ORDERED_WITHIN_S = 120.0


def measured_start_up_s(times: Iterable[tuple[float, float | None]]) -> float:
    """Seconds from the order of a machine to its readiness: the median of what nodes took.

    `times` are when each was ordered and when it was ready, None for never.
    """
    took = [ready_at - ordered_at for ordered_at, ready_at in times if ready_at is not None]
    return max(0.0, statistics.median(took)) if took else START_UP_S


def slack_s(job: JobDemand, now: float) -> float | None:
    """Seconds to spare if it worked from now on with all its workers; None without a deadline, or if not known."""
    if job.deadline_at is None or job.work_left_s is None:
        return None
    return job.deadline_at - now - job.work_left_s


def loss_s(job: JobDemand, now: float, start_up_s: float) -> float:
    """Seconds that the loss of its spot nodes costs it now at most."""
    return max(job.repeats_s, job.unsaved_s(now)) + STARTS * (start_up_s + job.resume_s)


def may_rely_on_spot(job: JobDemand, now: float, start_up_s: float, ready_in_s: float) -> bool:
    """It may lose spot nodes and still be in time; `ready_in_s` is when those that it waits for are ready."""
    slack = slack_s(job, now)
    if slack is None:
        return True
    starts_s = 0.0 if job.is_running else ready_in_s + job.resume_s
    return slack >= starts_s + loss_s(job, now, start_up_s)


def is_urgent(job: JobDemand, now: float, start_up_s: float) -> bool:
    """It may not rely on spot that is still to be bought, and can still meet its deadline."""
    slack = slack_s(job, now)
    return slack is not None and slack >= 0 and not may_rely_on_spot(job, now, start_up_s, start_up_s)


def urgent_among(jobs: Iterable[JobDemand], now: float, start_up_s: float) -> frozenset[str]:
    """Those that wait and come before others of their priority, by id."""
    return frozenset(
        job.id
        for job in jobs
        if not job.is_running and job.deadline_at is not None and is_urgent(job, now, start_up_s)
    )


def urgent_at(job: JobDemand, start_up_s: float) -> float | None:
    """When a job that waits becomes urgent if it goes on waiting; None: never."""
    slack = slack_s(job, 0.0)
    return None if slack is None else slack - start_up_s - job.resume_s - loss_s(job, 0.0, start_up_s)


def changes_at(job: JobDemand, now: float, start_up_s: float) -> tuple[float, ...]:
    """When these answers change if the job does nothing from now on; later, or never, if it works."""
    slack = slack_s(job, 0.0)
    if slack is None:
        return ()
    last = slack - loss_s(job, now, start_up_s)
    if job.is_running:
        return (last,)
    first = last - start_up_s - job.resume_s
    return first, last - job.resume_s, slack, max(first, job.waits_since) + ORDERED_WITHIN_S


def keeps_off_spot(job: JobDemand, now: float, start_up_s: float, *, is_coming: bool) -> bool:
    """A job that waits does not start on spot nodes that are free.

    On-demand machines for it are starting (`is_coming`), or are about to be ordered.  Where none are available, spot is
    better than nothing.
    """
    if may_rely_on_spot(job, now, start_up_s, 0.0):
        return False
    since = max(urgent_at(job, start_up_s) or now, job.waits_since)
    return is_coming or now < since + ORDERED_WITHIN_S


def should_move(job: JobDemand, now: float, start_up_s: float) -> bool:
    """A job that runs on spot may not rely on it, and is still in time if it moves to on-demand machines.

    To move costs it a start, and at worst the work since its checkpoint.  Not worth it when it ends before.
    """
    slack = slack_s(job, now)
    if slack is None or job.work_left_s is None or may_rely_on_spot(job, now, start_up_s, 0.0):
        return False
    moves_s = max(job.repeats_s, job.unsaved_s(now)) + job.resume_s
    return slack >= moves_s and job.work_left_s > start_up_s + moves_s


def may_return(job: JobDemand, now: float, start_up_s: float) -> bool:
    """It may rely on spot even after an unnecessary move: it can afford two losses."""
    slack = slack_s(job, now)
    return slack is None or slack >= 2.0 * loss_s(job, now, start_up_s)

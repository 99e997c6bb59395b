"""The sweep loop: make sure that ended attempts run no more, and end waits that are over or lasted too long.

What it does on its own cluster, and what is done once for the jobs of all clusters.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa

from remora.process_log import about
from remora.states import JobState
from service.interfaces import Launcher
from service.loops.arrays import settle_arrays
from service.loops.dependencies import BATCH, settle_dependencies
from service.loops.listing import MOST, Listing, settle
from service.loops.live_attempts import LiveAttempts
from service.loops.schedules import BATCH as SCHEDULES
from service.loops.schedules import run_schedules
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.rows import AttemptRow, JobRow
from service.store import arrays, checkpoints, dependencies, idempotency_keys, jobs, schedules

log = logging.getLogger(__name__)

#: Seconds that the answer to a request with an `Idempotency-Key` is kept.
ANSWER_LIFETIME_S = 7 * 24 * 3600.0


def sweep(tick: Tick, live: LiveAttempts, launcher: Launcher, listing: Listing) -> None:
    """Do the clean-up of a cluster that no other loop waits for.  Raises Fenced."""
    # 1. Load.
    ended, overdue = tick.load(
        lambda connection: (
            checkpoints.ended_attempts(connection, tick.cluster, MOST),
            jobs.overdue_jobs(connection, tick.cluster, tick.now),
        )
    )
    # 2. Ended attempts: first nothing of them runs, then their jobs may start again.
    over = [attempt.id for attempt in ended.unreleased if _is_over(tick, launcher, attempt)]
    live.change(dict.fromkeys(over, _releasing(tick.now)))
    _end_strays(tick, launcher)
    # 3. Attempts of which nothing runs: checkpoints that they committed or deleted without a record.
    settle(tick, listing, ended.unlisted)
    # 4. Waits that lasted too long.
    for job in overdue:
        _give_up(tick, job)


def settle_waits(tick: Tick) -> None:
    """End the waits of jobs of all clusters, which may wait for each other.  Raises Fenced."""
    # 1. Load.
    oldest = tick.now - ANSWER_LIFETIME_S
    waited, arrays_to_settle, due, has_old_answers = tick.load(
        lambda connection: (
            dependencies.with_news(connection, BATCH),
            arrays.with_news(connection),
            schedules.due(connection, tick.now, SCHEDULES),
            idempotency_keys.has_answers(connection, oldest),
        )
    )
    # 2. Jobs that waited for others, which have ended.
    settle_dependencies(tick, waited)
    # 3. Jobs that their arrays hold back while others run.
    settle_arrays(tick, arrays_to_settle)
    # 4. Jobs whose time has come.
    run_schedules(tick, due)
    # 5. Old answers.
    if has_old_answers:
        tick.apply(lambda connection: idempotency_keys.forget_answers(connection, oldest))


def _end_strays(tick: Tick, launcher: Launcher) -> None:
    """End drivers of attempts that the database does not know: it was put back to a time before they began.

    The row of an attempt is there before its driver is started.
    """
    found = launcher.attempts()
    if not found:
        return
    for attempt_id in tick.load(lambda connection: jobs.unknown_attempts(connection, found)):
        log.warning(
            "the driver of the unknown attempt %s is ended", attempt_id, extra=about(attempt=attempt_id)
        )
        try:
            launcher.kill(attempt_id)
        except Exception as error:
            log.warning(
                "it is not sure that attempt %s runs no more, it is tried again: %s",
                attempt_id,
                error,
                extra=about(attempt=attempt_id),
            )


def _is_over(tick: Tick, launcher: Launcher, attempt: AttemptRow) -> bool:
    """Nothing of the ended attempt runs any more."""
    storage = tick.settings.storage
    try:
        # In this order: a driver that began before the attempt was closed is there to be killed.
        if attempt.launched_at is None and not launcher.close(
            attempt.id, job_id=attempt.job_id, storage_url=storage
        ):
            return False
        return launcher.kill(attempt.id)
    except Exception as error:
        log.warning(
            "it is not sure that attempt %s runs no more, it is tried again: %s",
            attempt.id,
            error,
            extra=about(job=attempt.job_id, attempt=attempt.id),
        )
        return False


def _releasing(now: float) -> jobs.Decide:
    def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
        if attempt.released_at is not None:
            return None
        return lifecycle.Decision(job, lifecycle.released(attempt, now))

    return decide


def _give_up(tick: Tick, job: JobRow) -> None:
    def work(connection: sa.Connection) -> None:
        current = jobs.lock_job(connection, job.id)
        if current is not None and current.state is JobState.QUEUED and current.attempt == 0:
            jobs.save(connection, current, lifecycle.give_up_waiting(current, tick.now))

    tick.apply(work)

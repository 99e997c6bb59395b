"""Tidy up: make sure that ended attempts run no more, and end waits that lasted too long."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from remora.states import JobState
from service.loops.ports import Launcher
from service.loops.turn import Turn
from service.queue import lifecycle
from service.queue.rows import AttemptRow, JobRow
from service.store import answers, jobs

log = logging.getLogger(__name__)

#: Seconds that the answer to a request with an `Idempotency-Key` is kept.
ANSWER_LIFETIME_S = 7 * 24 * 3600.0


def sweep(turn: Turn, launcher: Launcher) -> None:
    """Do what nothing else waits for.  Raises Fenced."""
    # 1. Load.
    ended = turn.load(jobs.unreleased_attempts)
    overdue = turn.load(lambda connection: jobs.overdue_jobs(connection, turn.now))
    # 2. Ended attempts: first nothing of them runs, then their job may start again.
    for attempt in ended:
        _release(turn, launcher, attempt)
    # 3. Waits that lasted too long.
    for job in overdue:
        _give_up(turn, job)
    # 4. Old answers.
    oldest = turn.now - ANSWER_LIFETIME_S
    if turn.load(lambda connection: answers.has_answers(connection, oldest)):
        turn.apply(lambda connection: answers.forget_answers(connection, oldest))


def _release(turn: Turn, launcher: Launcher, attempt: AttemptRow) -> None:
    storage = turn.settings.storage
    try:
        # In this order: a driver that began before the attempt was closed is there to be killed.
        if attempt.launched_at is None and not launcher.close(
            attempt.id, job_id=attempt.job_id, storage_url=storage
        ):
            return
        if not launcher.kill(attempt.id):
            return
    except Exception as error:
        log.warning("it is not sure that attempt %s runs no more, it is tried again: %s", attempt.id, error)
        return

    def work(connection: sa.Connection) -> None:
        current = jobs.get_attempt(connection, attempt.id)
        if current is not None and current.released_at is None:
            jobs.save_attempt(connection, lifecycle.released(current, turn.now))

    turn.apply(work)


def _give_up(turn: Turn, job: JobRow) -> None:
    def work(connection: sa.Connection) -> None:
        current = jobs.lock_job(connection, job.id)
        if current is not None and current.state is JobState.QUEUED and current.attempt == 0:
            jobs.save(connection, current, lifecycle.give_up_waiting(current, turn.now))

    turn.apply(work)

"""Ends that drivers stored before they reported them, in place of the loss of these drivers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from remora.states import EndReason
from service.interfaces import Launcher
from service.loops.attempt_traces import about_attempt
from service.loops.live_attempts import LiveAttempts
from service.loops.tick import Tick
from service.queue import driver_records
from service.queue.rows import AttemptRow, JobRow
from trainers.plan import DriverGone, Record

log = logging.getLogger(__name__)

_LOST = (EndReason.DRIVER_LOST, EndReason.HEAD_LOST)


def is_lost(answer: object) -> bool:
    """Whether the answer about a driver leaves open how its attempt ended."""
    return isinstance(answer, DriverGone) and answer.reason in _LOST


def with_stored_ends(
    tick: Tick,
    live: LiveAttempts,
    launcher: Launcher,
    answers: Mapping[str, Sequence[Record] | DriverGone],
) -> dict[str, Sequence[Record] | DriverGone]:
    """The answers, with what lost drivers have stored; without those of which that is not known yet."""
    found = dict(answers)
    for job, attempt in live.pairs():
        if not is_lost(answers.get(attempt.id)):
            continue
        stored = stored_end(tick, launcher, job, attempt)
        if stored is None:
            del found[attempt.id]
        elif stored:
            log.info(
                "attempt %s had ended before its driver was lost",
                attempt.id,
                extra=about_attempt(job, attempt, tick.settings),
            )
            found[attempt.id] = stored
    return found


def stored_end(tick: Tick, launcher: Launcher, job: JobRow, attempt: AttemptRow) -> Sequence[Record] | None:
    """What the attempt's driver stored of its end: empty where it stored none, None where that is not known yet."""
    try:
        stored = launcher.stored_end(
            attempt.id, job_id=job.id, storage_url=tick.settings.storage, after=attempt.last_record_seq
        )
    except Exception as error:
        log.warning(
            "whether attempt %s had ended before its driver was lost is asked again: %s",
            attempt.id,
            error,
            extra=about_attempt(job, attempt, tick.settings),
        )
        return None
    if stored and not isinstance(driver_records.read(stored[-1]), driver_records.AttemptEndRecord):
        log.warning(
            "the stored end of attempt %s is not used: this release does not know it",
            attempt.id,
            extra=about_attempt(job, attempt, tick.settings),
        )
        return ()
    return stored

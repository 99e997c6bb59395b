"""Decides what follows an ended attempt: another attempt after a pause, or the end of the job (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remora.states import EndReason, JobState
from service.queue.rows import AttemptRow, JobRow

#: Attempts that may end for causes that are not the user's; a job that loses more is given up.
LOSS_LIMIT = 100
#: Attempts in a row that may be lost without their nodes and without progress; the last of them ends the job.
FRUITLESS_LIMIT = 3
#: What a job ends with then.
NO_PROGRESS = "no_progress"
#: What was lost although its nodes lived, so that the job's own command may be what ends it each time.
_WITHOUT_NODES = (EndReason.SUPERVISOR_LOST, EndReason.DRIVER_LOST)
#: Seconds before the first attempt after a loss, and at most before any attempt.
LOSS_BACKOFF_S = 0.5
LOSS_BACKOFF_CAP_S = 60.0
USER_BACKOFF_CAP_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Again:
    """Another attempt follows, not before the given time."""

    not_before: float
    message: str
    user_failures: int
    losses: int
    loss_streak: int
    fruitless: int


@dataclass(frozen=True, kw_only=True)
class Finish:
    """No attempt follows; the job ends in this state."""

    state: JobState
    #: Stable word for programs.
    reason: str
    message: str


def backoff(first_s: float, count: int, cap_s: float) -> float:
    """Seconds to wait before the `count`-th repetition (1, 2, ...): doubling from `first_s`, at most `cap_s`."""
    return min(cap_s, first_s * 2.0 ** min(count - 1, 60))


def after(
    job: JobRow, attempt: AttemptRow, end_reason: EndReason, message: str, now: float, *, by_driver: bool
) -> Again | Finish:
    """Decide what follows an attempt of `job` that ended for `end_reason`; `message` says it for people.

    `by_driver` says that its driver reported the end; else the driver was found dead, or had never begun.
    """
    if end_reason is EndReason.COMPLETED:
        return Finish(state=JobState.SUCCEEDED, reason=end_reason.value, message=message)
    if end_reason is EndReason.CANCELLED or job.cancel_requested_at is not None:
        return Finish(
            state=JobState.CANCELLED, reason=EndReason.CANCELLED.value, message="its owner cancelled it"
        )
    if job.stopped_early is not None:
        reason = EndReason.STOPPED_EARLY.value
        return Finish(state=JobState.CANCELLED, reason=reason, message=job.stopped_early)
    # A command that cannot be started now cannot be started later either.
    if end_reason.is_final or end_reason is EndReason.START_FAILED:
        return Finish(state=JobState.FAILED, reason=end_reason.value, message=message)
    if end_reason is EndReason.PAUSED:
        # Where its owner has resumed it meanwhile, another attempt follows at once.
        return _again(job, now, "it was paused, and goes on from its newest checkpoint")
    rules = job.facts.retry_rules
    if end_reason is EndReason.EXIT_CODE and not rules.allow(attempt.exit_code, attempt.log_match):
        said = f"{message.rstrip('.')}; it is not retried: {rules.in_words}"
        return Finish(state=JobState.FAILED, reason=end_reason.value, message=said)
    if end_reason.is_users:
        return _after_failure(job, end_reason, message, now)
    # An attempt whose driver was lost before it had workers has run nothing of the job's.
    has_begun = by_driver or attempt.started_at is not None
    is_fruitless = end_reason in _WITHOUT_NODES and has_begun
    return _after_loss(job, end_reason, message, now, is_fruitless=is_fruitless)


def _again(job: JobRow, not_before: float, message: str) -> Again:
    """Another attempt, with what counts for the job so far."""
    return Again(
        not_before=not_before,
        message=message,
        user_failures=job.user_failures,
        losses=job.losses,
        loss_streak=job.loss_streak,
        fruitless=job.fruitless,
    )


def _after_failure(job: JobRow, end_reason: EndReason, message: str, now: float) -> Again | Finish:
    failures = job.user_failures + 1
    cause = message.rstrip(".")
    if failures > job.retry_limit:
        said = f"{cause}; no retry of {job.retry_limit} is left" if job.retry_limit else message
        return Finish(state=JobState.FAILED, reason=end_reason.value, message=said)
    delay = backoff(job.backoff_s, failures, USER_BACKOFF_CAP_S)
    said = f"{cause}; retry {failures} of {job.retry_limit} follows after {delay:g} s"
    return replace(_again(job, now + delay, said), user_failures=failures)


def delay_after_loss(losses: int, streak: int) -> float | None:
    """Seconds from a job's last loss to its next attempt, when it was lost so often in all and in a row.

    None: it is given up.
    """
    return None if losses > LOSS_LIMIT else backoff(LOSS_BACKOFF_S, streak, LOSS_BACKOFF_CAP_S)


def _after_loss(
    job: JobRow, end_reason: EndReason, message: str, now: float, *, is_fruitless: bool
) -> Again | Finish:
    losses, streak = job.losses + 1, job.loss_streak + 1
    # Progress sets it to 0, so that it counts what has been lost since.
    fruitless = job.fruitless + is_fruitless
    cause = message.rstrip(".")
    if fruitless >= FRUITLESS_LIMIT:
        said = (
            f"{cause}; {fruitless} attempts in a row were lost on nodes that lived, without a new step, a new"
            " checkpoint or new outputs between them"
        )
        return Finish(state=JobState.FAILED, reason=NO_PROGRESS, message=said)
    delay = delay_after_loss(losses, streak)
    if delay is None:
        said = f"{cause}; it was lost {LOSS_LIMIT} times before and is given up"
        return Finish(state=JobState.FAILED, reason=end_reason.value, message=said)
    said = f"{cause}; another attempt follows after {delay:g} s and does not count as a retry"
    return replace(_again(job, now + delay, said), losses=losses, loss_streak=streak, fruitless=fruitless)

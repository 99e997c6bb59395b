"""Jobs that wait, and their ends without an attempt (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from cluster.scheduling.actions import WaitsFor
from remora.states import EndReason, JobState
from service.queue.dependencies import Dependency, waits_for, why_impossible
from service.queue.lifecycle.decisions import Decision, finish, with_events
from service.queue.lifecycle.edges import TransitionError
from service.queue.rows import JobRow, NewEvent

#: What a job ends with when a job that it waits for did not end as wanted.
DEPENDENCY_UNMET = "dependency_unmet"


def submit(
    job: JobRow, dependencies: Sequence[Dependency] = (), origin: str = "", held: str | None = None
) -> Decision:
    """A new job begins to wait: in the queue, or first for the ends of other jobs.

    `origin` says where it comes from, and `held` why its array holds it back, for people.
    """
    said = f"job {job.name} was accepted{f', {origin}' if origin else ''}"
    message = waits_for(dependencies)
    if message is None and held is None:
        message = "accepted; waits to be looked at"
        waiting = replace(job, reason=WaitsFor.TURN.value, message=message, waits_from=job.created_at)
    else:
        reason = WaitsFor.ARRAY if message is None else WaitsFor.JOBS
        message = message or held
        said += f"; it {message}"
        waiting = replace(job, reason=reason.value, message=message, not_before=inf, waits_from=inf)
        waiting = replace(waiting, is_held=held is not None)
    return Decision(waiting, None, (NewEvent(at=job.created_at, kind="job.queued", message=said),))


def others_ended(job: JobRow, dependencies: Sequence[Dependency], now: float) -> Decision:
    """Some of the jobs that a job waits for have ended: it waits on, or in the queue, or can never start."""
    if (why := why_impossible(dependencies)) is not None:
        return finish(job, JobState.FAILED, DEPENDENCY_UNMET, why, now)
    message = waits_for(dependencies)
    if job.state is JobState.PAUSED:
        is_over = message is None and not job.is_held
        return Decision(replace(job, not_before=now) if is_over else job, None)
    if message is not None:
        return wait(job, WaitsFor.JOBS.value, message, now)
    if job.is_held:
        return wait(job, WaitsFor.ARRAY.value, "waits for other jobs of its array", now)
    return _wait_in_queue(job, "the jobs that it waited for have ended; waits to be looked at", now)


def wait(job: JobRow, reason: str, message: str, now: float) -> Decision:
    """A queued job goes on waiting for this reason; a new reason makes an event."""
    if job.state is not JobState.QUEUED:
        raise TransitionError(f"a job that is {job.state.value} does not wait")
    events: tuple[NewEvent, ...] = ()
    if reason != job.reason:
        events = (NewEvent(at=now, kind="job.waiting", message=message, data={"reason": reason}),)
    return Decision(replace(job, reason=reason, message=message), None, events)


def release_from_array(job: JobRow, dependencies: Sequence[Dependency], now: float) -> Decision:
    """There is capacity for a job that its array has held back: it waits in the queue, or first for other jobs."""
    job = replace(job, is_held=False)
    if (message := waits_for(dependencies)) is not None:
        return wait(job, WaitsFor.JOBS.value, message, now)
    return _wait_in_queue(job, "its array has capacity for it; waits to be looked at", now)


def _wait_in_queue(job: JobRow, message: str, now: float) -> Decision:
    decision = wait(job, WaitsFor.TURN.value, message, now)
    return replace(decision, job=replace(decision.job, not_before=now, waits_from=now))


def report_short(job: JobRow, why: str | None) -> Decision:
    """A running job's owner can see why it has fewer workers than it could use, or that nothing is in its way."""
    return Decision(replace(job, why_short=why), None)


def request_cancel(job: JobRow, now: float) -> Decision:
    """The owner wants the job to end: at once while it waits, else as soon as its attempt has ended."""
    if job.state.is_terminal or job.cancel_requested_at is not None:
        return Decision(job, None)
    job = replace(job, cancel_requested_at=now)
    asked = NewEvent(at=now, kind="job.cancel_requested", message="its owner asked to cancel the job")
    if job.state not in (JobState.QUEUED, JobState.PAUSED):
        return Decision(replace(job, message="it is being cancelled"), None, (asked,))
    when = "before it started" if job.attempt == 0 else "while it waited for another attempt"
    when = "while it was paused" if job.state is JobState.PAUSED else when
    ended = finish(job, JobState.CANCELLED, EndReason.CANCELLED.value, f"cancelled {when}", now)
    return with_events(ended, (asked,))


def give_up_waiting(job: JobRow, now: float) -> Decision:
    """The job waited longer than its owner allowed."""
    message = f"it waited longer than limits.wait_time ({job.wait_time_s:g} s)"
    return finish(job, JobState.FAILED, "wait_time_exceeded", message, now)


def end_spent(job: JobRow, now: float) -> Decision:
    """The job waits again and has nothing left to spend on another attempt."""
    reason = EndReason.BUDGET_SPENT
    return finish(job, JobState.FAILED, reason.value, why_stopped(job, reason), now)


def why_stopped(job: JobRow, reason: EndReason) -> str:
    """The message of an attempt that was asked to stop."""
    if reason is EndReason.RUN_TIME_EXCEEDED:
        return f"it trained longer than limits.run_time ({job.run_time_s:g} s)"
    if reason is EndReason.BUDGET_SPENT:
        return f"it has spent limits.budget ({job.facts.budget or 0.0:.2f} USD)"
    if reason is EndReason.EVICTED:
        return "its nodes are given back, as the cluster's budget has reached its last step"
    if reason is EndReason.PAUSED:
        return "its owner paused it"
    if reason is EndReason.STOPPED_EARLY and job.stopped_early is not None:
        return job.stopped_early
    if reason is EndReason.NODE_LOST:
        return "all nodes of its fabric domain were lost"
    return "its owner cancelled it" if reason is EndReason.CANCELLED else f"it was stopped: {reason.value}"

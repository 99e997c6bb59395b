"""Attempts from their creation to their end, and what follows for their jobs (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster.policies.policies import BudgetStep
from remora.states import AttemptState, EndReason, JobState
from service.queue import phases, retry
from service.queue.driver_records import ProgressRecord
from service.queue.lifecycle.decisions import (
    Decision,
    attempt_to,
    close_loss,
    event_of,
    finish,
    is_won_back,
    job_to,
    with_events,
)
from service.queue.lifecycle.edges import TransitionError
from service.queue.lifecycle.jobs import why_stopped
from service.queue.lifecycle.pauses import PAUSED_FOR_BUDGET, pause, pause_for_owner
from service.queue.rows import AttemptRow, JobRow, NewEvent, PhaseRow, WorkPhase

#: Why a job with an attempt does not train yet, as a stable word: its environment is being built.
PREPARING = "preparing"


def start_attempt(
    job: JobRow, attempt_id: str, now: float, fabric: str | None = None, *, on_demand: bool = False
) -> Decision:
    """The job is admitted and gets its next attempt, bound to a fabric domain where it asked for one.

    `on_demand` binds it to nodes that the cloud does not take back, as its deadline is near.
    """
    number = job.attempt + 1
    admitted = replace(
        job_to(job, JobState.ADMITTED),
        attempt=number,
        reason=None,
        message=f"attempt {number} is starting",
        why_short=None,
        world_size=0,
    )
    attempt = AttemptRow(
        id=attempt_id, job_id=job.id, attempt=number, created_at=now, fabric=fabric, cluster=job.cluster
    )
    attempt, begun = phases.mark(replace(attempt, on_demand=on_demand), WorkPhase.STARTING, now)
    where = "" if fabric is None else f" in the fabric domain {fabric}"
    where += ", all of them on demand, as its deadline is near" if on_demand else ""
    events = (
        event_of(attempt, now, "job.admitted", f"nodes for its smallest worker group are free{where}"),
        event_of(attempt, now, "attempt.created", f"attempt {number} was created", fabric=fabric),
    )
    return Decision(admitted, attempt, events, begun)


def observe(job: JobRow, attempt: AttemptRow, progress: ProgressRecord, at: float) -> Decision:
    """The driver reported the state of the attempt; what it does not mention stays as it was."""
    attempt, events = _observe_state(attempt, progress, at)
    if attempt.state is AttemptState.RUNNING and job.state is JobState.ADMITTED:
        job = replace(job_to(job, JobState.RUNNING), started_at=job.started_at or at)
        events += (event_of(attempt, at, "job.running", "training started"),)
    if attempt.state is AttemptState.RUNNING:
        job = replace(job, reason=None, message=None)
    elif attempt.state is AttemptState.STARTING and progress.preparing is not None:
        job = replace(job, reason=PREPARING, message=progress.preparing)
    elif (
        attempt.state is AttemptState.STARTING
        and job.state is JobState.RUNNING
        and (progress.state is not None or job.reason != PREPARING)
    ):
        job = replace(job, reason="regrouping", message="a new worker group is being gathered")
    if progress.environment is not None:
        attempt = replace(attempt, environment=progress.environment)
    if progress.resumed_from_step is not None:
        attempt = replace(attempt, resumed_from_step=progress.resumed_from_step)
    if progress.world_size is not None:
        short_since = None if progress.world_size >= job.facts.sizes.max else attempt.short_since or at
        attempt = replace(attempt, world_size=progress.world_size, short_since=short_since)
        job = replace(job, world_size=progress.world_size)
    if progress.workers is not None:
        attempt = replace(attempt, workers=progress.workers)
    if progress.total_steps is not None:
        job = replace(job, total_steps=progress.total_steps)
    job, attempt = _observe_totals(job, attempt, progress)
    phase = _observe_phase(job, attempt, progress, at)
    decision = phase
    if progress.step is not None and phase.attempt is not None:
        decision = observe_step(job, phase.attempt, progress.step, at, is_done_now=False)
        decision = replace(
            decision, events=phase.events + decision.events, phases=phase.phases + decision.phases
        )
    return with_events(decision, events)


def observe_pause(job: JobRow, attempt: AttemptRow, pause_s: float, at: float) -> Decision:
    """Its workers were changed in place, and did not train for some seconds until then."""
    attempt, marked = phases.mark_past(attempt, WorkPhase.STARTING, max(0.0, pause_s), at)
    return Decision(job, attempt, (), marked)


def _observe_phase(job: JobRow, attempt: AttemptRow, progress: ProgressRecord, at: float) -> Decision:
    """What the attempt does, as far as its driver says so."""
    marked: tuple[PhaseRow, ...] = ()
    if progress.stalled_s is not None:
        attempt, marked = phases.mark_stall(attempt, progress.stalled_s, at)
    if progress.phase is not None and attempt.state is AttemptState.RUNNING:
        decision = _train(job, attempt, WorkPhase(progress.phase), at)
        return replace(decision, phases=marked + decision.phases)
    phase = None
    if attempt.state is AttemptState.DRAINING:
        phase = WorkPhase.DRAINING
    elif progress.preparing is not None and attempt.state is AttemptState.STARTING:
        phase = WorkPhase.PREPARING
    elif progress.state is AttemptState.STARTING:
        phase = WorkPhase.STARTING
    elif progress.state is AttemptState.RUNNING:
        phase = WorkPhase.RUNNING
    if phase is None:
        return Decision(job, attempt, (), marked)
    attempt, more = phases.mark(attempt, phase, at)
    return Decision(job, attempt, (), marked + more)


def _train(job: JobRow, attempt: AttemptRow, phase: WorkPhase, at: float) -> Decision:
    """Its driver says that steps are done from then on, new ones or those that were done before."""
    attempt, marked = phases.mark(attempt, phase, at)
    decision = _first_step(job, attempt, at, is_again=phase is WorkPhase.RECOMPUTING)
    return replace(decision, phases=marked)


def _first_step(job: JobRow, attempt: AttemptRow, at: float, *, is_again: bool) -> Decision:
    """A step of the attempt is done, which is recorded of the first one."""
    if attempt.trained_at is not None:
        return Decision(job, attempt)
    message = (
        "its first step is done, which an earlier one had done" if is_again else "its first step is done"
    )
    began = event_of(attempt, at, "training.began", message, repeats=is_again)
    return Decision(job, replace(attempt, trained_at=at), (began,))


def _observe_state(
    attempt: AttemptRow, progress: ProgressRecord, at: float
) -> tuple[AttemptRow, tuple[NewEvent, ...]]:
    # A driver that was asked to stop may still report the group it had: draining ends only in `ended`.
    if progress.state is None or progress.state is attempt.state or attempt.state is AttemptState.DRAINING:
        return attempt, ()
    before = attempt.state
    attempt = attempt_to(attempt, progress.state)
    size = progress.world_size or 0
    if progress.state is AttemptState.RUNNING:
        attempt = replace(attempt, started_at=attempt.started_at or at)
        return attempt, (
            event_of(attempt, at, "attempt.started", f"a worker group of {size} trains", world_size=size),
        )
    if progress.state is AttemptState.STARTING and before is AttemptState.RUNNING:
        return attempt, (event_of(attempt, at, "attempt.regrouping", "a new worker group is being gathered"),)
    return attempt, (event_of(attempt, at, "attempt.draining", "the driver is ending its workers"),)


def _observe_totals(job: JobRow, attempt: AttemptRow, progress: ProgressRecord) -> tuple[JobRow, AttemptRow]:
    # The driver's counters are totals of the attempt; the job adds what is new in them.
    if progress.repeated_steps is not None and progress.repeated_steps > attempt.repeated_steps:
        more = progress.repeated_steps - attempt.repeated_steps
        job = replace(job, repeated_steps=job.repeated_steps + more)
        attempt = replace(attempt, repeated_steps=progress.repeated_steps)
    if progress.lost_s is not None and progress.lost_s > attempt.lost_s:
        job = replace(job, lost_s=job.lost_s + progress.lost_s - attempt.lost_s)
        attempt = replace(attempt, lost_s=progress.lost_s)
    return job, attempt


def observe_step(
    job: JobRow, attempt: AttemptRow, step: int, at: float, *, is_done_now: bool = True
) -> Decision:
    """Rank 0 reported a step; the first new one after an ended attempt closes the time that was lost.

    Without `is_done_now` it is the newest one that the driver knows, which an earlier attempt may have done.  It
    begins no phase: counters are stored before the metrics of the steps that they count, and metrics after what the
    driver said later, so that only the driver knows which steps are repeated, and from when on.
    """
    is_new = job.max_step is None or step > job.max_step
    if is_new:
        if job.lost_since is not None:
            job = replace(job, lost_s=job.lost_s + max(0.0, at - job.lost_since), lost_since=None)
        job = replace(job, max_step=step, step_at=at, loss_streak=0, fruitless=0)
    elif is_done_now and step == job.max_step and not is_won_back(job):
        # What comes after that is no loss, even if no new step follows.
        job = replace(job, step_at=at)
    attempt, job = replace(attempt, step=step), replace(job, step=step)
    if attempt.state is not AttemptState.RUNNING or not is_new:
        return Decision(job, attempt)
    # A driver of the release before reports no phases: what it runs trains.
    return _first_step(job, attempt, at, is_again=False)


def observe_checkpoint(job: JobRow, attempt: AttemptRow, step: int) -> Decision:
    """A checkpoint was committed; a newer one than ever before is progress, whether or not its step was reported."""
    is_newer = job.checkpoint_step is None or step > job.checkpoint_step
    return Decision(replace(job, fruitless=0) if is_newer else job, attempt)


def observe_outputs(job: JobRow, attempt: AttemptRow) -> Decision:
    """Outputs were stored: the only progress that can be seen of a command that reports no steps."""
    return Decision(replace(job, fruitless=0) if job.max_step is None else job, attempt)


def launched(attempt: AttemptRow, now: float) -> AttemptRow:
    """Its driver was started."""
    return replace(attempt, launched_at=now)


def released(attempt: AttemptRow, now: float) -> AttemptRow:
    """Nothing of an ended attempt runs any more."""
    if attempt.state is not AttemptState.ENDED:
        raise TransitionError("only an ended attempt can be released")
    return replace(attempt, released_at=now)


def listed(attempt: AttemptRow, now: float) -> AttemptRow:
    """The list of its job's checkpoints agrees with the storage, as far as this attempt is concerned."""
    if attempt.released_at is None:
        raise TransitionError("what still runs may commit checkpoints")
    return replace(attempt, listed_at=now)


def hold_end(job: JobRow, attempt: AttemptRow, at: float, body: dict[str, Any]) -> Decision:
    """Its driver has reported the end at that time, which waits for what its nodes report."""
    return Decision(job, replace(attempt, held_end={"at": at, "body": body}))


def request_stop(job: JobRow, attempt: AttemptRow, reason: EndReason, now: float) -> Decision:
    """The driver was asked to end the attempt."""
    if attempt.stop_requested_at is not None:
        return Decision(job, attempt)
    events: tuple[NewEvent, ...] = ()
    if attempt.state is not AttemptState.DRAINING:
        attempt = attempt_to(attempt, AttemptState.DRAINING)
        message = f"attempt {attempt.attempt} was asked to stop: {reason.value}"
        events = (event_of(attempt, now, "attempt.draining", message, reason=reason.value),)
    attempt, marked = phases.mark(attempt, WorkPhase.DRAINING, now)
    return Decision(job, replace(attempt, stop_reason=reason, stop_requested_at=now), events, marked)


def end_attempt(
    job: JobRow,
    attempt: AttemptRow,
    end_reason: EndReason,
    message: str,
    now: float,
    exit_code: int | None = None,
    *,
    by_driver: bool = True,
    open_lost_s: float = 0.0,
) -> Decision:
    """The attempt is over: it ends, and its job succeeds, fails, is cancelled, or waits for another attempt.

    `by_driver` says that its driver reported the end, `open_lost_s` what a loss cost that no new step followed.
    """
    # Processes that were asked to stop end in many ways; the cause is the request.
    if attempt.stop_reason is not None and end_reason is not EndReason.COMPLETED:
        end_reason = attempt.stop_reason
        message = why_stopped(job, end_reason)
    ended = replace(
        attempt_to(attempt, AttemptState.ENDED),
        end_reason=end_reason,
        message=message,
        exit_code=exit_code,
        world_size=0,
        workers={},
        short_since=None,
        held_end=None,
        lost_s=attempt.lost_s + open_lost_s,
        ended_at=now,
    )
    event = event_of(
        ended,
        now,
        "attempt.ended",
        f"attempt {attempt.attempt} ended: {message}",
        end_reason=end_reason.value,
        exit_code=exit_code,
        step=attempt.step,
    )
    trained = max(0.0, now - attempt.started_at) if attempt.started_at is not None else 0.0
    job = replace(job, trained_s=job.trained_s + trained, world_size=0)
    next_step = retry.after(job, ended, end_reason, message, now, by_driver=by_driver)
    return with_events(_follow(job, ended, next_step, now, open_lost_s), (event,))


def _follow(
    job: JobRow, ended: AttemptRow, next_step: retry.Again | retry.Finish, now: float, open_lost_s: float
) -> Decision:
    if isinstance(next_step, retry.Finish):
        job = close_loss(job, open_lost_s, now)
        return finish(job, next_step.state, next_step.reason, next_step.message, now, ended)
    is_asked = job.pause_requested_at is not None
    if is_asked or job.budget_step is BudgetStep.PAUSE:
        # What was stopped for the budget has lost nothing.
        counted = job if ended.end_reason is EndReason.EVICTED else _counted(job, next_step)
        closed = close_loss(counted, open_lost_s, now)
        return (
            pause_for_owner(closed, now, ended) if is_asked else pause(closed, PAUSED_FOR_BUDGET, now, ended)
        )
    waiting = replace(
        _counted(job_to(job, JobState.QUEUED), next_step),
        reason="waiting_for_retry",
        message=next_step.message,
        lost_since=job.lost_since or job.step_at,
    )
    reason = ended.end_reason.value if ended.end_reason is not None else None
    event = event_of(ended, now, "job.queued", next_step.message, reason=reason)
    return Decision(waiting, ended, (event,))


def _counted(job: JobRow, next_step: retry.Again) -> JobRow:
    """The job with what counts of its ended attempts, and the time before which none follows."""
    return replace(
        job,
        not_before=next_step.not_before,
        user_failures=next_step.user_failures,
        losses=next_step.losses,
        loss_streak=next_step.loss_streak,
        fruitless=next_step.fruitless,
    )

"""Pauses of jobs, by their owners and for the cluster's budget (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from cluster.policies.policies import BudgetStep
from cluster.scheduling.actions import WaitsFor
from remora.states import JobState
from service.queue.dependencies import Dependency, waits_for
from service.queue.lifecycle.decisions import Decision, job_to
from service.queue.lifecycle.edges import TransitionError
from service.queue.rows import AttemptRow, JobRow, NewEvent

#: Why a paused job is paused, as a stable word; and its message until the budget's figures are known.
WAITING_FOR_BUDGET = "waiting_for_budget"


PAUSED_BY_OWNER = "paused_by_owner"


_PAUSED_BY_OWNER = "its owner paused it; `remora resume` lets it go on"


PAUSED_FOR_BUDGET = (
    "the cluster's budget has reached its last step; it goes on by itself when the budget allows it again"
)


def request_pause(job: JobRow, now: float) -> Decision:
    """The owner wants the job to use nothing until it is resumed: at once while it waits, else after a checkpoint."""
    if job.state.is_terminal or job.pause_requested_at is not None or job.cancel_requested_at is not None:
        return Decision(job, None)
    job = replace(job, pause_requested_at=now)
    if job.state in (JobState.ADMITTED, JobState.RUNNING):
        asked = NewEvent(at=now, kind="job.pause_requested", message="its owner asked to pause the job")
        return Decision(replace(job, message="it is being paused"), None, (asked,))
    if job.state is JobState.PAUSED:
        # The budget paused it: it does not go on by itself any more.
        return Decision(replace(job, reason=PAUSED_BY_OWNER, message=_PAUSED_BY_OWNER), None)
    return pause_for_owner(job, now)


def request_resume(job: JobRow, dependencies: Sequence[Dependency], now: float) -> Decision:
    """The owner lets a paused job go on; `dependencies` are the jobs that it still waits for."""
    if job.pause_requested_at is None:
        return Decision(job, None)
    job = replace(job, pause_requested_at=None)
    if job.state is not JobState.PAUSED:
        # Where its attempt is ending already, another one follows.
        message = "its owner resumed it before it was paused"
        event = NewEvent(at=now, kind="job.pause_withdrawn", message=message)
        return Decision(replace(job, message=None), None, (event,))
    decision = resume(job, now, "its owner resumed it")
    waiting = replace(decision.job, waits_from=now, not_before=min(decision.job.not_before, now))
    others = waits_for(dependencies)
    if others is not None or job.array_id is not None:
        reason = WaitsFor.ARRAY if others is None else WaitsFor.JOBS
        message = others or "waits until its array has capacity for it"
        waiting = replace(waiting, reason=reason.value, message=message, waits_from=inf, not_before=inf)
        # Whether its array has capacity for it is decided in the next tick.
        waiting = replace(waiting, is_held=job.array_id is not None)
    return replace(decision, job=waiting)


def pause_for_owner(job: JobRow, now: float, ended: AttemptRow | None = None) -> Decision:
    """The job is paused because its owner asked; `ended` is the attempt that ended for it."""
    return pause(job, _PAUSED_BY_OWNER, now, ended, PAUSED_BY_OWNER)


def pause(
    job: JobRow,
    message: str,
    now: float,
    ended: AttemptRow | None = None,
    reason: str = WAITING_FOR_BUDGET,
) -> Decision:
    """The cluster's budget, or its owner, keeps a job from running; `ended` is the attempt that ended for it.

    What the pause takes is not lost to the job: it uses nothing.
    """
    paused = replace(
        job_to(job, JobState.PAUSED),
        reason=reason,
        message=message,
        paused_at=now,
        lost_since=None,
        world_size=0,
    )
    number = (job.attempt or None) if ended is None else ended.attempt
    end_reason = None if ended is None or ended.end_reason is None else ended.end_reason.value
    event = NewEvent(
        at=now,
        kind="job.paused",
        message=message,
        attempt=number,
        data={"reason": reason, "end_reason": end_reason},
    )
    return Decision(paused, ended, (event,))


def report_paused(job: JobRow, message: str) -> Decision:
    """The owner of a paused job can see what is spent, and what ends the pause."""
    if job.state is not JobState.PAUSED:
        raise TransitionError(f"a job that is {job.state.value} is not paused")
    return Decision(replace(job, message=message), None)


def resume(
    job: JobRow, now: float, message: str = "the cluster's budget allows it again: it goes on"
) -> Decision:
    """What paused the job is over: it waits in the queue, and goes on from its checkpoint."""
    waiting = replace(
        job_to(job, JobState.QUEUED),
        reason=(WaitsFor.ARRAY if job.is_held else WaitsFor.TURN).value,
        message=message,
        paused_at=None,
        budget_step=None,
        lost_since=None if job.step_at is None else now,
    )
    event = NewEvent(at=now, kind="job.queued", message=message, attempt=job.attempt or None)
    return Decision(waiting, None, (event,))


def report_budget(job: JobRow, message: str, step: BudgetStep | None, now: float) -> Decision:
    """An event reports to the owner how the cluster's budget affects the job."""
    event = NewEvent(
        at=now, kind="job.budget", message=message, data={"step": None if step is None else step.value}
    )
    return Decision(replace(job, budget_step=step), None, (event,))

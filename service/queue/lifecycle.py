"""The state machines of jobs, attempts and nodes: the only place where a state changes (pure).

The three tables say which transitions exist and which observation causes each; every function returns the changed rows
with the events of the change, and the store writes both in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

from cluster.node.agent.heartbeats import AgentStatus
from cluster.policies.policies import BudgetStep
from cluster.scheduling.actions import WaitsFor
from cluster.scheduling.health import DRAIN_S
from cluster.scheduling.view import JOINED
from cluster.scheduling.words import clock
from remora.states import AttemptState, EndReason, JobState, NodeState
from service.queue import retry
from service.queue.dependencies import Dependency, waits_for, why_impossible
from service.queue.records import ProgressRecord
from service.queue.rows import AttemptRow, JobRow, NewEvent, NodeRow

StateT = TypeVar("StateT", JobState, AttemptState, NodeState)

JOB_EDGES: Mapping[tuple[JobState, JobState], str] = {
    (JobState.QUEUED, JobState.ADMITTED): "its smallest worker group fits: the dispatch loop made an attempt",
    (
        JobState.QUEUED,
        JobState.FAILED,
    ): "it waited longer than `limits.wait_time`, has spent `limits.budget`, or a job of its `after` did not end as"
    " wanted",
    (JobState.QUEUED, JobState.CANCELLED): "its owner cancelled it while no attempt existed",
    (
        JobState.QUEUED,
        JobState.PAUSED,
    ): "its owner paused it, or it waits for another attempt and the cluster's budget reached its last step",
    (JobState.ADMITTED, JobState.RUNNING): "the driver reported its first worker group",
    (JobState.ADMITTED, JobState.QUEUED): "the attempt ended before it trained and another one follows",
    (
        JobState.ADMITTED,
        JobState.PAUSED,
    ): "the attempt ended before it trained, as its owner paused it or the cluster's budget reached its last step",
    (
        JobState.ADMITTED,
        JobState.SUCCEEDED,
    ): "every rank returned 0 before the driver reported a worker group",
    (JobState.ADMITTED, JobState.FAILED): "the attempt ended before it trained and none follows",
    (JobState.ADMITTED, JobState.CANCELLED): "the attempt ended after its owner had cancelled",
    (JobState.RUNNING, JobState.QUEUED): "the attempt ended and another one follows",
    (
        JobState.RUNNING,
        JobState.PAUSED,
    ): "the attempt ended at a checkpoint, as its owner paused it or the cluster's budget reached its last step",
    (JobState.RUNNING, JobState.SUCCEEDED): "every rank returned 0",
    (JobState.RUNNING, JobState.FAILED): "the attempt ended and none follows",
    (
        JobState.RUNNING,
        JobState.CANCELLED,
    ): "the attempt ended after its owner had cancelled, or its array had stopped it early",
    (
        JobState.PAUSED,
        JobState.QUEUED,
    ): "its owner resumed it, or the budget has room again: a new day or month began, or an operator raised it",
    (JobState.PAUSED, JobState.FAILED): "a job of its `after` did not end as wanted",
    (JobState.PAUSED, JobState.CANCELLED): "its owner cancelled it",
}

ATTEMPT_EDGES: Mapping[tuple[AttemptState, AttemptState], str] = {
    (AttemptState.STARTING, AttemptState.RUNNING): "the driver reported a worker group",
    (AttemptState.STARTING, AttemptState.DRAINING): "it was asked to stop before it trained",
    (AttemptState.STARTING, AttemptState.ENDED): "the driver ended, or died, before it trained",
    (AttemptState.RUNNING, AttemptState.STARTING): "workers were lost and the driver gathers a new group",
    (AttemptState.RUNNING, AttemptState.DRAINING): "it was asked to stop",
    (AttemptState.RUNNING, AttemptState.ENDED): "the driver ended or died",
    (
        AttemptState.DRAINING,
        AttemptState.ENDED,
    ): "the driver ended or died, or the grace was over and it was killed",
}

NODE_EDGES: Mapping[tuple[NodeState, NodeState], str] = {
    (NodeState.REQUESTED, NodeState.LAUNCHED): "the provider accepted it",
    (NodeState.REQUESTED, NodeState.TERMINATING): "the provider refused it, or it is not wanted any more",
    (NodeState.LAUNCHED, NodeState.JOINED): "it is a living member of the Ray cluster",
    (
        NodeState.LAUNCHED,
        NodeState.TERMINATING,
    ): "its machine died, it never joined, or it is not wanted any more",
    (NodeState.JOINED, NodeState.READY): "Ray announces its resources and it does not drain",
    (NodeState.JOINED, NodeState.DRAINING): "Ray drains it",
    (NodeState.JOINED, NodeState.TERMINATING): "its machine died or it left the Ray cluster",
    (NodeState.READY, NodeState.DRAINING): "Ray drains it",
    (
        NodeState.READY,
        NodeState.TERMINATING,
    ): "its machine died, it left the Ray cluster, or it is not wanted any more",
    (
        NodeState.DRAINING,
        NodeState.TERMINATING,
    ): "its machine died, it left the Ray cluster, or it is not wanted any more",
    (NodeState.TERMINATING, NodeState.GONE): "the provider no longer lists it",
    (
        NodeState.TERMINATING,
        NodeState.FAILED,
    ): "the provider no longer lists it and it ended before it was of use",
}


#: Why a job with an attempt does not train yet, as a stable word: its environment is being built.
PREPARING = "preparing"
#: What a job ends with when a job that it waits for did not end as wanted.
DEPENDENCY_UNMET = "dependency_unmet"
#: Why a paused job is paused, as a stable word; and its message until the budget's figures are known.
WAITING_FOR_BUDGET = "waiting_for_budget"
PAUSED_BY_OWNER = "paused_by_owner"
_PAUSED_BY_OWNER = "its owner paused it; `remora resume` lets it go on"
_PAUSED = (
    "the cluster's budget has reached its last step; it goes on by itself when the budget has room again"
)


class TransitionError(Exception):
    """A transition was requested that no table allows; the store's transaction is rolled back."""


@dataclass(frozen=True)
class Decision:
    """A job and its attempt after a decision, with the events of it."""

    job: JobRow
    attempt: AttemptRow | None
    events: tuple[NewEvent, ...] = ()


@dataclass(frozen=True)
class NodeDecision:
    """A node after a decision, with the events of it."""

    node: NodeRow
    events: tuple[NewEvent, ...] = ()


def _check(edges: Mapping[tuple[StateT, StateT], str], old: StateT, new: StateT) -> StateT:
    if (old, new) not in edges:
        raise TransitionError(f"nothing leads from {old.value} to {new.value}")
    return new


def _job_to(job: JobRow, state: JobState) -> JobRow:
    return replace(job, state=_check(JOB_EDGES, job.state, state))


def _attempt_to(attempt: AttemptRow, state: AttemptState) -> AttemptRow:
    return replace(attempt, state=_check(ATTEMPT_EDGES, attempt.state, state))


def _event(attempt: AttemptRow, at: float, kind: str, message: str, **data: object) -> NewEvent:
    return NewEvent(at=at, kind=kind, message=message, attempt=attempt.attempt, data=data)


def submit(
    job: JobRow, dependencies: Sequence[Dependency] = (), origin: str = "", held: str | None = None
) -> Decision:
    """A new job begins to wait: for its turn, or for the ends of other jobs, and then for its turn.

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
    """Some of the jobs that a job waits for have ended: it waits on, or for its turn, or can never start."""
    if (why := why_impossible(dependencies)) is not None:
        return _finish(job, JobState.FAILED, DEPENDENCY_UNMET, why, now)
    message = waits_for(dependencies)
    if job.state is JobState.PAUSED:
        is_over = message is None and not job.is_held
        return Decision(replace(job, not_before=now) if is_over else job, None)
    if message is not None:
        return wait(job, WaitsFor.JOBS.value, message, now)
    if job.is_held:
        return wait(job, WaitsFor.ARRAY.value, "waits for other jobs of its array", now)
    decision = wait(
        job, WaitsFor.TURN.value, "the jobs that it waited for have ended; waits to be looked at", now
    )
    return replace(decision, job=replace(decision.job, not_before=now, waits_from=now))


def wait(job: JobRow, reason: str, message: str, now: float) -> Decision:
    """A queued job goes on waiting for this reason; a new reason makes an event."""
    if job.state is not JobState.QUEUED:
        raise TransitionError(f"a job that is {job.state.value} does not wait")
    events: tuple[NewEvent, ...] = ()
    if reason != job.reason:
        events = (NewEvent(at=now, kind="job.waiting", message=message, data={"reason": reason}),)
    return Decision(replace(job, reason=reason, message=message), None, events)


def release_from_array(job: JobRow, dependencies: Sequence[Dependency], now: float) -> Decision:
    """There is room for a job that its array has held back: it waits for its turn, or first for other jobs."""
    job = replace(job, is_held=False)
    if (message := waits_for(dependencies)) is not None:
        return wait(job, WaitsFor.JOBS.value, message, now)
    decision = wait(job, WaitsFor.TURN.value, "its array has room for it; waits to be looked at", now)
    return replace(decision, job=replace(decision.job, not_before=now, waits_from=now))


def tell_short(job: JobRow, why: str | None) -> Decision:
    """A running job's owner can see why it has fewer workers than it could use, or that nothing is in its way."""
    return Decision(replace(job, why_short=why), None)


def start_attempt(
    job: JobRow, attempt_id: str, now: float, fabric: str | None = None, *, on_demand: bool = False
) -> Decision:
    """The job is admitted and gets its next attempt, bound to a fabric domain where it asked for one.

    `on_demand` binds it to nodes that the cloud does not take back, as its deadline is near.
    """
    number = job.attempt + 1
    admitted = replace(
        _job_to(job, JobState.ADMITTED),
        attempt=number,
        reason=None,
        message=f"attempt {number} is starting",
        why_short=None,
        world_size=0,
    )
    attempt = AttemptRow(id=attempt_id, job_id=job.id, attempt=number, created_at=now, fabric=fabric)
    attempt = replace(attempt, on_demand=on_demand)
    where = "" if fabric is None else f" in the fabric domain {fabric}"
    where += ", all of them on demand, as its deadline is near" if on_demand else ""
    events = (
        _event(attempt, now, "job.admitted", f"nodes for its smallest worker group are free{where}"),
        _event(attempt, now, "attempt.created", f"attempt {number} was created", fabric=fabric),
    )
    return Decision(admitted, attempt, events)


def observe(job: JobRow, attempt: AttemptRow, progress: ProgressRecord, at: float) -> Decision:
    """The driver reported the state of the attempt; what it does not mention stays as it was."""
    attempt, events = _observe_state(attempt, progress, at)
    if attempt.state is AttemptState.RUNNING and job.state is JobState.ADMITTED:
        job = replace(_job_to(job, JobState.RUNNING), started_at=job.started_at or at)
        events += (_event(attempt, at, "job.running", "training started"),)
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
        short_since = None if progress.world_size >= job.sizes.max else attempt.short_since or at
        attempt = replace(attempt, world_size=progress.world_size, short_since=short_since)
        job = replace(job, world_size=progress.world_size)
    if progress.workers is not None:
        attempt = replace(attempt, workers=progress.workers)
    if progress.total_steps is not None:
        job = replace(job, total_steps=progress.total_steps)
    job, attempt = _observe_totals(job, attempt, progress)
    if progress.step is not None:
        return _with_events(observe_step(job, attempt, progress.step, at, is_done_now=False), events)
    return Decision(job, attempt, events)


def _observe_state(
    attempt: AttemptRow, progress: ProgressRecord, at: float
) -> tuple[AttemptRow, tuple[NewEvent, ...]]:
    # A driver that was asked to stop may still report the group it had: draining ends only in `ended`.
    if progress.state is None or progress.state is attempt.state or attempt.state is AttemptState.DRAINING:
        return attempt, ()
    before = attempt.state
    attempt = _attempt_to(attempt, progress.state)
    size = progress.world_size or 0
    if progress.state is AttemptState.RUNNING:
        attempt = replace(attempt, started_at=attempt.started_at or at)
        return attempt, (
            _event(attempt, at, "attempt.started", f"a worker group of {size} trains", world_size=size),
        )
    if progress.state is AttemptState.STARTING and before is AttemptState.RUNNING:
        return attempt, (_event(attempt, at, "attempt.regrouping", "a new worker group is being gathered"),)
    return attempt, (_event(attempt, at, "attempt.draining", "the driver is ending its workers"),)


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

    Without `is_done_now` it is the newest one that the driver knows, which an earlier attempt may have done.
    """
    if job.max_step is None or step > job.max_step:
        if job.lost_since is not None:
            job = replace(job, lost_s=job.lost_s + max(0.0, at - job.lost_since), lost_since=None)
        job = replace(job, max_step=step, step_at=at, loss_streak=0, fruitless=0)
    elif is_done_now and step == job.max_step and not _is_won_back(job):
        # What comes after that is no loss, even if no new step follows.
        job = replace(job, step_at=at)
    return Decision(replace(job, step=step), replace(attempt, step=step))


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


def request_stop(job: JobRow, attempt: AttemptRow, reason: EndReason, now: float) -> Decision:
    """The driver was asked to end the attempt."""
    if attempt.stop_requested_at is not None:
        return Decision(job, attempt)
    events: tuple[NewEvent, ...] = ()
    if attempt.state is not AttemptState.DRAINING:
        attempt = _attempt_to(attempt, AttemptState.DRAINING)
        message = f"attempt {attempt.attempt} was asked to stop: {reason.value}"
        events = (_event(attempt, now, "attempt.draining", message, reason=reason.value),)
    return Decision(job, replace(attempt, stop_reason=reason, stop_requested_at=now), events)


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
    ended = _finish(job, JobState.CANCELLED, EndReason.CANCELLED.value, f"cancelled {when}", now)
    return _with_events(ended, (asked,))


def give_up_waiting(job: JobRow, now: float) -> Decision:
    """The job waited longer than its owner allowed."""
    message = f"it waited longer than limits.wait_time ({job.wait_time_s:g} s)"
    return _finish(job, JobState.FAILED, "wait_time_exceeded", message, now)


def end_spent(job: JobRow, now: float) -> Decision:
    """The job waits again and has nothing left to spend on another attempt."""
    reason = EndReason.BUDGET_SPENT
    return _finish(job, JobState.FAILED, reason.value, why_stopped(job, reason), now)


def why_stopped(job: JobRow, reason: EndReason) -> str:
    """The message of an attempt that was asked to stop."""
    if reason is EndReason.RUN_TIME_EXCEEDED:
        return f"it trained longer than limits.run_time ({job.run_time_s:g} s)"
    if reason is EndReason.BUDGET_SPENT:
        return f"it has spent limits.budget ({job.budget or 0.0:.2f} USD)"
    if reason is EndReason.EVICTED:
        return "its nodes are given back, as the cluster's budget has reached its last step"
    if reason is EndReason.PAUSED:
        return "its owner paused it"
    if reason is EndReason.STOPPED_EARLY and job.stopped_early is not None:
        return job.stopped_early
    if reason is EndReason.NODE_LOST:
        return "all nodes of its fabric domain were lost"
    return "its owner cancelled it" if reason is EndReason.CANCELLED else f"it was stopped: {reason.value}"


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
        _attempt_to(attempt, AttemptState.ENDED),
        end_reason=end_reason,
        message=message,
        exit_code=exit_code,
        world_size=0,
        workers={},
        short_since=None,
        lost_s=attempt.lost_s + open_lost_s,
        ended_at=now,
    )
    event = _event(
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
    return _with_events(_follow(job, ended, next_step, now, open_lost_s), (event,))


def _is_won_back(job: JobRow) -> bool:
    """All steps were done again that the end of an attempt had cost, and no new one yet."""
    return job.lost_since is None or (job.step_at is not None and job.step_at > job.lost_since)


def _close_loss(job: JobRow, open_lost_s: float, now: float) -> JobRow:
    """The job ends, and no new step will follow the loss that is open, in its last attempt or before it."""
    if job.lost_since is None:
        return replace(job, lost_s=job.lost_s + open_lost_s)
    until = job.step_at if _is_won_back(job) and job.step_at is not None else now
    return replace(job, lost_s=job.lost_s + max(0.0, until - job.lost_since), lost_since=None)


def _follow(
    job: JobRow, ended: AttemptRow, next_step: retry.Again | retry.Finish, now: float, open_lost_s: float
) -> Decision:
    if isinstance(next_step, retry.Finish):
        job = _close_loss(job, open_lost_s, now)
        return _finish(job, next_step.state, next_step.reason, next_step.message, now, ended)
    is_asked = job.pause_requested_at is not None
    if is_asked or job.budget_step is BudgetStep.PAUSE:
        # What was stopped for the budget has lost nothing.
        counted = job if ended.end_reason is EndReason.EVICTED else _counted(job, next_step)
        closed = _close_loss(counted, open_lost_s, now)
        return _pause_for_owner(closed, now, ended) if is_asked else pause(closed, _PAUSED, now, ended)
    waiting = replace(
        _counted(_job_to(job, JobState.QUEUED), next_step),
        reason="waiting_for_retry",
        message=next_step.message,
        lost_since=job.lost_since or job.step_at,
    )
    reason = ended.end_reason.value if ended.end_reason is not None else None
    event = _event(ended, now, "job.queued", next_step.message, reason=reason)
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
    return _pause_for_owner(job, now)


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
        message = others or "waits until its array has room for it"
        waiting = replace(waiting, reason=reason.value, message=message, waits_from=inf, not_before=inf)
        # Whether its array has room for it is decided in the next tick.
        waiting = replace(waiting, is_held=job.array_id is not None)
    return replace(decision, job=waiting)


def _pause_for_owner(job: JobRow, now: float, ended: AttemptRow | None = None) -> Decision:
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
        _job_to(job, JobState.PAUSED),
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


def tell_paused(job: JobRow, message: str) -> Decision:
    """The owner of a paused job can see what is spent, and what ends the pause."""
    if job.state is not JobState.PAUSED:
        raise TransitionError(f"a job that is {job.state.value} is not paused")
    return Decision(replace(job, message=message), None)


def resume(
    job: JobRow, now: float, message: str = "the cluster's budget has room again: it goes on"
) -> Decision:
    """What paused the job is over: it waits for its turn, and goes on from its checkpoint."""
    waiting = replace(
        _job_to(job, JobState.QUEUED),
        reason=(WaitsFor.ARRAY if job.is_held else WaitsFor.TURN).value,
        message=message,
        paused_at=None,
        budget_step=None,
        lost_since=None if job.step_at is None else now,
    )
    event = NewEvent(at=now, kind="job.queued", message=message, attempt=job.attempt or None)
    return Decision(waiting, None, (event,))


def _finish(
    job: JobRow, state: JobState, reason: str, message: str, now: float, attempt: AttemptRow | None = None
) -> Decision:
    job = _close_loss(job, 0.0, now)
    done = replace(
        _job_to(job, state), reason=reason, message=message, ended_at=now, world_size=0, paused_at=None
    )
    number = attempt.attempt if attempt is not None else None
    event = NewEvent(
        at=now, kind=f"job.{state.value}", message=message, attempt=number, data={"reason": reason}
    )
    return Decision(done, attempt, (event,))


def _with_events(decision: Decision, first: tuple[NewEvent, ...]) -> Decision:
    return replace(decision, events=first + decision.events)


def request_node(node: NodeRow) -> NodeDecision:
    """A node is requested; its row exists before the provider is asked."""
    event = NewEvent(at=node.created_at, kind="node.requested", message=node.message or "it is wished for")
    return NodeDecision(node, (event,))


def delay_node(node: NodeRow, why: str, now: float, *, was_asked: bool) -> NodeDecision:
    """The node is asked for again: the provider could not be asked now, or `was_asked` and gave no clear answer."""
    if was_asked:
        since = now if node.unanswered_since is None else node.unanswered_since
        node = replace(node, unanswered_since=since, unanswered=node.unanswered + 1)
    message = f"it is asked for again: {why}"
    if node.message == message:
        return NodeDecision(node)
    event = NewEvent(at=now, kind="node.delayed", message=message)
    return NodeDecision(replace(node, message=message), (event,))


def move_node(node: NodeRow, state: NodeState, message: str, now: float) -> NodeDecision:
    """A node goes on to another state because of what `message` says."""
    moved = replace(node, state=_check(NODE_EDGES, node.state, state), message=message)
    if state is NodeState.LAUNCHED:
        moved = replace(moved, launched_at=now)
    if state is NodeState.READY:
        moved = replace(moved, ready_at=now, message=None)
    if state is NodeState.DRAINING:
        moved = replace(moved, leaving_since=now)
    event = NewEvent(at=now, kind=f"node.{state.value}", message=message)
    return NodeDecision(moved, (event,))


def terminate_node(
    node: NodeRow, message: str, is_failure: bool, now: float, *, is_cut_off: bool = False
) -> NodeDecision:
    """The node has to go.

    `is_failure` says that it ended before it was of any use, `is_cut_off` that Ray lost it while its machine ran.
    """
    decision = move_node(node, NodeState.TERMINATING, message, now)
    since = now if node.leaving_since is None else node.leaving_since
    ended = replace(decision.node, is_failure=is_failure, is_cut_off=is_cut_off, leaving_since=since)
    return replace(decision, node=ended)


def drain_node(node: NodeRow, message: str, deadline_at: float, now: float) -> NodeDecision:
    """The node takes no more work and goes at `deadline_at`, in seconds since 1970."""
    until = f"{message}; what works on it has until {clock(deadline_at)}"
    decision = move_node(node, NodeState.DRAINING, until, now)
    return replace(decision, node=replace(decision.node, deadline_at=deadline_at))


def tell_budget(job: JobRow, message: str, step: BudgetStep | None, now: float) -> Decision:
    """An event tells the owner how the cluster's budget affects the job."""
    event = NewEvent(
        at=now, kind="job.budget", message=message, data={"step": None if step is None else step.value}
    )
    return Decision(replace(job, budget_step=step), None, (event,))


def end_node(node: NodeRow, now: float) -> NodeDecision:
    """The provider no longer lists the node; its message goes on saying why it went."""
    state = NodeState.FAILED if node.is_failure else NodeState.GONE
    decision = move_node(node, state, node.message or "the provider no longer lists it", now)
    return replace(decision, node=replace(decision.node, ended_at=now))


@dataclass(frozen=True, kw_only=True)
class NodeObservation:
    """What the provider and Ray say about a node."""

    #: The provider lists it.
    is_provided: bool
    #: Ray knows it and calls it alive.
    is_alive: bool = False
    #: Ray gives it no new work.
    is_draining: bool = False
    #: While draining: when it has to be gone, where Ray says so.
    deadline_at: float | None = None
    #: Why it drains or has left, where its agent says so.
    leaves: str | None = None
    #: The newest heartbeat of its agent; None where it never sent one.
    agent: AgentStatus | None = None
    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)


def observe_node(node: NodeRow, observed: NodeObservation, now: float) -> NodeDecision:
    """The node moves to the states that the observation shows; that it has to go is the planner's decision."""
    decision = NodeDecision(node)
    while (following := _observe_once(decision.node, observed, now)) is not None:
        decision = NodeDecision(following.node, decision.events + following.events)
    is_sick = observed.agent is not None and observed.agent.heartbeat.is_sick
    if is_sick and decision.node.sick_since is None and decision.node.state in JOINED:
        # Its agent drains it for that, and reports why.
        decision = replace(decision, node=replace(decision.node, sick_since=now))
    return decision


def _observe_once(node: NodeRow, observed: NodeObservation, now: float) -> NodeDecision | None:
    match node.state:
        case NodeState.REQUESTED if observed.is_provided:
            return move_node(node, NodeState.LAUNCHED, "its machine starts", now)
        case NodeState.LAUNCHED if observed.is_alive:
            joined = replace(
                node, address=observed.address, resources=dict(observed.resources) or node.resources
            )
            return move_node(joined, NodeState.JOINED, "it joined the Ray cluster", now)
        case NodeState.JOINED | NodeState.READY if observed.is_alive and observed.is_draining:
            why = f"{observed.leaves}: it" if observed.leaves else "it"
            until = (
                ""
                if observed.deadline_at is None
                else f", and what works on it has until {clock(observed.deadline_at)}"
            )
            says = f"{why} is being drained and takes no new work{until}"
            return move_node(node, NodeState.DRAINING, says, now)
        case NodeState.JOINED | NodeState.READY if observed.leaves and not observed.is_alive:
            # A drain ends as soon as nothing runs on the node, which may be before anybody has looked.
            why = f"{observed.leaves}: it was drained and has left the Ray cluster"
            return move_node(node, NodeState.DRAINING, why, now)
        case NodeState.JOINED if observed.is_alive:
            return move_node(node, NodeState.READY, "it may be given work", now)
        case NodeState.READY if observed.is_alive and observed.agent is not None:
            return _observe_agent(node, observed.agent, now)
        case NodeState.DRAINING if (
            node.deadline_at is None and (due_at := _drained_until(observed, now)) is not None
        ):
            return NodeDecision(replace(node, deadline_at=due_at))
        case NodeState.TERMINATING if not observed.is_provided:
            return end_node(node, now)
    return None


def _drained_until(observed: NodeObservation, now: float) -> float | None:
    """When a node that others drained has to be gone; None: Ray drains it for as long as something runs on it.

    It is stored, because Ray may forget the drain, as of a raylet that was started again: then the drain is sent again.
    """
    if observed.is_alive and not observed.is_draining:
        return now + DRAIN_S
    return observed.deadline_at


def _observe_agent(node: NodeRow, agent: AgentStatus, now: float) -> NodeDecision | None:
    """An agent that falls silent, gets no answers from its cloud, or recovers makes one event; so does what it reports.

    It is no reason to drain or to end the node: the machine works, and only the notice of its end is lost, which would
    cost the work less than leaving the machine for nothing.
    """
    if node.agent_silent_since is None and (agent.is_silent or agent.is_deaf):
        message = (
            f"its agent has said nothing since {clock(now - agent.unchanged_s)}: the node goes on working, but"
            " a notice of its cloud or a sick GPU may not be heard of"
            if agent.is_silent
            else f"its agent has had no answer of its cloud since {clock(now - agent.heartbeat.deaf_s)}: the node goes"
            " on working, but a notice of its cloud may not be heard of"
        )
        silent = replace(node, agent_silent_since=agent.heartbeat.at, message=message)
        return NodeDecision(silent, (NewEvent(at=now, kind="node.agent_silent", message=message),))
    # Compared with the row: a controller that has just started has no heartbeats yet.
    is_new = node.agent_silent_since is not None and agent.heartbeat.at != node.agent_silent_since
    if is_new and not agent.is_silent and not agent.is_deaf:
        heard = replace(node, agent_silent_since=None, message=None)
        return NodeDecision(
            heard, (NewEvent(at=now, kind="node.agent_heard", message="its agent is heard again"),)
        )
    # A ready node has no other message, so this one says which event was written already, also by another controller.
    if node.agent_silent_since is None and node.message != agent.heartbeat.says:
        told = replace(node, message=agent.heartbeat.says)
        if agent.heartbeat.says is None:
            return NodeDecision(told)
        return NodeDecision(told, (NewEvent(at=now, kind="node.agent_said", message=agent.heartbeat.says),))
    return None

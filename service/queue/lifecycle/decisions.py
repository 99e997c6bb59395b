"""What a decision about a job, an attempt or a node changes, and what the functions that decide share (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remora.states import AttemptState, JobState
from service.queue.lifecycle.edges import ATTEMPT_EDGES, JOB_EDGES, checked
from service.queue.rows import AttemptRow, JobRow, NewEvent, NodeRow, PhaseRow


@dataclass(frozen=True)
class Decision:
    """A job and its attempt after a decision, with the events of it."""

    job: JobRow
    attempt: AttemptRow | None
    events: tuple[NewEvent, ...] = ()
    #: What the attempt does from now on, or has done.
    phases: tuple[PhaseRow, ...] = ()


@dataclass(frozen=True)
class NodeDecision:
    """A node after a decision, with the events of it."""

    node: NodeRow
    events: tuple[NewEvent, ...] = ()


def job_to(job: JobRow, state: JobState) -> JobRow:
    """The job in another state.  Raises TransitionError when no edge leads there."""
    return replace(job, state=checked(JOB_EDGES, job.state, state))


def attempt_to(attempt: AttemptRow, state: AttemptState) -> AttemptRow:
    """The attempt in another state.  Raises TransitionError when no edge leads there."""
    return replace(attempt, state=checked(ATTEMPT_EDGES, attempt.state, state))


def event_of(attempt: AttemptRow, at: float, kind: str, message: str, **data: object) -> NewEvent:
    """An event of the attempt at `at`, in seconds since 1970."""
    return NewEvent(at=at, kind=kind, message=message, attempt=attempt.attempt, data=data)


def with_events(decision: Decision, first: tuple[NewEvent, ...]) -> Decision:
    """The decision with these events before its own."""
    return replace(decision, events=first + decision.events)


def is_won_back(job: JobRow) -> bool:
    """All steps were done again that the end of an attempt had cost, and no new one yet."""
    return job.lost_since is None or (job.step_at is not None and job.step_at > job.lost_since)


def close_loss(job: JobRow, open_lost_s: float, now: float) -> JobRow:
    """The job ends, and no new step will follow the loss that is open, in its last attempt or before it."""
    if job.lost_since is None:
        return replace(job, lost_s=job.lost_s + open_lost_s)
    until = job.step_at if is_won_back(job) and job.step_at is not None else now
    return replace(job, lost_s=job.lost_s + max(0.0, until - job.lost_since), lost_since=None)


def finish(
    job: JobRow, state: JobState, reason: str, message: str, now: float, attempt: AttemptRow | None = None
) -> Decision:
    """The job ends at `now` in a terminal state, and its event says why."""
    job = close_loss(job, 0.0, now)
    done = replace(
        job_to(job, state), reason=reason, message=message, ended_at=now, world_size=0, paused_at=None
    )
    number = attempt.attempt if attempt is not None else None
    event = NewEvent(
        at=now, kind=f"job.{state.value}", message=message, attempt=number, data={"reason": reason}
    )
    return Decision(done, attempt, (event,))

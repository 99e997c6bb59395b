"""What a drill (a rehearsed preemption) cost each job, from the job's metric points and events (pure).

A drill records how far every running job was when it began; points and events since then say the rest, so that a
controller that dies in the middle loses nothing: the next one reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remora.states import DrillState, EndReason
from remora.views import Event, MetricPoint
from service.queue.rows import DrilledJob, DrillRow, JobRow

#: Seconds after the nodes' end in which a job that was on them must have shown it.  Ray gives a silent node up after
#: some ten seconds; a job without a loss by then was on other nodes.
QUIET_S = 20.0
#: Seconds after the nodes' end for which a drill waits for a job to have its full size again.
PATIENCE_S = 600.0
#: Seconds after the request in which a cloud that takes nodes by itself must have given notice.  Azure documents that a
#: simulated eviction comes within 30 minutes, and the notice may take some minutes more to be seen here.
NOTICE_PATIENCE_S = 2100.0

#: Events that say how many workers a job has from then on.
_GROUPS = frozenset({"worker_group.started", "worker_group.regrouped"})
_LOST_ENDS = frozenset({EndReason.NODE_LOST, EndReason.DRIVER_LOST, EndReason.SUPERVISOR_LOST})


@dataclass(frozen=True, kw_only=True)
class JobUpdate:
    """News of a job: its row now, points of steps above `DrilledJob.step`, events above `event_seq`."""

    job: JobRow
    points: Sequence[MetricPoint] = field(default=())
    events: Sequence[Event] = field(default=())


@dataclass(frozen=True, kw_only=True)
class TakenNode:
    """Where a node stands that its cloud was asked to take."""

    id: str
    #: It has been drained since, as after a notice.
    has_heard: bool
    is_gone: bool


def strike(
    drill: DrillRow, running: Iterable[JobRow], now: float, own_notice_s: float | None = None
) -> DrillRow:
    """The drill begins now; `running` are the jobs that may be on its nodes.

    A cloud with `own_notice_s` gives that notice, whatever was requested, and the drill says so.
    """
    wished_s, message = drill.notice_s, drill.message
    if wished_s is not None and own_notice_s is not None and wished_s != own_notice_s:
        message = (
            f"the cloud gives its own notice, of {own_notice_s:g} s at most, and not one of {wished_s:g} s"
        )
    notice_s = wished_s if wished_s is None or own_notice_s is None else own_notice_s
    return replace(
        drill,
        state=DrillState.STRUCK,
        notice_s=notice_s,
        struck_at=now,
        deadline_at=None if notice_s is None else now + notice_s,
        jobs=[_before(job) for job in running],
        message=message,
    )


def follow_cloud(
    drill: DrillRow, seen: Sequence[TakenNode], running: Iterable[JobRow], now: float
) -> DrillRow:
    """Go on waiting for a cloud that gives its notice when it likes and takes the nodes by itself.

    Until a node or a job has had the notice the account begins again at every tick: seconds count from the notice.
    """
    if all(node.is_gone for node in seen):
        unheard = [node.id for node in seen if not node.has_heard]
        message = drill.message
        if unheard:
            message = _joined(message, f"{', '.join(unheard)} went without having heard of a notice")
        return replace(drill, taken_at=now, message=message)
    if any(node.has_heard or node.is_gone for node in seen) or any(job.was_hit for job in drill.jobs):
        return drill
    if now - (drill.noticed_at or now) > NOTICE_PATIENCE_S:
        nothing = (
            f"the cloud has given no notice within {NOTICE_PATIENCE_S / 60:.0f} min after it was asked to take"
            f" {', '.join(drill.node_ids)}; it may still come"
        )
        message = _joined(drill.message, nothing)
        return replace(drill, state=DrillState.ENDED, ended_at=now, jobs=[], message=message)
    jobs = [_before(job) for job in running]
    return replace(drill, struck_at=now, deadline_at=now + (drill.notice_s or 0.0), jobs=jobs)


def _joined(message: str | None, more: str) -> str:
    return more if message is None else f"{message}; {more}"


def refuse(drill: DrillRow, message: str, now: float) -> DrillRow:
    """Nothing was done to any node."""
    return replace(drill, state=DrillState.REFUSED, message=message, ended_at=now, jobs=[])


def notified(drill: DrillRow, refusals: Mapping[str, str], now: float) -> DrillRow:
    """Its nodes got the notice, except those in `refusals` (a sentence for each), which leave the drill."""
    noted = [node_id for node_id in drill.node_ids if node_id not in refusals]
    refused = "; ".join(refusals.values())
    if not noted:
        return refuse(drill, refused or "no node is left of it", now)
    message = _joined(drill.message, refused) if refused else drill.message
    return replace(drill, node_ids=noted, message=message, noticed_at=now)


def is_due(drill: DrillRow, now: float) -> bool:
    """True when its nodes have to be taken: at once without a notice, else at the deadline."""
    return drill.taken_at is None and now >= (drill.deadline_at or 0.0)


def _before(job: JobRow) -> DrilledJob:
    return DrilledJob(
        job_id=job.id,
        name=job.name,
        step=job.max_step,
        repeated_before=job.repeated_steps,
        event_seq=job.event_seq,
        workers_before=job.world_size,
        workers_least=job.world_size,
        workers=job.world_size,
    )


def measure(drill: DrillRow, known: DrilledJob, new: JobUpdate) -> DrilledJob:
    """What the drill has cost the job so far, from what is known and what it left since then."""
    struck_at = drill.struck_at or 0.0
    # A cloud's notice comes between two ticks: its effects may be older than the tick with which the account begins.
    asked_at = min(struck_at, drill.noticed_at or struck_at)
    moments: list[MetricPoint | Event] = sorted([*new.points, *new.events], key=lambda one: one.at)
    for moment in moments:
        if isinstance(moment, MetricPoint):
            known = _step(known, moment, struck_at)
        elif moment.at >= asked_at:
            known = _happened(known, moment, struck_at)
    workers = new.job.world_size
    return replace(
        known,
        event_seq=max([known.event_seq, *(event.seq for event in new.events)]),
        repeated_steps=new.job.repeated_steps - known.repeated_before,
        workers=workers,
        # Between two worker groups of an attempt it has none for a moment, and that says nothing.
        workers_least=min(known.workers_least, workers) if workers else known.workers_least,
        has_ended=new.job.state.is_terminal,
    )


def _step(known: DrilledJob, point: MetricPoint, struck_at: float) -> DrilledJob:
    """A step was done for the first time."""
    known = replace(known, step=point.step)
    if point.at <= struck_at:
        return known  # done before the strike, reported after it
    since_s = point.at - struck_at
    known = replace(
        known,
        newest_at=point.at,
        next_step_s=since_s if known.next_step_s is None else known.next_step_s,
        pause_s=max(known.pause_s or 0.0, point.at - (known.newest_at or struck_at)),
    )
    return _sized(known, point.world_size, since_s)


def _happened(known: DrilledJob, event: Event, struck_at: float) -> DrilledJob:
    """The job noted of a loss, or of another worker group."""
    if event.kind == "attempt.ended" and event.data.get("end_reason") in _LOST_ENDS:
        return _sized(_lost(known), 0, event.at - struck_at)
    if event.kind == "node.lost":
        return _smaller(_lost(known))
    if event.kind == "worker_group.drain":  # a notice ends no worker yet
        return replace(known, was_hit=True)
    size = event.data.get("world_size")
    if event.kind not in _GROUPS or not isinstance(size, int):
        return known
    if known.step is None:  # a script that reports no steps
        return replace(_sized(known, size, event.at - struck_at), newest_at=event.at)
    return known if size >= known.workers_before else _sized(known, size, event.at - struck_at)


def _lost(known: DrilledJob) -> DrilledJob:
    """Steps that ended before the loss was noticed do not count as steps after it."""
    return replace(known, was_hit=True, next_step_s=None)


def _sized(known: DrilledJob, workers: int, since_s: float) -> DrilledJob:
    """`workers` workers train, `since_s` seconds after the strike."""
    if workers < known.workers_before:
        return replace(_smaller(known), workers_least=min(known.workers_least, workers))
    if known.full_after_s is not None:
        return known
    return replace(known, full_after_s=since_s if known.was_smaller else 0.0)


def _smaller(known: DrilledJob) -> DrilledJob:
    return replace(known, was_smaller=True, full_after_s=None)


def is_over(drill: DrillRow, now: float) -> bool:
    """True when nothing more can be measured: every job that was hit has its full size again, or has ended."""
    if drill.taken_at is None:
        return now - (drill.deadline_at or drill.struck_at or now) > PATIENCE_S
    since_s = now - drill.taken_at
    return since_s > PATIENCE_S or all(_is_settled(drill.taken_at, job, since_s) for job in drill.jobs)


def _is_settled(taken_at: float, job: DrilledJob, since_s: float) -> bool:
    if job.has_ended:
        return True
    if not job.was_hit:
        return since_s > QUIET_S
    return job.full_after_s is not None and (job.newest_at or 0.0) > taken_at


def end(drill: DrillRow, now: float) -> DrillRow:
    """The drill is over; only the jobs that were hit stay in its account."""
    hit = [job for job in drill.jobs if job.was_hit]
    small = [job for job in hit if not job.has_ended and job.full_after_s is None]
    message = drill.message
    if drill.taken_at is None:
        message = _joined(
            message, f"{', '.join(drill.node_ids)} had not gone {PATIENCE_S:.0f} s after its time"
        )
    elif small:
        names = ", ".join(job.name for job in small)
        message = _joined(message, f"{names} had not as many workers as before after {PATIENCE_S:.0f} s")
    return replace(drill, state=DrillState.ENDED, ended_at=now, jobs=hit, message=message)

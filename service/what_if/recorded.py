"""Builds a trace from the service's history: jobs, the work that they did, and the cloud's refusals (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.policies.offerings import Offering
from cluster.traces.trace import PROVISIONING_S, MarketChange, Trace, TraceJob
from service.queue.rows import JobRow, NodeRow

#: Seconds after which an offering that was refused is taken to be there again, when nothing says otherwise.
REFUSED_S = 3600.0
#: Kinds of events that say how many workers train from then on; and those after which none does.
BEGINS = ("attempt.started", "worker_group.regrouped")
ENDS = ("attempt.regrouping", "attempt.ended")
_CHECKPOINT_S = 600.0


@dataclass(frozen=True)
class Happening:
    """An event of one of these kinds."""

    at: float
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """What the service remembers of a span of time."""

    jobs: Sequence[JobRow]
    #: By job id, in order.
    happenings: Mapping[str, Sequence[Happening]]
    nodes: Sequence[NodeRow]
    #: When it was asked, seconds since 1970.
    now: float
    #: Units of the cloud's quotas by their names in lower case, as the newest event reported them.
    quotas: Mapping[str, int] = field(default_factory=dict)


def recorded(history: History, offerings: Iterable[Offering]) -> tuple[Trace, int]:
    """The trace, beginning with the first job; and how many jobs are left out, as they never trained.

    The work of a job is what its workers did, by the times at which worker groups began and ended, which contains what
    they did twice.  Of a job that has not ended it is what all of its steps will take, if it said how many there are.
    """
    begins_at = min((job.created_at for job in history.jobs), default=0.0)
    worked = {job.id: _work_s(job, history) for job in history.jobs}
    jobs = [_job(job, begins_at, worked[job.id]) for job in history.jobs if worked[job.id] > 0]
    mine = [node for node in history.nodes if node.created_at >= begins_at]
    sizes = {node.offering.partition("/")[0] for node in mine if node.offering}
    sold = tuple(one for one in offerings if not sizes or one.size in sizes)
    known = {one.id for one in sold}
    used = {one.quota.lower() for one in sold}
    trace = Trace(
        offerings=sold,
        jobs=tuple(sorted(jobs, key=lambda job: (job.at_s, job.id))),
        changes=tuple(change for change in _changes(mine, begins_at) if change.offering in known),
        quotas={name: units for name, units in history.quotas.items() if name in used},
        begins_at=begins_at,
        provisioning_s=_provisioning_s(mine),
    )
    return trace, len(history.jobs) - len(jobs)


def _work_s(job: JobRow, history: History) -> float:
    """Worker-seconds."""
    work_s, workers, since = 0.0, 0, 0.0
    for one in history.happenings.get(job.id, ()):
        work_s += workers * max(0.0, one.at - since)
        since = one.at
        workers = int(one.data.get("world_size") or 0) if one.kind in BEGINS else 0
    if workers and not job.state.is_terminal:
        work_s += workers * max(0.0, history.now - since)
    if not job.state.is_terminal and job.total_steps and job.max_step:
        work_s *= max(1.0, job.total_steps / job.max_step)
    return round(work_s, 3)


def _job(job: JobRow, begins_at: float, work_s: float) -> TraceJob:
    deadline = job.facts.deadline_at
    return TraceJob(
        id=job.id,
        at_s=round(job.created_at - begins_at, 3),
        sizes=job.facts.sizes,
        resources=job.facts.placed_resources,
        work_s=work_s,
        checkpoint_s=job.facts.repeats_s or _CHECKPOINT_S,
        project=job.project,
        priority=job.priority,
        # A time of a trace is never before its beginning; a deadline that had passed by then is missed all the same.
        deadline_s=None if deadline is None else max(0.0, round(deadline - begins_at, 3)),
        budget=job.facts.budget,
        placement=job.facts.placement,
    )


def _changes(nodes: Sequence[NodeRow], begins_at: float) -> list[MarketChange]:
    """A node that was refused says how many there were: as many as were held then.  One that came lifts that."""
    changes: list[MarketChange] = []
    closed_until: dict[str, float] = {}
    for node in sorted(nodes, key=lambda one: (one.created_at, one.id)):
        if not node.offering:
            continue
        at_s = node.created_at - begins_at
        if _was_refused(node):
            held = sum(
                1 for other in nodes if other.offering == node.offering and _is_held(other, node.created_at)
            )
            changes.append(MarketChange(at_s=round(at_s, 3), offering=node.offering, nodes=held))
            closed_until[node.offering] = at_s + REFUSED_S
        elif node.ready_at is not None and node.offering in closed_until:
            # It came: from the end of the refusal on there were more, or from now on.
            lifted_s = min(closed_until.pop(node.offering), at_s)
            changes.append(_lifted(lifted_s, node.offering))
    changes += [_lifted(until_s, offering) for offering, until_s in closed_until.items()]
    return sorted(changes, key=lambda change: (change.at_s, change.offering))


def _lifted(at_s: float, offering: str) -> MarketChange:
    return MarketChange(at_s=round(at_s, 3), offering=offering, nodes=1_000_000)


def _was_refused(node: NodeRow) -> bool:
    return node.ended_at is not None and node.ready_at is None and not node.is_failure


def _is_held(node: NodeRow, at: float) -> bool:
    return (
        node.ready_at is not None and node.created_at <= at and (node.ended_at is None or node.ended_at > at)
    )


def _provisioning_s(nodes: Iterable[NodeRow]) -> float:
    took = [node.ready_at - node.created_at for node in nodes if node.ready_at is not None]
    return round(statistics.median(took), 3) if took else PROVISIONING_S

"""When jobs that end leave enough for the one that is next, as far as their ends are known (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from cluster.scheduling.allocating import allocate_beside_kept, free_beside
from cluster.scheduling.fitting import shares_in, take
from cluster.scheduling.formatting import clock
from cluster.scheduling.view import JobDemand, NodeView

#: (limit, step) in seconds: a time that is less than the limit away is rounded up to a multiple of the step.  An
#: estimate changes a little with each tick, and the stored sentence is to stay the same.
_STEPS = ((1800.0, 60.0), (10_800.0, 300.0))
_LONGEST_STEP_S = 1800.0


@dataclass(frozen=True)
class Ends:
    """When running jobs are expected to end, in seconds since 1970, by their ids; those not known are missing."""

    now: float = 0.0
    at: Mapping[str, float] = field(default_factory=dict)


NO_ENDS = Ends()


def enough_at(
    job: JobDemand,
    running: Iterable[JobDemand],
    nodes: Sequence[NodeView],
    kept: Mapping[str, str],
    allowed: Sequence[bool] | None,
    ends: Ends,
) -> float | None:
    """When the ends of `running` leave capacity for the job's smallest group on `nodes`; None: that is not known.

    What other groups may grow to stays kept for them, as it does when a job starts.
    """
    jobs = {one.id: one for one in running}
    order = sorted((at, job_id) for job_id, at in ends.at.items() if job_id in jobs)

    def fits(count: int) -> bool:
        ended = {job_id: jobs[job_id] for _, job_id in order[:count]}
        left = [one for one in jobs.values() if one.id not in ended]
        there = [_without(node, ended) for node in nodes]
        free = free_beside(left, there, kept)
        return allocate_beside_kept(kept, job, there, free, allowed).workers >= job.min_workers

    if not order or not fits(len(order)):
        return None
    # The fewest ends that are enough: looked for by halves, as there may be thousands.
    enough, too_few = len(order), 0
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if fits(middle) else (enough, middle)
    return order[enough - 1][0]


def _without(node: NodeView, ended: Mapping[str, JobDemand]) -> NodeView:
    """The node once these jobs have ended."""
    gone = {job_id: count for job_id, count in node.jobs.items() if job_id in ended}
    if not gone:
        return node
    jobs = {job_id: count for job_id, count in node.jobs.items() if job_id not in gone}
    if node.free is None:
        return replace(node, jobs=jobs)
    free = dict(node.free)
    for job_id, count in gone.items():
        worker, shares = ended[job_id].worker_resources, shares_in(ended[job_id].worker_resources)
        take(free, {name: amount for name, amount in worker.items() if name not in shares}, -count)
    return replace(node, jobs=jobs, free=free)


def in_words(at: float | None, now: float) -> str:
    """The end of a sentence, rounded up; empty where the time is not known, or has passed."""
    if at is None or at <= now:
        return ""
    step = next((step for most, step in _STEPS if at - now < most), _LONGEST_STEP_S)
    return (
        f"; enough may be free at about {clock(step * ceil(at / step))}, if the running jobs keep their mean pace"
        " or reach their time limit"
    )

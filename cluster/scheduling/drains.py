"""Which working nodes are drained first: those whose drain costs least work (pure)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping

from cluster.scheduling.view import JobDemand, NodeView

#: Seconds that the drain of a worker costs whose job is not in the view.
UNKNOWN_S = 3600.0
#: Seconds that the drain of a node costs which is in use without a known worker: about what a worker's start takes.
START_S = 30.0


def workers_on(nodes: Iterable[NodeView]) -> dict[str, int]:
    """How many workers of each job are on the nodes, by job id."""
    found: defaultdict[str, int] = defaultdict(int)
    for node in nodes:
        for job_id, workers in node.jobs.items():
            found[job_id] += workers
    return found


class Losses:
    """What draining nodes one after the other costs, in seconds of workers' time; `workers` is their number by job id.

    A group that is left with too few workers stops as a whole: all its workers do again what they did since the last
    checkpoint.  A group that goes on smaller loses what the drained workers did, and all stand still for the resume.
    """

    def __init__(self, jobs: Mapping[str, JobDemand], workers: Mapping[str, int], now: float) -> None:
        self._jobs = jobs
        self._now = now
        self._workers = workers
        self._left = dict(workers)
        self._stopped: set[str] = set()

    def of(self, node: NodeView) -> float:
        """Seconds of workers' time that draining this node costs, after those that were drained before."""
        cost = START_S if node.is_in_use and not node.jobs else 0.0
        for (
            job_id,
            workers,
        ) in node.jobs.items():  # called for every node: a loop takes half the time of sum()
            cost += self._of_job(job_id, workers)
        return cost

    def _of_job(self, job_id: str, workers: int) -> float:
        job = self._jobs.get(job_id)
        if job is None:
            return workers * UNKNOWN_S
        if job_id in self._stopped:
            return 0.0
        in_all = self._workers[job_id]
        stops = self._left[job_id] - workers < job.min_workers
        return in_all * job.resume_s + (in_all if stops else workers) * job.unsaved_s(self._now)

    def keeps_minimum(self, node: NodeView) -> bool:
        """Every job on the node keeps `min_workers` without it; False when an unknown worker is starting there."""
        return (bool(node.jobs) or not node.is_in_use) and all(
            job_id in self._jobs and self._left[job_id] - workers >= self._jobs[job_id].min_workers
            for job_id, workers in node.jobs.items()
        )

    def drain(self, node: NodeView) -> None:
        """Count the node as drained, which changes what the others cost."""
        for job_id, workers in node.jobs.items():
            self._left[job_id] -= workers
            job = self._jobs.get(job_id)
            if job is not None and self._left[job_id] < job.min_workers:
                self._stopped.add(job_id)


def cheapest(
    nodes: Iterable[NodeView], losses: Losses, count: int, *, keep_minimum: bool = False
) -> list[NodeView]:
    """Up to `count` of the nodes, the one that costs least first, of equal ones the newest.

    With `keep_minimum` only those are taken without which every job keeps its smallest group.
    """
    nodes = list(nodes)
    if count == 1 and nodes and not keep_minimum:
        # An exchange: it is over before the cost of another node changes.
        first = min(nodes, key=lambda node: (losses.of(node), -node.created_at, node.id))
        losses.drain(first)
        return [first]
    on: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for job_id in node.jobs:
            on.setdefault(job_id, []).append(at)
    current = [losses.of(node) for node in nodes]
    heap = [(current[at], -node.created_at, node.id, at) for at, node in enumerate(nodes)]
    heapq.heapify(heap)
    taken: dict[int, NodeView] = {}
    while heap and len(taken) < count:
        cost, _, _, at = heapq.heappop(heap)
        node = nodes[at]
        # A node whose cost has changed is in the heap twice; a job that lost too many workers never has more again.
        if at in taken or cost != current[at] or (keep_minimum and not losses.keeps_minimum(node)):
            continue
        taken[at] = node
        losses.drain(node)
        for other in {o for job_id in node.jobs for o in on[job_id]} - taken.keys():
            if (new := losses.of(nodes[other])) != current[other]:
                current[other] = new
                heapq.heappush(heap, (new, -nodes[other].created_at, nodes[other].id, other))
    return list(taken.values())

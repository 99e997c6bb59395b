"""Orders jobs of equal priority by shares: next is the project whose running jobs hold least for its share (pure).

What a job holds is its dominant part of all that the complete pools may bring.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from cluster.policies.policies import Policies
from cluster.scheduling.fitting import Resources, dominant_part
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.queue_order import QueueKey, queue_key
from cluster.scheduling.view import JobDemand


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the projects are entitled to, what they hold, and what there is of everything."""

    #: By project; one that is not named has 1.
    shares: Mapping[str, float]
    #: Parts of the whole that the running jobs of each project hold.
    held: Mapping[str, float] = field(default_factory=dict)
    #: Resources of all nodes of the complete pools.
    whole: Resources = field(default_factory=dict)

    def order(self, jobs: Sequence[JobDemand]) -> list[JobDemand]:
        """The jobs, given in queue order, with those of equal priority ordered by the shares of their projects.

        A job counts with its smallest group as soon as it is placed in the order, so that one project's jobs do not
        come in a row.  Of projects that hold equally much the one with the oldest job is next: a project that holds
        nothing is never overtaken for good.
        """
        held = defaultdict(float, self.held)
        ordered: list[JobDemand] = []
        for _, level in groupby(jobs, key=lambda job: job.priority):
            queues: dict[str, deque[JobDemand]] = defaultdict(deque)
            for job in level:
                queues[job.project].append(job)
            heap = [self._heap_key(project, queue, held) for project, queue in queues.items()]
            heapq.heapify(heap)
            while heap:
                *_, project = heapq.heappop(heap)
                queue = queues[project]
                job = queue.popleft()
                ordered.append(job)
                held[project] += _part(self.whole, job, job.sizes.min)
                if queue:
                    heapq.heappush(heap, self._heap_key(project, queue, held))
        return ordered

    def _heap_key(
        self, project: str, queue: deque[JobDemand], held: Mapping[str, float]
    ) -> tuple[float, QueueKey, str]:
        return held[project] / self.shares.get(project, 1.0), queue_key(queue[0]), project


def has_shares(policies: Policies) -> bool:
    """Operators gave a share to a project; else priority and age alone decide the order."""
    return any("share" in policy.model_fields_set for policy in policies.projects.values())


def shares_of(
    policies: Policies, pools: Iterable[PoolSize], running: Iterable[tuple[JobDemand, int]]
) -> Shares | None:
    """The shares of projects, with what `running` jobs hold by their workers; None: operators gave none."""
    if not has_shares(policies):
        return None
    whole: dict[str, float] = defaultdict(float)
    for pool in pools:
        for name, amount in pool.resources.items():
            whole[name] += pool.size * amount
    held: dict[str, float] = defaultdict(float)
    for job, workers in running:
        held[job.project] += _part(whole, job, max(workers, job.sizes.min))
    shares = {name: policy.share for name, policy in policies.projects.items()}
    return Shares(shares=shares, held=held, whole=whole)


def _part(whole: Resources, job: JobDemand, workers: int) -> float:
    """What is not known counts nothing."""
    return dominant_part(whole, job.worker_resources, workers) or 0.0

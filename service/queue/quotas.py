"""Decides which jobs wait because their project has used up its quota (pure).

Such a job blocks only the jobs behind it in its own project: it does not wait for nodes, and other projects cannot
free its quota.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.policies.policies import Policies, ProjectPolicy
from cluster.scheduling.quotas import (
    allowed_workers,
    counted_workers,
    gpus_of,
    has_quotas,
    never_allowed,
    why_no_money,
)
from cluster.scheduling.view import Spending
from service.queue.rows import JobRow


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """What projects may use, and what they use."""

    projects: Mapping[str, ProjectPolicy]
    #: GPUs that the running jobs of each project hold.
    gpus: Mapping[str, float] = field(default_factory=dict)
    #: USD of the running day and month, by project.
    spent: Mapping[str, Spending] = field(default_factory=dict)
    #: The time of all this, seconds since 1970.
    now: float = 0.0


_NO_QUOTAS = Quotas(projects={})


def quotas_of(
    policies: Policies,
    running: Iterable[tuple[JobRow, int]],
    spent: Mapping[str, Spending],
    now: float = 0.0,
) -> Quotas | None:
    """The quotas, with what `running` jobs use by their workers (0: not known yet); None where no project has one.

    `now` is the time that messages name as the time at which money is spent.
    """
    if not has_quotas(policies):
        return None
    gpus: dict[str, float] = defaultdict(float)
    for job, workers in running:
        counted = counted_workers(workers, job.sizes.min, job.sizes.max)
        gpus[job.project] += gpus_of(job.worker_resources, counted)
    return Quotas(projects=policies.projects, gpus=gpus, spent=spent, now=now)


class Counting:
    """Quotas while a queue is decided about, in queue order; `own` are jobs that ready nodes were bought for."""

    def __init__(self, quotas: Quotas | None, own: Iterable[str | None] = ()) -> None:
        self._quotas = _NO_QUOTAS if quotas is None else quotas
        self._own = frozenset[str | None]() if quotas is None else frozenset(own)
        self._gpus: defaultdict[str, float] = defaultdict(float, self._quotas.gpus)
        #: Projects of which a job waits for the quota: no job of the project overtakes it.
        self._behind: set[str] = set()

    def never(self, job: JobRow) -> str | None:
        """Why the job's smallest group may not start at any time, or None."""
        policy = self._quotas.projects.get(job.project)
        if policy is None:
            return None
        return never_allowed(job.project, policy, job.worker_resources, job.sizes.min)

    def refusal(self, job: JobRow) -> str | None:
        """Why the job's smallest group may not start now whatever is free, or None."""
        policy = self._quotas.projects.get(job.project)
        if policy is None:
            return None
        if job.project in self._behind:
            # Without the name of that job: it would change the message of all of them whenever one starts.
            return "waits for its turn behind another job of its project"
        allowed, why = allowed_workers(
            job.project,
            policy,
            worker=job.worker_resources,
            workers=job.sizes.min,
            gpus_held=self._gpus[job.project],
        )
        if allowed < job.sizes.min:
            return self._waits(job, why)
        # Nodes that were bought for it are paid for by its project; other free nodes are paid for by others.
        return None if job.id in self._own else self.why_no_nodes(job)

    def why_no_nodes(self, job: JobRow) -> str | None:
        """Why nothing is bought for a job that does not fit, or None: then it waits for nodes like any other."""
        policy = self._quotas.projects.get(job.project)
        spent = self._quotas.spent.get(job.project, Spending())
        why = why_no_money(job.project, policy, spent, self._quotas.now)
        return None if why is None else self._waits(job, why)

    def start(self, job: JobRow) -> None:
        """It starts, and counts with all that it may use until its driver has reported its workers."""
        self._gpus[job.project] += gpus_of(job.worker_resources, job.sizes.max)

    def _waits(self, job: JobRow, why: str) -> str:
        self._behind.add(job.project)
        return f"waits for the quota of its project: {why}"

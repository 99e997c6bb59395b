"""Which jobs wait as their project has used up what operators let it have (pure).

Such a job holds up nobody but those behind it in its own project: what it waits for is not nodes, and others cannot
give it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.planning.quotas import allowed_workers, gpus_of, has_quotas, never_allowed
from cluster.policies import Policies, ProjectPolicy
from cluster.view import Spending
from service.queue.rows import JobRow


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """What projects may use, and what they do."""

    projects: Mapping[str, ProjectPolicy]
    #: GPUs that the running jobs of each project hold.
    gpus: Mapping[str, float] = field(default_factory=dict)
    #: USD of the running day and month, by project.
    spent: Mapping[str, Spending] = field(default_factory=dict)

    def never(self, job: JobRow) -> str | None:
        """Why the job's smallest group may not start at any time, or None."""
        policy = self.projects.get(job.project)
        return never_allowed(job.project, policy, job.worker_resources, job.min_workers)

    def refusal(self, job: JobRow, gpus_started: float = 0.0) -> str | None:
        """Why the job's smallest group may not start, beside others of its project that start now; or None."""
        allowed, why = allowed_workers(
            job.project,
            self.projects.get(job.project),
            worker=job.worker_resources,
            workers=job.min_workers,
            gpus_held=self.gpus.get(job.project, 0.0) + gpus_started,
            spent=self.spent.get(job.project, Spending()),
        )
        return why if allowed < job.min_workers else None


def quotas_of(
    policies: Policies, running: Iterable[tuple[JobRow, int]], spent: Mapping[str, Spending]
) -> Quotas | None:
    """The quotas beside jobs that run with so many workers; None where no project has one."""
    if not has_quotas(policies):
        return None
    gpus: dict[str, float] = defaultdict(float)
    for job, workers in running:
        gpus[job.project] += gpus_of(job.worker_resources, max(workers, job.min_workers))
    return Quotas(projects=policies.projects, gpus=gpus, spent=spent)

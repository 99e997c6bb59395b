"""A project's quotas: GPUs at a time, and USD of a day and of a month (pure).

They are counted while jobs are started and while nodes are bought for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter

from cluster.policies.policies import Policies, ProjectPolicy
from cluster.scheduling.formatting import count
from cluster.scheduling.money import end_of, ends_of
from cluster.scheduling.view import JobDemand, Spending


class Counting:
    """GPUs in use by each project that has a policy; other projects are not limited.

    `jobs` are those that run, and may be those that wait; `held` are the workers of each by its id, which a plan
    increases.  `spent` is what projects have spent, and `now` the time of all this.
    """

    def __init__(
        self,
        policies: Policies,
        jobs: Iterable[JobDemand],
        held: Mapping[str, int],
        spent: Mapping[str, Spending],
        now: float,
    ) -> None:
        self._projects = policies.projects
        self._spent = spent
        self._now = now
        self._held = held
        self._gpus: defaultdict[str, float] = defaultdict(float)
        #: With how many workers each job counts.
        self._counted: dict[str, int] = {}
        #: By project, the first of its jobs that waits for its quota: no job of the project overtakes it.
        self._first: dict[str, str] = {}
        if self._projects:
            for job in sorted(jobs, key=attrgetter("order_key")):
                has = held.get(job.id, 0)
                least, most = job.min_workers, job.max_workers
                self.count(job, counted_workers(has, least, most) if job.is_running else has)

    def count(self, job: JobDemand, workers: int) -> None:
        """From now on the job counts with this number of workers, if that is more than before."""
        if job.project not in self._projects:
            return
        more = workers - self._counted.get(job.id, 0)
        if more > 0:
            self._counted[job.id] = workers
            self._gpus[job.project] += gpus_of(job.worker_resources, more)

    def gpus_of_project(self, project: str) -> float:
        """GPUs that its jobs use now; 0 for a project without a policy, which is not counted."""
        return self._gpus.get(project, 0.0)

    def allowed(self, job: JobDemand, workers: int) -> tuple[int, str]:
        """How many of these workers beside those that it has its project lets the job have, and why not all."""
        policy, per_worker = self._projects.get(job.project), gpus_of(job.worker_resources, 1)
        if policy is None or policy.gpus is None or per_worker <= 0:
            return workers, ""
        others = self._gpus[job.project] - per_worker * self._counted.get(job.id, 0)
        allowed = max(0, math.floor((policy.gpus - others) / per_worker + 1e-9))
        beside = max(0, allowed - self._held.get(job.id, 0))
        return min(workers, beside), f"project {job.project!r} may use {count(policy.gpus, 'GPU')} at a time"

    def bar(self, job: JobDemand) -> str | None:
        """Why nothing is bought for the job, although it may use nodes that exist; or None."""
        policy = self._projects.get(job.project)
        if policy is None:
            return None
        first = self._first.get(job.project)
        if first is not None and first != job.id:
            return f"{first} of its project waits for the quota"
        return _why_no_money(job.project, policy, self._spent.get(job.project, Spending()), self._now)

    def never(self, job: JobDemand) -> str | None:
        """Why the job's smallest group may not be had at any time, or None."""
        policy = self._projects.get(job.project)
        return never_allowed(job.project, policy, job.worker_resources, job.min_workers)

    def wait(self, job: JobDemand) -> None:
        """From now on no job of its project overtakes this one."""
        self._first[job.project] = job.id

    def ahead_of(self, job: JobDemand) -> str | None:
        """The job of its project that this one waits behind, or None."""
        return self._first.get(job.project)


def gpus_of(worker: Mapping[str, float], workers: int) -> float:
    """GPUs of this many workers."""
    return workers * worker.get("GPU", 0.0)


def counted_workers(held: int, least: int, most: int) -> int:
    """Workers that a running job counts with: those that it has, at least its smallest group.

    While it has none yet, or lost all of them, it counts with all that it may use: it is about to take them.
    """
    return max(held, least) if held else most


def _why_no_money(project: str, policy: ProjectPolicy, spent: Spending, now: float) -> str | None:
    """Why nothing more is bought for a project at this time, and until when; or None."""
    for period, used, limit in (
        ("day", spent.today, policy.usd_per_day),
        ("month", spent.this_month, policy.usd_per_month),
    ):
        if limit is not None and used >= limit:
            ends = ends_of(period, end_of(period, now), "its limit")
            return f"project {project!r} has spent {used:.2f} of {limit:.2f} USD of the {period}, {ends}"
    return None


def never_allowed(
    project: str, policy: ProjectPolicy | None, worker: Mapping[str, float], workers: int
) -> str | None:
    """Why a project may never have this many of these workers at a time, or None."""
    gpus = gpus_of(worker, workers)
    if policy is None or policy.gpus is None or gpus <= policy.gpus + 1e-9:
        return None
    return (
        f"its smallest worker group needs {count(math.ceil(gpus), 'GPU')}, "
        f"and project {project!r} may use {policy.gpus} at a time"
    )


def has_quotas(policies: Policies) -> bool:
    """A policy limits what some project uses."""
    return counts_money(policies) or any(one.gpus is not None for one in policies.projects.values())


def counts_money(policies: Policies) -> bool:
    """A policy limits what some project spends."""
    projects = policies.projects.values()
    return any(limit is not None for one in projects for limit in (one.usd_per_day, one.usd_per_month))

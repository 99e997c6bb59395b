"""The quotas of projects, counted while jobs are started and nodes are bought for them (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter

from cluster.policies.policies import Policies
from cluster.scheduling.quotas import allowed_workers, counted_workers, gpus_of, never_allowed, why_no_money
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
            for job in sorted(jobs, key=attrgetter("turn")):
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

    def allowed(self, job: JobDemand, workers: int) -> tuple[int, str]:
        """How many of these workers beside those that it has its project lets the job have, and why not all."""
        policy = self._projects.get(job.project)
        if policy is None:
            return workers, ""
        counted, held = self._counted.get(job.id, 0), self._held.get(job.id, 0)
        allowed, why = allowed_workers(
            job.project,
            policy,
            worker=job.worker_resources,
            workers=held + workers,
            gpus_held=self._gpus[job.project] - gpus_of(job.worker_resources, counted),
        )
        return max(0, allowed - held), why

    def bar(self, job: JobDemand) -> str | None:
        """Why nothing is bought for the job, although it may use nodes that exist; or None."""
        policy = self._projects.get(job.project)
        if policy is None:
            return None
        first = self._first.get(job.project)
        if first is not None and first != job.id:
            return f"{first} of its project waits for the quota"
        return why_no_money(job.project, policy, self._spent.get(job.project, Spending()), self._now)

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

"""A trace as values: jobs, offerings, and how many nodes of them there were at which price.

Times are seconds since the trace began, work is in worker-seconds, money in USD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.policies.offerings import Offering
from cluster.policies.placement import ANYWHERE, Placement
from remora.spec.worker_sizes import WorkerSizes

#: Seconds from the order of a node to its first work, where a trace does not say it.
PROVISIONING_S = 240.0


class TraceError(ValueError):
    """A trace cannot be used; the message says where, why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceJob:
    """A job as a replay needs it: it runs at the speed of its workers."""

    id: str
    #: When it was submitted.
    at_s: float
    #: The sizes that its worker group may have.
    sizes: WorkerSizes
    #: Ray resources of one worker.
    resources: Mapping[str, float]
    #: Seconds that one worker alone would need.
    work_s: float
    #: Seconds between two checkpoints.
    checkpoint_s: float = 600.0
    #: Seconds from its start to the first new step: processes, and the state from a checkpoint.
    resume_s: float = 30.0
    #: Seconds that an elastic job stands still when its number of workers changes.
    resize_s: float = 5.0
    project: str = "default"
    priority: int = 50
    #: When it shall have ended; None: whenever.
    deadline_s: float | None = None
    #: USD that its workers' parts of their nodes may cost; None: no limit.
    budget: float | None = None
    #: Which nodes it accepts, before a fabric domain is chosen for it.
    placement: Placement = ANYWHERE

    @property
    def min_workers(self) -> int:
        """Its smallest possible size."""
        return self.sizes.min

    @property
    def max_workers(self) -> int:
        """Its largest possible size."""
        return self.sizes.max

    @property
    def is_elastic(self) -> bool:
        """True when it goes on with fewer workers."""
        return self.min_workers < self.max_workers


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketChange:
    """From `at_s` on there are `nodes` nodes of an offering, at this price."""

    at_s: float
    #: `Offering.id`.
    offering: str
    #: Nodes that one can have in all; those beyond are preempted.  None: as it was.
    nodes: int | None = None
    #: USD for an hour of one node; None: as it was.
    price_per_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All that a replay is given besides policies; jobs and changes are in order of time."""

    offerings: tuple[Offering, ...] = ()
    jobs: tuple[TraceJob, ...] = ()
    changes: tuple[MarketChange, ...] = ()
    #: Units of each quota that all nodes together may use, by its name in lower case; others are not limited.
    quotas: Mapping[str, int] = field(default_factory=dict)
    #: Seconds since 1970 at which it begins: what schedules and days of budgets are counted from.
    begins_at: float = 0.0
    provisioning_s: float = PROVISIONING_S
    #: What a reader had to leave out and why, for people.
    notes: tuple[str, ...] = field(default=())


def merged(parts: Iterable[Trace]) -> Trace:
    """Several traces as one; what the first of them says about the whole counts.

    Raises TraceError when two of them have the same job, offering or quota, or a change or quota is of no offering.
    """
    traces = list(parts)
    if not traces:
        raise TraceError("there is no trace: name at least one file")
    offerings = [one for trace in traces for one in trace.offerings]
    jobs = [one for trace in traces for one in trace.jobs]
    _refuse_repeated("offering", [one.id for one in offerings])
    _refuse_repeated("job", [one.id for one in jobs])
    _refuse_repeated("quota", [name for trace in traces for name in trace.quotas])
    changes = [one for trace in traces for one in trace.changes]
    known = {one.id for one in offerings}
    for change in changes:
        if change.offering not in known:
            named = ", ".join(sorted(known)[:8]) or "none"
            raise TraceError(f"there is no offering {change.offering!r}; offerings of the trace: {named}")
    quotas = {name: units for trace in traces for name, units in trace.quotas.items()}
    used = {one.quota.lower() for one in offerings}
    for name in quotas:
        if name not in used:
            named = ", ".join(sorted(used - {""})[:8]) or "none"
            raise TraceError(f"no offering uses the quota {name!r}; quotas of the offerings: {named}")
    return Trace(
        offerings=tuple(offerings),
        jobs=tuple(sorted(jobs, key=lambda job: (job.at_s, job.id))),
        changes=tuple(sorted(changes, key=lambda change: (change.at_s, change.offering))),
        quotas=quotas,
        begins_at=traces[0].begins_at,
        provisioning_s=traces[0].provisioning_s,
        notes=tuple(note for trace in traces for note in trace.notes),
    )


def _refuse_repeated(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TraceError(
                f"the {what} {name!r} stands twice in the trace: give each {what} a name of its own"
            )
        seen.add(name)

"""What a plan contains: actions, and the reasons for what is not done (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.policies.policies import BudgetStep


class WaitsFor(StrEnum):
    """What keeps a job in the queue from starting; a job's row has it as its reason."""

    NODES = "waiting_for_nodes"
    TURN = "waiting_for_turn"
    QUOTA = "waiting_for_quota"
    #: The ends of other jobs, which the queue knows: such a job is not shown to a plan.
    JOBS = "waiting_for_jobs"
    #: Other jobs of its array, likewise.
    ARRAY = "waiting_for_array"


@dataclass(frozen=True, kw_only=True)
class StartJob:
    """Begin an attempt of a job that waits: its smallest worker group fits on nodes that are ready."""

    job_id: str
    #: The fabric domain that the attempt is bound to; None where it asked for none.
    fabric: str | None = None
    #: The attempt is bound to on-demand nodes, as the deadline of its job is near.
    on_demand: bool = False
    #: Where as many of its workers fit as it can use, by ids of nodes; its driver may find other nodes.
    workers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Make one more node."""

    pool: str
    #: `Offering.id` of what is bought.
    offering: str
    resources: Mapping[str, float]
    #: One sentence for people.
    reason: str
    #: Labels of the Ray node, besides `remora-node` and `remora-pool`.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Fabric domain that it is launched into; the first node of a name makes the domain.
    fabric: str | None = None
    #: The job that it is bought for; None: for the pool's own minimum.
    job_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Give a node no more work, and end it at the deadline or once nothing runs on it."""

    node_id: str
    #: Seconds since 1970.
    deadline_at: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """End a node on which nothing of use runs; asking again for one that is ending does no harm."""

    node_id: str
    reason: str
    #: True when it never became useful, so that its row ends as `failed` and slows its pool down.
    is_failure: bool = False
    #: True when it was a member, and Ray lost it while its machine runs: the network between them is cut.
    is_cut_off: bool = False


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Something that is not done now, and why; exactly one of `job_id`, `pool` and `node_id` says what it is about."""

    reason: str
    job_id: str | None = None
    pool: str | None = None
    node_id: str | None = None
    #: The rule of the site that refuses a launch of the pool.
    rule: str | None = None
    #: Of a job in the queue that does not start.
    waits_for: WaitsFor | None = None
    #: No pool, or no quota, could ever hold the job.
    is_hopeless: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Report to the owner of a job how the cluster's budget affects it."""

    job_id: str
    message: str
    #: The step of the budget that the message is about; None: no step is in force any more.
    step: BudgetStep | None


@dataclass(frozen=True)
class ShowMore:
    """Plan again with more of the jobs that wait: all that are in the view have their nodes, and others wait behind."""


Action = StartJob | Launch | Drain | Terminate | Wait | Notice | ShowMore
#: Jobs that start, in their order, or: what has to go first, then drains, launches, notices and waits.
Plan = tuple[Action, ...]

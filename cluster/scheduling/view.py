"""The immutable input of a plan (pure): demand, nodes, offerings, refusals, quotas and spending.

The service builds a view from its rows and from the answers of the provider and of Ray; a replay from a trace.
Times are seconds since 1970, durations end in `_s`, money is USD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.lazy_property import lazy
from cluster.policies.offerings import CapacityType, Offering, zone_and_capacity
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import BudgetStep
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState

#: States of a node that has ended; a view holds such nodes only for a while, as history.
ENDED = frozenset({NodeState.GONE, NodeState.FAILED})
#: States of a node that is leaving and takes no more work.
LEAVING = frozenset({NodeState.DRAINING, NodeState.TERMINATING})
#: States of a node before it is ready.
COMING = frozenset({NodeState.REQUESTED, NodeState.LAUNCHED, NodeState.JOINED})
#: States of a node that Ray knew.
JOINED = frozenset({NodeState.JOINED, NodeState.READY, NodeState.DRAINING})

#: Seconds from the order of a machine to its readiness, where none was measured yet: a VM boots in minutes.
START_UP_S = 300.0

_set = object.__setattr__


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDemand:
    """A job that waits or runs, and what it would use.  How many workers it has is known from the nodes."""

    id: str
    project: str = "default"
    #: The sizes that its worker group may have; it starts with the smallest, all at once, or a larger one.
    sizes: WorkerSizes
    #: Ray resources of one worker, e.g. {"CPU": 1.0, "GPU": 1.0}.
    worker_resources: Mapping[str, float]
    #: Which nodes it accepts; while it runs, also the fabric domain that its attempt is bound to.
    placement: Placement = ANYWHERE
    #: 0 to 100; the highest comes first.
    priority: int = 50
    created_at: float = 0.0
    #: Its place among those that wait, where a queue has put them in order; equal ones follow priority and age.
    place: int = 0
    #: An attempt of it runs, with workers or waiting for them: it stays before all that are queued.
    is_running: bool = False
    #: Since when it has had fewer workers than `max_workers`; None: since `created_at`.
    waiting_since: float | None = None
    #: When it has to be done.
    deadline_at: float | None = None
    #: Seconds that it still has to train with `max_workers`, if known; used for jobs with a deadline.
    work_left_s: float | None = None
    #: USD that it may still spend.
    budget_left: float | None = None
    #: When its newest checkpoint was made, or its training began; None: a stop without a notice loses nothing.
    saved_at: float | None = None
    #: Since then it has made a checkpoint every `saves_every_s` seconds; None: it has made none.
    saves_every_s: float | None = None
    #: Seconds that it stands still when its workers change.
    resume_s: float = 0.0
    #: Seconds of training that it does again at most after a stop without a notice, by what was agreed on checkpoints.
    repeats_s: float = 0.0
    #: The last step of the cluster's budget that was reported to its owner.
    noticed_step: BudgetStep | None = None
    #: It is no job of the queue: Ray programs ask for it, or hold it (`cluster.scheduling.ray_programs`).
    is_program: bool = False

    #: The ends of its `sizes`.
    min_workers: int = field(init=False, repr=False, compare=False)
    max_workers: int = field(init=False, repr=False, compare=False)
    #: Key of the order: running jobs first, then the queue's order, then priority, then age.  The smallest is next.
    order_key: tuple[bool, int, int, float, str] = field(init=False, repr=False, compare=False)
    #: Equal for jobs whose workers may be put into the same nodes.
    shape: tuple[object, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute once what every plan that contains the job needs."""
        order_key = (not self.is_running, self.place, -self.priority, self.created_at, self.id)
        resources = tuple(sorted(self.worker_resources.items()))
        _set(self, "min_workers", self.sizes.min)
        _set(self, "max_workers", self.sizes.max)
        _set(self, "order_key", order_key)
        asked = self.placement
        _set(self, "shape", (resources, asked.pools, asked.zones, asked.capacity, asked.needs_fabric))

    @property
    def waits_since(self) -> float:
        """Since when it has had fewer workers than it can use."""
        return self.created_at if self.waiting_since is None else self.waiting_since

    def unsaved_s(self, now: float) -> float:
        """Seconds of training that are lost when it is stopped now without a notice."""
        if self.saved_at is None or now <= self.saved_at:
            return 0.0
        since_s = now - self.saved_at
        return since_s if self.saves_every_s is None else since_s % self.saves_every_s


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """A node's row together with what the provider and Ray say about it now."""

    id: str
    pool: str
    state: NodeState
    created_at: float
    #: `Offering.id` of what it was bought as; empty when that is not known.
    offering: str = ""
    #: Ray resources that it brings, or will bring once it has joined.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Nodes with the same name here reach one another by InfiniBand; None: it has none.
    fabric: str | None = None
    #: Workers on it, by job id.
    jobs: Mapping[str, int] = field(default_factory=dict)
    #: Ray resources that no worker uses, where they are counted; None: computed from its jobs.
    free: Mapping[str, float] | None = None
    #: The job that it was bought for (`Launch.job_id`), whose workers are placed on it first.
    bought_for: str | None = None
    #: Ray has allocated some of its resources: to its `jobs`, or to workers that are not reported yet.
    is_in_use: bool = False
    #: Since when nothing has run on it; None while something does, and before it is ready.
    idle_since: float | None = None
    #: The provider lists it.
    provided: bool = True
    #: The provider says that its machine runs.
    is_running: bool = True
    #: Ray knows it and calls it alive.
    is_member: bool = True
    #: While draining: Ray has accepted the drain, and gives it no more work.
    is_noticed: bool = True
    #: While draining: when it has to be gone.
    deadline_at: float | None = None
    #: It leaves before it was of any use.
    is_failure: bool = False
    #: It was a member, and Ray lost it while its machine ran.
    is_cut_off: bool = False
    #: When the provider was first asked for it and gave no clear answer, and how many times it has given none.
    unanswered_since: float | None = None
    unanswered: int = 0
    #: The provider has had a machine for it at some time.
    had_machine: bool = True
    #: Since when it has been ready for work, or was at first.
    ready_at: float | None = None
    #: Since when its agent has said that its machine is sick.
    sick_since: float | None = None
    #: When its drain or end began; counts for the pace of returns.
    leaving_since: float | None = None

    #: It can take work, now or once it has joined.
    is_usable: bool = field(init=False, repr=False, compare=False)
    #: It has joined and is to stay, the provider says that its machine runs, and Ray calls it alive.
    is_well: bool = field(init=False, repr=False, compare=False)
    #: Nodes that work are filled first, those that still start last, so that idle ones stay idle and can go.
    filling_order: tuple[bool, bool, float, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute once what every plan that contains the node needs."""
        has_joined, leaves = self.state in JOINED, self.state in LEAVING
        is_well = has_joined and not leaves and self.provided and self.is_running and self.is_member
        _set(self, "is_usable", not leaves and self.state not in ENDED)
        _set(self, "is_well", is_well)
        _set(
            self,
            "filling_order",
            (not (self.jobs or self.is_in_use), not has_joined, self.created_at, self.id),
        )

    @property
    def capacity(self) -> CapacityType | None:
        """How it is paid for; None: not known."""
        return zone_and_capacity(self.offering)[1]

    @property
    def place(self) -> tuple[str, str | None, CapacityType | None]:
        """Its pool, its zone and its capacity type, as a placement asks for them; None: not known."""
        return (self.pool, *zone_and_capacity(self.offering))

    @property
    def may_work(self) -> bool:
        """Ray knows it, and may have given it work that is not reported yet."""
        return self.is_member and self.state in JOINED

    @property
    def is_paid(self) -> bool:
        """Its machine exists or is about to, so that it costs money and uses quota."""
        return self.state not in ENDED or self.provided


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The cloud had no capacity of an offering.

    Stays in the view for some time after its end, which shows since when the offering is available again.
    """

    #: `Offering.id`
    offering: str
    #: It is not requested before.
    until: float
    #: One sentence for people.
    reason: str = ""
    #: When the cloud said it.
    at: float = float("-inf")
    #: Its number in a row of refusals, from 1; 0: its row is over.
    tries: int = 1


@dataclass(frozen=True, kw_only=True)
class Spending:
    """USD spent in the current day and in the current month (UTC)."""

    today: float = 0.0
    this_month: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """Everything that a plan is made from, besides the policies and the time.

    Nodes that ended within the last quarter of an hour belong into it, as the pace of launches and returns is counted
    from them, and those that failed or were sick for as long as `cluster.scheduling.health.remembered_s` says: they are
    what slows a failing pool down.
    """

    #: The time of the view, seconds since 1970; in a replay the time of its trace.
    now: float = 0.0
    jobs: tuple[JobDemand, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    #: All that the providers sell.
    offerings: tuple[Offering, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    #: Units that the cloud still allows beyond all nodes of this view, by the offerings' name of the quota in lower
    #: case; a quota that is not named does not limit.
    quota_left: Mapping[str, int] = field(default_factory=dict)
    #: When an operator last reopened a pool whose offerings were closed, by pool.
    reopened: Mapping[str, float] = field(default_factory=dict)
    #: Before this time the cloud accepts no requests for machines: nodes that were to be requested wait.
    paused_until: float = float("-inf")
    #: Of the whole service.
    spent: Spending = Spending()
    #: USD an hour that nodes of other clusters cost, which spend the same budget, and seconds until the last of them
    #: could be ended.
    rate_elsewhere: float = 0.0
    leaving_elsewhere_s: float = 0.0
    #: By project.
    spent_by_project: Mapping[str, Spending] = field(default_factory=dict)
    #: The furthest step that an earlier plan reached of the same budget in this day or month: it holds until that ends.
    budget_step: BudgetStep | None = None
    #: No job overtakes one that waits for nodes, so nothing is bought for those behind it.
    strict_order: bool = False
    #: Of the jobs that wait and are shown here those behind which more wait that are not shown, by id.
    cut_at: frozenset[str] = frozenset()
    #: Seconds from the order of a machine to its readiness, as measured lately.
    start_up_s: float = START_UP_S

    @lazy
    def nodes_of(self) -> Mapping[str, list[NodeView]]:
        """All nodes by pool, in their order."""
        return _by_pool(self.nodes)

    @lazy
    def unwell(self) -> list[NodeView]:
        """Nodes that start, have failed, leave or have ended, in their order: few among many."""
        return [node for node in self.nodes if not node.is_well]

    @lazy
    def unwell_of(self) -> Mapping[str, list[NodeView]]:
        """The same by pool; a pool without any is missing."""
        return _by_pool(self.unwell)


def _by_pool(nodes: Iterable[NodeView]) -> dict[str, list[NodeView]]:
    found: dict[str, list[NodeView]] = {}
    for node in nodes:
        found.setdefault(node.pool, []).append(node)
    return found

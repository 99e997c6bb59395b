"""Free capacity of nodes, those that exist and those that a plan buys (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from cluster.lazy_property import lazy
from cluster.policies.offerings import CapacityType, Offering, zone_and_capacity
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.fitting import Resources, shares_in, slots, take
from cluster.scheduling.view import JobDemand, NodeView


class Bin:
    """A node and what is free on it, while a plan places workers."""

    __slots__ = ("_free", "_holds", "_own", "fabric", "is_kept", "is_used", "node", "offering", "pool")

    def __init__(
        self,
        pool: str,
        free: Resources,
        offering: Offering | None,
        fabric: str | None,
        node: NodeView | None = None,
    ) -> None:
        self.pool = pool
        self._free = free
        #: A copy of `free` once something was subtracted: in most plans few nodes are given anything.
        self._own: dict[str, float] | None = None
        #: Workers whose resources are to be subtracted before `free` is read.
        self._holds: Sequence[tuple[Resources, int]] = ()
        self.offering = offering
        self.fabric = fabric
        #: None for a node that this plan buys.
        self.node = node
        #: A worker runs on it or was placed on it.
        self.is_used = False
        #: It was bought for a job that this plan has not placed yet.
        self.is_kept = False

    @property
    def capacity(self) -> CapacityType | None:
        """How it is paid for, when it is known."""
        return self._stands[1] if self.offering is None else self.offering.capacity

    @property
    def zone(self) -> str | None:
        """Its zone, when it is known."""
        return self._stands[0] if self.offering is None else self.offering.zone

    @property
    def _stands(self) -> tuple[str | None, CapacityType | None]:
        """Zone and capacity type of a node whose offering is not sold any more, read from the offering's id."""
        return zone_and_capacity("" if self.node is None else self.node.offering)

    @property
    def free(self) -> Resources:
        """What is left; computed at its first use, as most plans need it of few nodes."""
        if self._holds:
            free = self._own_free()
            for worker, count in self._holds:
                take(free, worker, count)
            self._holds = ()
        return self._free

    def hold(self, holds: Sequence[tuple[Resources, int]]) -> None:
        """Set the workers that are on it already and are not yet subtracted from what is free."""
        self._holds = holds

    def put(self, worker: Resources, count: int) -> None:
        """Place this many workers."""
        if count > 0:
            take(self._own_free(), worker, count)
            self.is_used = True

    def _own_free(self) -> dict[str, float]:
        if self._own is None:
            self._free = self._own = dict(self._free)
        return self._own


@dataclass
class Tier:
    """Bins that may suit a shape, in the order in which they are filled."""

    bins: list[Bin] = field(default_factory=list)
    #: How many of all bins have been checked; -1: not even the nodes that work.
    seen: int = -1


@dataclass
class Shape:
    """Jobs whose workers need the same resources and accept the same nodes."""

    worker: Resources
    pools: tuple[str, ...]
    example: JobDemand
    #: Bins that may suit it: those with work first, then unused ones, so that these stay unused and can go.
    #: What is full for this shape stays so within a plan, and is taken out.
    tiers: tuple[Tier, Tier] = field(default_factory=lambda: (Tier(), Tier()))
    kept_start: int = 0
    #: The smallest group that did not fit, with the reason; capacity never grows within a plan.
    failed: dict[object, tuple[int, str]] = field(default_factory=dict)


class Space:
    """All bins of a plan: its nodes, on which there are `held` workers of each job, and what it buys."""

    def __init__(self, context: PlanningContext, nodes: Iterable[NodeView], held: Mapping[str, int]) -> None:
        self._context = context
        self._shapes: dict[object, Shape] = {}
        nodes = list(nodes)
        #: Nodes that work; most of them are full, and need neither a bin nor an order.
        self.at_work: list[NodeView] = [node for node in nodes if node.jobs]
        self._at_work: dict[str, Bin] = {}
        self._left_of: dict[frozenset[str], list[NodeView]] = {}
        #: Open to all jobs: bought by this plan or for a job that has been placed; and unused ones.
        self._worked: list[Bin] = []
        self._unused: list[Bin] = []
        self._kept: list[Bin] = []
        self._own: dict[str, list[Bin]] = defaultdict(list)
        self.domains: dict[str, list[Bin]] = defaultdict(list)
        #: Workers by job, and the domains that they are in.
        self.held: dict[str, int] = defaultdict(int, held)
        self.held_in: dict[str, set[str]] = defaultdict(set)
        #: How many on-demand nodes this plan gave each job.
        self._on_demand: dict[str, int] = defaultdict(int)
        joined = [(node, node.fabric) for node in self.at_work if node.fabric is not None]
        for node, fabric in sorted(joined, key=lambda one: one[0].filling_order):
            for job_id in node.jobs:
                self.held_in[job_id].add(fabric)
            self.domains[fabric].append(self._bin_of(node))
        for node in in_filling_order([node for node in nodes if not node.jobs]):
            self._add_unused(node)

    def _bin_of(self, node: NodeView) -> Bin:
        """The bin of a node that works."""
        bin_ = self._at_work.get(node.id)
        if bin_ is None:
            free = node.resources if node.free is None else node.free
            offering = self._context.offering_of(node)
            bin_ = self._at_work[node.id] = Bin(node.pool, free, offering, node.fabric, node)
            bin_.is_used = True
            held = [(self._worker_of(job_id), workers) for job_id, workers in node.jobs.items()]
            if node.free is not None:
                held = [(share, workers) for worker, workers in held if (share := shares_in(worker))]
            bin_.hold(held)
        return bin_

    def _worker_of(self, job_id: str) -> Resources:
        job = self._context.jobs.get(job_id)
        return {} if job is None else job.worker_resources

    def _add_unused(self, node: NodeView) -> None:
        free = node.resources if node.free is None else node.free
        bin_ = Bin(node.pool, free, self._context.offering_of(node), node.fabric, node)
        self._register(bin_)
        if node.bought_for is not None and node.bought_for in self._context.jobs:
            self._own[node.bought_for].append(bin_)
            bin_.is_kept = self._context.may_be_kept(node)
        (self._kept if bin_.is_kept else self._unused).append(bin_)

    def _register(self, bin_: Bin) -> None:
        if bin_.fabric is not None:
            self.domains[bin_.fabric].append(bin_)

    @property
    def others(self) -> list[Bin]:
        """Every bin but those of nodes that work, those included whose owners were not placed."""
        return [*self._worked, *self._unused, *(bin_ for bin_ in self._kept if bin_.is_kept)]

    @property
    def everything(self) -> list[Bin]:
        """Every bin."""
        return [*map(self._bin_of, self.at_work), *self.others]

    @lazy
    def _worked_on_demand(self) -> dict[str, int]:
        on_demand = self._context.paid_as(self.at_work, CapacityType.ON_DEMAND)
        return Counter(job_id for node in on_demand for job_id in node.jobs)

    def on_demand_of(self, job: JobDemand) -> int:
        """On-demand nodes that the job's workers are on."""
        return self._worked_on_demand.get(job.id, 0) + self._on_demand.get(job.id, 0)

    @property
    def owners(self) -> Collection[str]:
        """Jobs that nodes without work were bought for."""
        return self._own.keys()

    def buy(self, pool: str, offering: Offering, fabric: str | None, *, is_used: bool = True) -> Bin:
        """One more bin, for a node that the plan launches."""
        bin_ = Bin(pool, offering.resources, offering, fabric)
        (self._worked if is_used else self._unused).append(bin_)
        self._register(bin_)
        return bin_

    def note(self, job_id: str, bin_: Bin, workers: int) -> None:
        """Record that the job has this many workers in the bin."""
        self.held[job_id] += workers
        if bin_.fabric is not None:
            self.held_in[job_id].add(bin_.fabric)
        if bin_.capacity is CapacityType.ON_DEMAND:
            self._on_demand[job_id] += 1

    def put(self, job: JobDemand, bin_: Bin, workers: int) -> None:
        """Place this many workers of the job in the bin."""
        bin_.put(job.worker_resources, workers)
        self.note(job.id, bin_, workers)

    def shape_of(self, job: JobDemand) -> Shape:
        """The shape that the job shares with others."""
        shape = self._shapes.get(job.shape)
        if shape is None:
            pools = job.placement.pools or tuple(self._context.policies.pools)
            shape = self._shapes[job.shape] = Shape(job.worker_resources, pools, job)
        return shape

    def own_of(self, job: JobDemand) -> Sequence[Bin]:
        """What was bought for the job and has no work yet."""
        return self._own.get(job.id, ()) if self._own else ()

    def open(self, job: JobDemand, *, unused: bool) -> None:
        """The job was placed: open the nodes that it uses to other jobs, and with `unused` its unused ones too."""
        own = self._own.get(job.id)
        if own is None:
            return
        opened = [bin_ for bin_ in own if bin_.is_kept and (unused or bin_.is_used)]
        for bin_ in opened:
            bin_.is_kept = False
        if opened:
            self._worked.extend(opened)
            for shape in self._shapes.values():
                shape.failed.clear()

    def find(self, job: JobDemand, shape: Shape, workers: int) -> tuple[list[tuple[Bin, int]], int]:
        """Bins for up to this many workers: nodes that were bought for the job first, then those open to all.

        The second value is the number of workers that do not fit.
        """
        found: list[tuple[Bin, int]] = []
        for bin_ in self.own_of(job):
            if (
                workers > 0
                and suits(job, shape.pools, bin_)
                and (count := slots(bin_.free, shape.worker)) > 0
            ):
                found.append((bin_, min(count, workers)))
                workers -= found[-1][1]
        return found, self._find_free(shape, workers, found)

    def _find_free(self, shape: Shape, workers: int, found: list[tuple[Bin, int]]) -> int:
        """Add bins that are open to all jobs to those found; returns how many workers are left."""
        taken = {id(bin_) for bin_, _ in found} if found else ()
        worked, unused = shape.tiers
        for tier, bins in ((worked, self._worked), (unused, self._unused)):
            if tier.seen != len(bins):
                self._look_through(shape, tier, bins)
            at, mine = 0, tier.bins
            while workers > 0 and at < len(mine):
                bin_ = mine[at]
                count = slots(bin_.free, shape.worker)
                if count == 0:
                    del mine[at]
                    continue
                if id(bin_) not in taken:
                    found.append((bin_, min(count, workers)))
                    workers -= found[-1][1]
                at += 1
        return workers

    def _look_through(self, shape: Shape, tier: Tier, bins: list[Bin]) -> None:
        """Add bins that are new since the last call to the shape's list; the job's first pool comes first.

        A bin that has no capacity for one worker never has it again within a plan.
        """
        worker, is_first = shape.worker, tier.seen < 0
        new = [bin_ for bin_ in bins[max(0, tier.seen) :] if slots(bin_.free, worker) > 0]
        if is_first and bins is self._worked:
            new = [*self._fitting_at_work(worker), *new]
        new = [bin_ for bin_ in new if suits(shape.example, shape.pools, bin_)]
        if is_first and len(shape.pools) > 1:
            preference = {name: at for at, name in enumerate(shape.pools)}
            new.sort(key=lambda bin_: preference[bin_.pool])
        tier.bins.extend(new)
        tier.seen = len(bins)

    def _fitting_at_work(self, worker: Resources) -> Iterator[Bin]:
        """Nodes that work and have capacity for one more such worker."""
        shares = shares_in(worker)
        names = frozenset(
            name for name, amount in worker.items() if amount > 0 and name != "memory" and name not in shares
        )
        for node in self._at_work_with(names):
            bin_ = self._bin_of(node)
            if slots(bin_.free, worker) > 0:
                yield bin_

    def _at_work_with(self, names: frozenset[str]) -> list[NodeView]:
        """Nodes that work and have something left of each resource, or do not report it, in filling order.

        Most are full by far.  What the plan puts on a node only makes it fuller, so that those need no bin.
        """
        nodes = self._left_of.get(names)
        if nodes is None:
            nodes = self.at_work
            for name in sorted(
                names, key=lambda name: (name == "CPU", name)
            ):  # processors are left nearly always
                nodes = [node for node in nodes if node.free is None or node.free.get(name, 0.0) > 0]
            nodes = self._left_of[names] = in_filling_order(nodes)
        return nodes

    def find_kept(self, job: JobDemand, shape: Shape, workers: int) -> list[tuple[Bin, int]]:
        """Capacity on nodes that were bought for jobs that were not placed yet: the last resort."""
        found: list[tuple[Bin, int]] = []
        own = {id(bin_) for bin_ in self.own_of(job)}
        at = shape.kept_start
        while workers > 0 and at < len(self._kept):
            bin_ = self._kept[at]
            count = slots(bin_.free, shape.worker) if bin_.is_kept and suits(job, shape.pools, bin_) else 0
            if count == 0 and at == shape.kept_start:
                shape.kept_start += 1
            elif count > 0 and id(bin_) not in own:
                found.append((bin_, min(count, workers)))
                workers -= found[-1][1]
            at += 1
        return found


def in_filling_order(nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes in the order in which they are filled."""
    return sorted(nodes, key=attrgetter("filling_order"))


def suits(job: JobDemand, pools: tuple[str, ...], bin_: Bin) -> bool:
    """The job's placement allows the bin; its free capacity is not checked."""
    return bin_.pool in pools and job.placement.allows(bin_.pool, bin_.zone, bin_.capacity)

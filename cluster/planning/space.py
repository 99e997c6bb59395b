"""Free room on nodes, those that are there and those that a plan buys (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from cluster.offerings import CapacityType, Offering
from cluster.planning.situation import Situation
from cluster.view import JobDemand, NodeView

Resources = Mapping[str, float]


def slots(free: Resources, worker: Resources) -> int:
    """How many such workers the free resources carry.

    Memory that nobody announced is no limit: Ray measures it once the node is there.
    """
    least = -1
    for name, amount in worker.items():
        if amount <= 0 or (name == "memory" and name not in free):
            continue
        count = int(free.get(name, 0.0) / amount + 1e-9)
        if count <= 0:
            return 0
        least = count if least < 0 else min(least, count)
    return max(0, least)


class Bin:
    """A node while a plan fills it."""

    __slots__ = (
        "_free",
        "_holds",
        "_resources",
        "capacity",
        "fabric",
        "is_kept",
        "is_used",
        "node",
        "offering",
        "pool",
        "zone",
    )

    def __init__(
        self, pool: str, resources: Resources, offering: Offering | None, fabric: str | None
    ) -> None:
        self.pool = pool
        self._resources = resources
        self._free: dict[str, float] | None = None
        #: Workers that were put here before anybody asked what is free.
        self._holds: list[tuple[Resources, int]] = []
        self.offering = offering
        self.capacity: CapacityType | None = None if offering is None else offering.capacity
        self.zone = None if offering is None else offering.zone
        self.fabric = fabric
        #: None for a node that this plan buys.
        self.node: NodeView | None = None
        #: A worker runs on it or was given room on it.
        self.is_used = False
        #: It was bought for a job whose turn has not come in this plan.
        self.is_kept = False

    @property
    def free(self) -> dict[str, float]:
        """What is left; counted when it is asked for, as in most plans few nodes are."""
        if self._free is None:
            self._free = dict(self._resources)
            for worker, count in self._holds:
                _take(self._free, worker, count)
        return self._free

    def leave(self, free: Resources, *, is_used: bool) -> None:
        """So much is left on it."""
        self._resources = free
        self.is_used = is_used

    def put(self, worker: Resources, count: int) -> None:
        """Give room to so many workers."""
        if self._free is None:
            self._holds.append((worker, count))
        else:
            _take(self._free, worker, count)
        self.is_used = self.is_used or count > 0


def _take(free: dict[str, float], worker: Resources, count: int) -> None:
    for name, amount in worker.items():
        if name in free:
            free[name] -= count * amount


@dataclass
class Tier:
    """Bins that may suit a shape, in the order in which they are filled."""

    bins: list[Bin] = field(default_factory=list)
    #: How many of all bins have been looked through.
    seen: int = 0
    #: Everything before it is full for this shape, and stays so.
    start: int = 0


@dataclass
class Shape:
    """Jobs whose workers may be put into the same bins."""

    worker: Resources
    pools: tuple[str, ...]
    example: JobDemand
    #: Bins that may suit it: those with work first, then unused ones, so that these stay unused and can go.
    tiers: tuple[Tier, Tier] = field(default_factory=lambda: (Tier(), Tier()))
    kept_start: int = 0
    #: The smallest gang that found no room, with the reason; nothing gets better within a plan.
    failed: dict[object, tuple[int, str]] = field(default_factory=dict)


class Space:
    """All bins of a plan."""

    def __init__(self, situation: Situation, nodes: Iterable[NodeView]) -> None:
        self._situation = situation
        self._shapes: dict[object, Shape] = {}
        #: Open to everybody: with work, bought by this plan or for a job that had its turn; and unused ones.
        self._worked: list[Bin] = []
        self._unused: list[Bin] = []
        self._kept: list[Bin] = []
        self._own: dict[str, list[Bin]] = defaultdict(list)
        self.domains: dict[str, list[Bin]] = defaultdict(list)
        #: Workers by job, and the domains that they are in.
        self.held: dict[str, int] = defaultdict(int)
        self.held_in: dict[str, set[str]] = defaultdict(set)
        #: On-demand nodes that a job's workers are on.
        self.on_demand: dict[str, int] = defaultdict(int)
        for node in sorted(nodes, key=attrgetter("filling_order")):
            self._add_node(node)

    def _add_node(self, node: NodeView) -> None:
        bin_ = Bin(node.pool, node.resources, self._situation.offering_of(node), node.fabric)
        bin_.node = node
        if node.free is None:
            self._count(node, bin_)
        else:
            bin_.leave(node.free, is_used=bool(node.jobs))
        held, is_on_demand = self.held, bin_.capacity is CapacityType.ON_DEMAND
        for job_id, workers in node.jobs.items():
            held[job_id] += workers
            if is_on_demand:
                self.on_demand[job_id] += 1
            if bin_.fabric is not None:
                self.held_in[job_id].add(bin_.fabric)
        self._register(bin_)
        if node.bought_for in self._situation.jobs and not node.jobs:
            bin_.is_kept = True
            self._kept.append(bin_)
            self._own[node.bought_for or ""].append(bin_)
        else:
            (self._worked if node.jobs else self._unused).append(bin_)

    def _count(self, node: NodeView, bin_: Bin) -> None:
        for job_id, workers in node.jobs.items():
            job = self._situation.jobs.get(job_id)
            bin_.put(job.worker_resources if job is not None else {}, workers)

    def _register(self, bin_: Bin) -> None:
        if bin_.fabric is not None:
            self.domains[bin_.fabric].append(bin_)

    @property
    def everything(self) -> list[Bin]:
        """Every bin, those included whose owners had no turn."""
        return [*self._worked, *self._unused, *(bin_ for bin_ in self._kept if bin_.is_kept)]

    def buy(self, pool: str, offering: Offering, fabric: str | None, *, is_used: bool = True) -> Bin:
        """One more bin, for a node that the plan launches."""
        bin_ = Bin(pool, offering.resources, offering, fabric)
        (self._worked if is_used else self._unused).append(bin_)
        self._register(bin_)
        return bin_

    def note(self, job_id: str, bin_: Bin, workers: int) -> None:
        """The job has so many workers in the bin."""
        self.held[job_id] += workers
        if bin_.fabric is not None:
            self.held_in[job_id].add(bin_.fabric)
        if bin_.capacity is CapacityType.ON_DEMAND:
            self.on_demand[job_id] += 1

    def put(self, job: JobDemand, bin_: Bin, workers: int) -> None:
        """Give the job room for so many workers in the bin."""
        bin_.put(job.worker_resources, workers)
        self.note(job.id, bin_, workers)

    def shape_of(self, job: JobDemand) -> Shape:
        """The shape that the job shares with others."""
        resources = tuple(sorted(job.worker_resources.items()))
        key = (resources, job.pools, job.zones, job.capacity, job.needs_fabric)
        shape = self._shapes.get(key)
        if shape is None:
            pools = job.pools or tuple(self._situation.policies.pools)
            shape = self._shapes[key] = Shape(job.worker_resources, pools, job)
        return shape

    def own_of(self, job: JobDemand) -> list[Bin]:
        """What was bought for the job and has no work yet."""
        return self._own.get(job.id, [])

    def open(self, job: JobDemand, *, unused: bool) -> None:
        """The job has had its turn: what it uses of its own nodes is open to others, and the `unused` ones too."""
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

    def find(self, job: JobDemand, shape: Shape, workers: int) -> list[tuple[Bin, int]]:
        """Room for up to so many workers: on nodes that were bought for the job, then on those open to everybody."""
        found: list[tuple[Bin, int]] = []
        for bin_ in self.own_of(job):
            if (
                workers > 0
                and suits(job, shape.pools, bin_)
                and (count := slots(bin_.free, shape.worker)) > 0
            ):
                found.append((bin_, min(count, workers)))
                workers -= found[-1][1]
        taken = {id(bin_) for bin_, _ in found}
        self._find_free(shape, workers, taken, found)
        return found

    def _find_free(self, shape: Shape, workers: int, taken: set[int], found: list[tuple[Bin, int]]) -> None:
        for tier, bins in zip(shape.tiers, (self._worked, self._unused), strict=True):
            _look_through(shape, tier, bins)
            at = tier.start
            while workers > 0 and at < len(tier.bins):
                bin_ = tier.bins[at]
                count = slots(bin_.free, shape.worker)
                if count == 0 and at == tier.start:
                    tier.start += 1
                elif count > 0 and id(bin_) not in taken:
                    found.append((bin_, min(count, workers)))
                    workers -= found[-1][1]
                at += 1

    def find_kept(self, job: JobDemand, shape: Shape, workers: int) -> list[tuple[Bin, int]]:
        """Room on nodes that were bought for others who had no turn yet: the last resort."""
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


def _look_through(shape: Shape, tier: Tier, bins: list[Bin]) -> None:
    """Take bins that came since into the shape's own list; the pool that is asked for first comes first."""
    if tier.seen == len(bins):
        return
    new = [bin_ for bin_ in bins[tier.seen :] if suits(shape.example, shape.pools, bin_)]
    if tier.seen == 0 and len(shape.pools) > 1:
        preference = {name: at for at, name in enumerate(shape.pools)}
        new.sort(key=lambda bin_: preference[bin_.pool])
    tier.bins.extend(new)
    tier.seen = len(bins)


def suits(job: JobDemand, pools: tuple[str, ...], bin_: Bin) -> bool:
    """The job may be put there, as far as its wishes go; whether there is room is another question."""
    return bin_.pool in pools and job.placement.allows(bin_.pool, bin_.zone, bin_.capacity)

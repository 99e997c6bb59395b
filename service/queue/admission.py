"""Decides which waiting jobs start now, and why the others wait (pure).

A job starts when its smallest worker group fits on free resources.  What an attempt may grow to is kept for it, because
elastic groups grow into free nodes and are not shrunk for others.  The queue order is strict: no job overtakes one that
could start once nodes come or others end, so that large jobs are not starved.  A job that can never fit, or whose
project's quota keeps it from starting, does not block the jobs behind it.

A job that asks for InfiniBand is bound to one fabric domain when it starts, and grows nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule
from cluster.scheduling.fitting import most_workers, slots
from remora.spec.worker_sizes import WorkerSizes
from service.queue.domains import Allocation, allocate_in_domain
from service.queue.ordering import WAITS_FOR_NODES, WAITS_FOR_TURN
from service.queue.quotas import Counting, Quotas
from service.queue.ready_nodes import ReadyNode, Resources, place_group, without
from service.queue.rows import JobRow


@dataclass(frozen=True)
class Claim:
    """What an attempt holds or may grow to: a worker group of these sizes and resources."""

    sizes: WorkerSizes
    resources: Resources
    placement: Placement = ANYWHERE
    job_id: str = ""
    #: Those of its workers that are there, by node id.
    at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolSize:
    """How many nodes of which resources a pool has when it is complete."""

    name: str
    size: int
    resources: Resources
    #: Where it may have nodes, and of which capacity types; empty: not known, and taken for whatever is asked for.
    zones: tuple[str, ...] = ()
    capacities: tuple[CapacityType, ...] = ()
    #: What it may buy; None: not known, and its nodes are taken to have its `resources`.
    sold: tuple[Offering, ...] | None = None
    #: What it buys of sizes that InfiniBand can join.
    with_fabric: tuple[Offering, ...] = ()

    def may_hold(self, job: Placement) -> bool:
        """The job accepts some of its nodes."""
        if job.needs_fabric:
            return bool(self.joined_for(job))
        return (
            (not job.pools or self.name in job.pools)
            and (not job.zones or not self.zones or not set(job.zones).isdisjoint(self.zones))
            and (not self.capacities or any(job.takes(one) for one in self.capacities))
        )

    def joined_for(self, job: Placement) -> list[Offering]:
        """What it buys that InfiniBand can join and that the job accepts."""
        return [one for one in self.with_fabric if job.allows(self.name, one.zone, one.capacity)]


#: Of a job for which no placement is looked for.
_NO_ALLOCATION = Allocation(0, [])


@dataclass(frozen=True)
class Wait:
    """A job that does not start now, and why."""

    job_id: str
    #: `waiting_for_nodes`, `waiting_for_turn` or `waiting_for_quota`.
    reason: str
    message: str
    #: No pool, or no quota, could ever hold it.
    is_hopeless: bool = False


@dataclass(frozen=True)
class Admission:
    """The decision about a whole queue."""

    starts: tuple[str, ...]
    waits: tuple[Wait, ...]
    #: Fabric domains to which jobs that start are bound, by job id; without those that asked for none.
    fabrics: Mapping[str, str] = field(default_factory=dict)
    #: Those of the starts that are bound to on-demand nodes, as their deadline is near.
    on_demand: frozenset[str] = frozenset()


def admit(
    queue: Sequence[JobRow],
    claims: Iterable[Claim],
    nodes: Sequence[ReadyNode],
    pools: Sequence[PoolSize],
    *,
    quotas: Quotas | None = None,
    off_spot: Container[str] = (),
    kept: Mapping[str, str] = MappingProxyType({}),
    tells_jobs: bool = True,
) -> Admission:
    """Decide about `queue`, which is in queue order and holds only jobs that may start now.

    Those in `off_spot` start on nodes that the cloud does not take back, by id: their deadline is near.
    `kept` says by node id for which job a node is kept (`cluster.scheduling.keeping`): no other claim grows onto it.
    With `tells_jobs` false the reasons why the others wait are left out, as no one reads them.
    """
    free = _free_beside(claims, nodes, kept)
    starts: list[str] = []
    fabrics: dict[str, str] = {}
    on_demand: set[str] = set()
    waits: list[Wait] = []
    counting = Counting(quotas, (node.bought_for for node in nodes))
    ahead = 0
    for job in queue:
        placement = job.placement
        safe = replace(placement, capacity=CapacityRule.ON_DEMAND) if job.id in off_spot else placement
        allowed = _allowed(nodes, safe)
        # Behind a job that waits nothing starts, so that whether it fits now matters only where no pool can hold it.
        never = _never(job, placement, pools) if ahead else None
        allocation, fits = _NO_ALLOCATION, False
        if not ahead or never is not None:
            allocation = _allocate_beside_kept(kept, job, placement, nodes, free, allowed)
            fits = allocation.workers >= job.sizes.min
        # Nodes that are there may be larger than what is bought now.
        if not ahead and not fits:
            never = _never(job, placement, pools)
        if not fits and never is not None:
            waits.append(Wait(job.id, "waiting_for_nodes", never, is_hopeless=True))
            continue
        if (never := counting.never(job)) is not None:
            waits.append(Wait(job.id, "waiting_for_quota", never, is_hopeless=True))
            continue
        if (refusal := counting.refusal(job)) is not None:
            waits.append(Wait(job.id, "waiting_for_quota", refusal))
            continue
        if ahead == 0 and fits:
            starts.append(job.id)
            if safe is not placement:
                on_demand.add(job.id)
            if allocation.fabric is not None:
                fabrics[job.id] = allocation.fabric
            counting.start(job)
            free = allocation.free_after
            continue
        if (why := counting.why_no_nodes(job)) is not None:
            waits.append(Wait(job.id, "waiting_for_quota", why))
            continue
        if not tells_jobs:
            break  # no job starts behind one that waits
        waits.append(_wait(job, safe, ahead, nodes, allowed, allocation.workers))
        ahead += 1
    return Admission(tuple(starts), tuple(waits), fabrics, frozenset(on_demand))


def blocked_owners(
    queue: Iterable[JobRow], owners: Collection[str], pools: Sequence[PoolSize], quotas: Quotas | None
) -> frozenset[str]:
    """Those of the owners, by id, that could not start now on any node; `queue` is in queue order.

    No pool could ever hold them, or their project's quota keeps them from starting, if no other job starts before.
    Owners are jobs that nodes were bought for.
    """
    counting = Counting(quotas, owners)
    found: set[str] = set()
    for job in queue:
        # All are asked about, as a job that waits for a quota holds up those of its project that are behind it.
        is_refused = quotas is not None and (counting.never(job) or counting.refusal(job)) is not None
        if job.id in owners and (is_refused or _never(job, job.placement, pools) is not None):
            found.add(job.id)
    return frozenset(found)


def _free_beside(
    claims: Iterable[Claim], nodes: Sequence[ReadyNode], kept: Mapping[str, str]
) -> list[Resources]:
    """What is free on each node beside the claims: first their workers, then what they may grow to."""
    free: list[Resources] = [node.resources for node in nodes]
    index = {node.node_id: at for at, node in enumerate(nodes)}
    growing: list[tuple[Claim, int]] = []
    # Workers where they are, before what the groups may grow to.
    for claim in claims:
        here = {index[node_id]: count for node_id, count in claim.at.items() if node_id in index}
        for at, count in here.items():
            free[at] = without(free[at], count, claim.resources)
        growing.append((claim, sum(here.values())))
    for claim, held in growing:
        held, allowed = min(held, claim.sizes.max), _allowed(nodes, claim.placement)
        others = _available_to(kept, claim.job_id, nodes, allowed)
        found, after = place_group(free, claim.sizes, claim.resources, others, held)
        if held + found < claim.sizes.min and others is not allowed:
            # It starts, and takes what it finds.
            _, after = place_group(free, claim.sizes, claim.resources, allowed, held)
        free = after
    return free


def _available_to(
    kept: Mapping[str, str], job_id: str, nodes: Sequence[ReadyNode], allowed: Sequence[bool] | None
) -> Sequence[bool] | None:
    """The allowed nodes without those that are kept for other jobs."""
    if not kept:
        return allowed
    mine = [kept.get(node.node_id, job_id) == job_id for node in nodes]
    return mine if allowed is None else [one and other for one, other in zip(mine, allowed, strict=True)]


def _allocate_beside_kept(
    kept: Mapping[str, str],
    job: JobRow,
    placement: Placement,
    nodes: Sequence[ReadyNode],
    free: list[Resources],
    allowed: Sequence[bool] | None,
) -> Allocation:
    """Place a worker group of the job; on nodes that are kept for others only where it does not fit elsewhere.

    Else two jobs that wait for nodes that are kept for each other would never start.
    """
    others = _available_to(kept, job.id, nodes, allowed)
    allocation = _allocate(job, job.sizes, placement, nodes, free, others)
    if allocation.workers >= job.sizes.min or others is allowed:
        return allocation
    return _allocate(job, job.sizes, placement, nodes, free, allowed)


def _allowed(nodes: Sequence[ReadyNode], placement: Placement) -> list[bool] | None:
    """Which nodes the placement allows; None where it allows all."""
    if placement.is_anywhere:
        return None
    return [
        placement.allows(node.pool, node.zone, node.capacity) and placement.reaches(node.fabric)
        for node in nodes
    ]


def _allocate(
    job: JobRow,
    sizes: WorkerSizes,
    placement: Placement,
    nodes: Sequence[ReadyNode],
    free: list[Resources],
    allowed: Sequence[bool] | None,
) -> Allocation:
    """Place a worker group of the job of one of these sizes."""
    if allowed is None or not placement.needs_fabric:
        return Allocation(*place_group(free, sizes, job.worker_resources, allowed))
    places = [at for at, is_allowed in enumerate(allowed) if is_allowed]
    return allocate_in_domain(job, sizes, nodes, free, places)


def _wait(
    job: JobRow,
    placement: Placement,
    ahead: int,
    nodes: Sequence[ReadyNode],
    allowed: Sequence[bool] | None,
    found: int,
) -> Wait:
    if ahead:
        # How many are ahead changes with every start: it is counted when the message is read.
        return Wait(job.id, "waiting_for_turn", WAITS_FOR_TURN)
    everything = [node.resources for node in nodes]
    together = _together(placement)
    least = WorkerSizes(job.sizes.min, job.sizes.min)
    possible = _allocate(job, least, placement, nodes, everything, allowed).workers
    if possible < least.min:
        count = len(nodes) if allowed is None else sum(allowed)
        ready = " ".join(word for word in (f"the {count} ready nodes", placement.in_words()) if word)
        message = f"{WAITS_FOR_NODES} it needs {_group(job)}{together} and {ready} have room for {possible}"
        return Wait(job.id, "waiting_for_nodes", message)
    message = f"is next: it needs {_group(job)}{together} and other jobs leave room for {found}"
    return Wait(job.id, "waiting_for_turn", message)


def _together(placement: Placement) -> str:
    return " in one fabric domain" if placement.needs_fabric else ""


def _never(job: JobRow, placement: Placement, pools: Sequence[PoolSize]) -> str | None:
    """Why the job could not start even if every pool were complete and empty, or None."""
    worker = job.worker_resources
    if refusal := _nowhere(placement, pools):
        return refusal
    most = _most(worker, placement, pools)
    if most >= job.sizes.min:
        return None
    if most == 0:
        joined = "that InfiniBand joins " if placement.needs_fabric else ""
        return (
            f"no node of the pools {joined}has {describe(worker)} for a worker: "
            "ask for less in `resources`, or add larger nodes"
        )
    return (
        f"it needs {_group(job)}{_together(placement)} and the complete pools have room for {most}: "
        "lower `workers.min` or `resources`, or add nodes"
    )


def _most(worker: Resources, placement: Placement, pools: Sequence[PoolSize]) -> int:
    """Workers that fit in the pools when they are complete and empty."""
    if not placement.needs_fabric:
        return sum(_most_in(pool, worker, placement) for pool in pools if pool.may_hold(placement))
    # A fabric domain lies in one pool.
    return max(most_workers(pool.joined_for(placement), pool.size, worker, in_domain=True) for pool in pools)


def _most_in(pool: PoolSize, worker: Resources, placement: Placement) -> int:
    if pool.sold is None:
        return pool.size * slots(pool.resources, worker)
    sold = [one for one in pool.sold if placement.allows(pool.name, one.zone, one.capacity)]
    return most_workers(sold, pool.size, worker)


def _nowhere(placement: Placement, pools: Sequence[PoolSize]) -> str | None:
    """Why no pool has nodes that the job accepts, whatever their resources, or None."""
    if placement.is_anywhere or any(pool.may_hold(placement) for pool in pools):
        return None
    names = ", ".join(pool.name for pool in pools) or "none"
    unknown = [name for name in placement.pools if name not in {pool.name for pool in pools}]
    if placement.pools and len(unknown) == len(placement.pools):
        return f"there is no pool {' or '.join(unknown)}: change `placement.pools`; the pools are {names}"
    if placement.needs_fabric and not any(pool.with_fabric for pool in pools):
        return (
            "no pool buys machines that InfiniBand joins: leave `placement.fabric` out, or have a size with InfiniBand"
            f" added to a pool; the pools are {names}"
        )
    return f"no pool has nodes {placement.in_words()}: change `placement`; the pools are {names}"


def _group(job: JobRow) -> str:
    least = job.sizes.min
    workers = "1 worker" if least == 1 else f"{least} workers"
    return f"{workers} of {describe(job.worker_resources)}"


def describe(resources: Resources) -> str:
    """The resources for people: `2 CPU, 1 GPU, 4.0 GiB memory`."""
    parts = []
    for name, amount in sorted(resources.items()):
        if amount <= 0:
            continue
        parts.append(f"{amount / 2**30:.1f} GiB memory" if name == "memory" else f"{amount:g} {name}")
    return ", ".join(parts) or "nothing"

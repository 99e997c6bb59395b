"""Which waiting jobs start now, and what the others are told.

A job starts when its smallest worker group fits on what is free.  What an attempt may grow to is kept for it, because
elastic groups grow into free nodes and are not shrunk for others.  Turns are strict: nobody overtakes a job that could
start once nodes come or others end, so that large jobs are not starved; a job that can never fit stops nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.offerings import CapacityType
from cluster.placement import ANYWHERE, Placement
from service.queue.demand import placement_of
from service.queue.rows import JobRow

Resources = Mapping[str, float]

#: Stands for an amount that nobody knows yet.
UNKNOWN = 2.0**62


@dataclass(frozen=True)
class Room:
    """A ready node and all the resources that it brings."""

    node_id: str
    pool: str
    resources: Resources
    #: None: not known.
    zone: str | None = None
    capacity: CapacityType | None = None


@dataclass(frozen=True)
class Claim:
    """What an attempt holds or may grow to: so many workers of these resources."""

    workers: int
    resources: Resources
    placement: Placement = ANYWHERE
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

    def may_hold(self, job: Placement) -> bool:
        """Some of its nodes are such as the job accepts."""
        return (
            (not job.pools or self.name in job.pools)
            and (not job.zones or not self.zones or not set(job.zones).isdisjoint(self.zones))
            and (not self.capacities or any(job.takes(one) for one in self.capacities))
        )


@dataclass(frozen=True)
class Wait:
    """A job that does not start now, with what its owner is told."""

    job_id: str
    #: `waiting_for_nodes` or `waiting_for_turn`.
    reason: str
    message: str
    #: Its message says all: no pool could ever hold it.
    is_hopeless: bool = False


@dataclass(frozen=True)
class Admission:
    """The decision about a whole queue."""

    starts: tuple[str, ...]
    waits: tuple[Wait, ...]


def fits(free: Resources, worker: Resources) -> int:
    """How many such workers the free resources carry."""
    least = math.inf
    for name, amount in worker.items():
        if amount > 0:
            count = free.get(name, 0.0) / amount + 1e-9
            if count < 1:
                return 0
            least = min(least, count)
    return math.floor(least) if least < math.inf else 0


def place(
    nodes: Sequence[Resources], workers: int, worker: Resources, allowed: Sequence[bool] | None = None
) -> tuple[int, list[Resources]]:
    """Put up to `workers` on the allowed ones of the nodes: how many found room, and what is free afterwards."""
    left = workers
    after = list(nodes)
    for at, node in enumerate(nodes):
        if left <= 0:
            break
        if allowed is not None and not allowed[at]:
            continue
        count = min(left, fits(node, worker))
        if count > 0:
            left -= count
            after[at] = _without(node, count, worker)
    return workers - left, after


def admit(
    queue: Sequence[JobRow],
    claims: Iterable[Claim],
    rooms: Sequence[Room],
    pools: Sequence[PoolSize],
    *,
    tells_jobs: bool = True,
) -> Admission:
    """Decide about `queue`, which is in order of turns and holds only jobs that may start now.

    With `tells_jobs` false nobody is going to read why the others wait, so that it is left out.
    """
    everything: list[Resources] = [room.resources for room in rooms]
    free = _beside(claims, rooms)
    starts: list[str] = []
    waits: list[Wait] = []
    ahead = 0
    for job in queue:
        never = _never(job, rooms, pools)
        if never is not None:
            waits.append(Wait(job.id, "waiting_for_nodes", never, is_hopeless=True))
            continue
        allowed = _allowed(rooms, placement_of(job.spec))
        found, after = place(free, job.max_workers, job.worker_resources, allowed)
        if ahead == 0 and found >= job.min_workers:
            starts.append(job.id)
            free = after
            continue
        if not tells_jobs:
            break  # nobody starts behind a job that waits
        waits.append(_wait(job, ahead, everything, allowed, found))
        ahead += 1
    return Admission(tuple(starts), tuple(waits))


def _beside(claims: Iterable[Claim], rooms: Sequence[Room]) -> list[Resources]:
    """What is free on each node beside the claims: their workers where they are, then what they may grow to."""
    free: list[Resources] = [room.resources for room in rooms]
    index = {room.node_id: at for at, room in enumerate(rooms)}
    growing: list[tuple[Claim, int]] = []
    for claim in claims:
        here = {index[node_id]: count for node_id, count in claim.at.items() if node_id in index}
        for at, count in here.items():
            free[at] = _without(free[at], count, claim.resources)
        growing.append((claim, claim.workers - sum(here.values())))
    for claim, workers in growing:
        _, free = place(free, workers, claim.resources, _allowed(rooms, claim.placement))
    return free


def _without(node: Resources, workers: int, worker: Resources) -> Resources:
    return {name: amount - workers * worker.get(name, 0.0) for name, amount in node.items()}


def _allowed(rooms: Sequence[Room], placement: Placement) -> list[bool] | None:
    """Which nodes are such as the placement asks for; None where it asks for nothing."""
    if placement == ANYWHERE:
        return None
    return [placement.allows(room.pool, room.zone, room.capacity) for room in rooms]


def _wait(
    job: JobRow, ahead: int, everything: Sequence[Resources], allowed: Sequence[bool] | None, found: int
) -> Wait:
    if ahead:
        jobs = "1 job is" if ahead == 1 else f"{ahead} jobs are"
        return Wait(job.id, "waiting_for_turn", f"waits for its turn: {jobs} ahead of it")
    possible, _ = place(everything, job.min_workers, job.worker_resources, allowed)
    if possible < job.min_workers:
        ready = f"{_ready(job, everything, allowed)} have room for {possible}"
        message = f"waits for nodes: it needs {_group(job)} and {ready}"
        return Wait(job.id, "waiting_for_nodes", message)
    message = f"is next: it needs {_group(job)} and other jobs leave room for {found}"
    return Wait(job.id, "waiting_for_turn", message)


def _never(job: JobRow, rooms: Sequence[Room], pools: Sequence[PoolSize]) -> str | None:
    """Why the job could not start even if every pool were complete and empty, or None."""
    worker, placement = job.worker_resources, placement_of(job.spec)
    if refusal := _nowhere(placement, pools):
        return refusal
    most = 0
    for pool in pools:
        if pool.may_hold(placement):
            most += pool.size * fits(_complete(pool, rooms, worker), worker)
    if most >= job.min_workers:
        return None
    if most == 0:
        wanted = describe(worker)
        return f"no node of the pools has {wanted} for a worker: ask for less in `resources`, or add larger nodes"
    return (
        f"it needs {_group(job)} and the complete pools have room for {most}: "
        "lower `workers.min` or `resources`, or add nodes"
    )


def _nowhere(placement: Placement, pools: Sequence[PoolSize]) -> str | None:
    """Why no pool has such nodes as the job accepts, whatever their resources, or None."""
    if placement == ANYWHERE or any(pool.may_hold(placement) for pool in pools):
        return None
    names = ", ".join(pool.name for pool in pools) or "none"
    unknown = [name for name in placement.pools if name not in {pool.name for pool in pools}]
    if placement.pools and len(unknown) == len(placement.pools):
        return f"there is no pool {' or '.join(unknown)}: change `placement.pools`; the pools are {names}"
    return f"no pool has nodes of {placement.in_words()}: change `placement`; the pools are {names}"


def _ready(job: JobRow, everything: Sequence[Resources], allowed: Sequence[bool] | None) -> str:
    if allowed is None:
        return f"the {len(everything)} ready nodes"
    return f"the {sum(allowed)} ready nodes of {placement_of(job.spec).in_words()}"


def _complete(pool: PoolSize, rooms: Sequence[Room], worker: Resources) -> dict[str, float]:
    """What a node of the pool brings; what the pool does not announce is known from its ready nodes only."""
    known = dict(pool.resources)
    for name in worker:
        if name not in known:
            seen = [room.resources.get(name, 0.0) for room in rooms if room.pool == pool.name]
            # Ray measures memory by itself, so before the first node is there nobody knows how much it has.
            known[name] = max(seen) if seen else (UNKNOWN if name == "memory" else 0.0)
    return known


def _group(job: JobRow) -> str:
    workers = "1 worker" if job.min_workers == 1 else f"{job.min_workers} workers"
    return f"{workers} of {describe(job.worker_resources)}"


def describe(resources: Resources) -> str:
    """The resources for people: `2 CPU, 1 GPU, 4.0 GiB memory`."""
    parts = []
    for name, amount in sorted(resources.items()):
        if amount <= 0:
            continue
        parts.append(f"{amount / 2**30:.1f} GiB memory" if name == "memory" else f"{amount:g} {name}")
    return ", ".join(parts) or "nothing"

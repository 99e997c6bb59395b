"""How many workers fit on a node, and on all nodes that a pool may have (pure).

Planner, queue and replay call the same functions, so that nothing is bought for a job that can never start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from cluster.policies.offerings import Offering

Resources = Mapping[str, float]

#: Begins the name of a resource that every node has once for each job, and that Ray does not know: a job with
#: `workers_per_node` has workers that hold that part of it which is theirs.
NODE_SHARE = "node share of "
#: Nodes that one fabric domain holds at most: a placement group of the cloud ends there.
FABRIC_NODES = 100


class Showing(Protocol):
    """A node that reports its resources."""

    @property
    def offering(self) -> str:
        """`Offering.id` of what it was bought as; empty when that is not known."""
        ...

    @property
    def resources(self) -> Resources:
        """Ray resources that it brings."""
        ...


def at_most(worker: Resources, job_id: str, per_node: int) -> Resources:
    """Resources of a worker of which one node holds at most `per_node` of the same job."""
    return {**worker, f"{NODE_SHARE}{job_id}": 1.0 / per_node}


def shares_in(worker: Resources) -> Resources:
    """The part of a worker's resources that Ray does not know, and does not count on nodes."""
    return {name: amount for name, amount in worker.items() if name.startswith(NODE_SHARE)}


def take(free: dict[str, float], worker: Resources, count: int) -> None:
    """Subtract what this many workers hold from what is free on a node, where it has that; a negative number adds."""
    for name, amount in worker.items():
        if name in free or name.startswith(NODE_SHARE):
            free[name] = free.get(name, 1.0) - count * amount


def slots(free: Resources, worker: Resources) -> int:
    """How many such workers fit into the free resources.

    Memory that is not known is no limit: Ray measures it once the node has joined, and `as_shown` keeps it.
    """
    least = 0
    for name, amount in worker.items():
        if amount > 0:
            have = free.get(name)
            if have is None:
                if name == "memory":
                    continue
                if not name.startswith(NODE_SHARE):
                    return 0
                have = 1.0
            count = int(have / amount + 1e-9)
            if count <= 0:
                return 0
            # Called for every job and node: a comparison takes a third of the time of min().
            if count < least or not least:
                least = count
    return least


def dominant_part(whole: Resources, worker: Resources, workers: int) -> float | None:
    """Part of `whole` that `workers` workers of these resources hold; None where it has nothing that they use.

    The dominant share of Ghodsi et al., Dominant Resource Fairness (NSDI 2011): of all resources the one of which they
    hold the largest part.
    """
    parts = [
        workers * amount / whole[name]
        for name, amount in worker.items()
        if amount > 0 and whole.get(name, 0.0) > 0
    ]
    return max(parts, default=None)


def most_workers(sold: Iterable[Offering], nodes: int, worker: Resources, *, in_domain: bool = False) -> int:
    """Most workers that fit on this many empty nodes of the offerings; `in_domain`: within one fabric domain."""
    per_node = max((slots(one.resources, worker) for one in sold), default=0)
    return per_node * (min(nodes, FABRIC_NODES) if in_domain else nodes)


def as_shown(offerings: Iterable[Offering], nodes: Iterable[Showing]) -> tuple[Offering, ...]:
    """The offerings with at most the memory that nodes of their sizes reported, and with that where it was not known.

    Otherwise a size that turns out to be too small for a worker would be bought for it again and again.
    """
    shown: dict[str, float] = {}
    for node in nodes:
        memory = node.resources.get("memory")
        if memory is not None and node.offering:
            size = node.offering.partition("/")[0]
            shown[size] = min(memory, shown.get(size, memory))
    return tuple(_with_memory(one, shown.get(one.size)) for one in offerings)


def _with_memory(offering: Offering, shown: float | None) -> Offering:
    if shown is None or offering.resources.get("memory", shown + 1.0) <= shown:
        return offering
    return replace(offering, resources={**offering.resources, "memory": shown})

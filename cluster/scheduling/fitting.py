"""How many workers find room on a node, and on all nodes that a pool may have (pure).

Planner, queue and replay ask the same functions, so that nothing is bought for what can never start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from cluster.policies.offerings import Offering

Resources = Mapping[str, float]

#: Nodes that one fabric domain holds at most: a placement group of the cloud ends there.
FABRIC_NODES = 100


class Showing(Protocol):
    """A node that says what it brings."""

    @property
    def offering(self) -> str:
        """`Offering.id` of what it was bought as; empty when that is not known."""
        ...

    @property
    def resources(self) -> Resources:
        """Ray resources that it brings."""
        ...


def slots(free: Resources, worker: Resources) -> int:
    """How many such workers the free resources carry.

    Memory that nobody has announced is no limit: Ray measures it once the node is there, and `as_shown` keeps it.
    """
    least = 0
    for name, amount in worker.items():
        if amount > 0:
            have = free.get(name)
            if have is None:
                if name == "memory":
                    continue
                return 0
            count = int(have / amount + 1e-9)
            if count <= 0:
                return 0
            # Asked for every job and node: a comparison is a third of a call of min().
            if count < least or not least:
                least = count
    return least


def most_workers(sold: Iterable[Offering], nodes: int, worker: Resources, *, in_domain: bool = False) -> int:
    """Workers for which so many nodes have room, all of them of what is sold, complete and empty."""
    per_node = max((slots(one.resources, worker) for one in sold), default=0)
    return per_node * (min(nodes, FABRIC_NODES) if in_domain else nodes)


def as_shown(offerings: Iterable[Offering], nodes: Iterable[Showing]) -> tuple[Offering, ...]:
    """The offerings with no more memory than nodes of their sizes have shown, and with that where it was not known.

    Else a size that turns out to be too small for a worker would be bought for it again and again.
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

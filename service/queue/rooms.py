"""Ready nodes, and how many workers find room on what is free of them (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster.offerings import CapacityType

Resources = Mapping[str, float]


class Room(NamedTuple):
    """A ready node and all the resources that it brings; as cheap to make as a value can be, for replays."""

    node_id: str
    pool: str
    resources: Resources
    #: None: not known.
    zone: str | None = None
    capacity: CapacityType | None = None
    #: Fabric domain that it is in; None: no InfiniBand joins it to others.
    fabric: str | None = None
    #: The job that it was bought for.
    bought_for: str | None = None


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
            after[at] = without(node, count, worker)
    return workers - left, after


def without(node: Resources, workers: int, worker: Resources) -> Resources:
    """What is left of a node beside so many workers."""
    return {name: amount - workers * worker.get(name, 0.0) for name, amount in node.items()}

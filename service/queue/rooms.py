"""Ready nodes, and how many workers find room on what is free of them (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster.policies.offerings import CapacityType
from cluster.scheduling.fitting import slots
from remora.spec.worker_sizes import WorkerSizes

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
        count = min(left, slots(node, worker))
        if count > 0:
            left -= count
            after[at] = without(node, count, worker)
    return workers - left, after


def place_group(
    nodes: Sequence[Resources],
    sizes: WorkerSizes,
    worker: Resources,
    allowed: Sequence[bool] | None = None,
    held: int = 0,
) -> tuple[int, list[Resources]]:
    """The same for a worker group that has `held` workers elsewhere: as many beside them as a possible size takes.

    Where there is no room for its smallest size, what there is counts, so that one can say how much is missing.
    """
    found, after = place(nodes, sizes.max - held, worker, allowed)
    size = sizes.fit(held + found)
    if 0 < size < held + found:
        return place(nodes, max(0, size - held), worker, allowed)
    return found, after


def without(node: Resources, workers: int, worker: Resources) -> Resources:
    """What is left of a node beside so many workers."""
    return {name: amount - workers * worker.get(name, 0.0) for name, amount in node.items()}

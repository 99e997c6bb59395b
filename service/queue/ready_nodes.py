"""Ready nodes, and how many workers fit on their free resources (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster.policies.offerings import CapacityType
from cluster.scheduling.fitting import slots
from remora.spec.worker_sizes import WorkerSizes

Resources = Mapping[str, float]


class ReadyNode(NamedTuple):
    """A ready node and all of its resources; a named tuple, because replays create many of them."""

    node_id: str
    pool: str
    resources: Resources
    #: None: not known.
    zone: str | None = None
    capacity: CapacityType | None = None
    #: Its fabric domain; None: no InfiniBand joins it to others.
    fabric: str | None = None
    #: The job that it was bought for.
    bought_for: str | None = None


def place(
    nodes: Sequence[Resources], workers: int, worker: Resources, allowed: Sequence[bool] | None = None
) -> tuple[int, list[Resources]]:
    """Place up to `workers` on the allowed nodes; returns how many fit, and what is free on each node afterwards."""
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
    """Place a worker group that has `held` workers elsewhere: as many more as make up one of its possible sizes.

    Where its smallest size does not fit, the workers that fit are counted, so that messages say how many are missing.
    """
    found, after = place(nodes, sizes.max - held, worker, allowed)
    size = sizes.fit(held + found)
    if 0 < size < held + found:
        return place(nodes, max(0, size - held), worker, allowed)
    return found, after


def without(node: Resources, workers: int, worker: Resources) -> Resources:
    """What is free on a node beside `workers` workers."""
    return {name: amount - workers * worker.get(name, 0.0) for name, amount in node.items()}

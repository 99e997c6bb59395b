"""Places worker groups on the free resources of nodes, in the order of the nodes or in one fabric domain (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.fitting import Resources, slots
from cluster.scheduling.view import JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes

#: More workers than fit in any domain.
_ALL = 2**40


@dataclass(frozen=True)
class Allocation:
    """Where workers of a job would be placed."""

    #: How many workers fit.
    workers: int
    #: What is free on every node afterwards.
    free_after: list[Resources]
    #: Their fabric domain; None: they are in none, or no domain fits one of them.
    fabric: str | None = None


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


def place_in_domain(
    job: JobDemand,
    sizes: WorkerSizes,
    nodes: Sequence[NodeView],
    free: Sequence[Resources],
    allowed: Collection[int],
) -> Allocation:
    """Place a worker group of one of these sizes in one fabric domain; `allowed` are indices of `nodes`.

    Of the domains that fit its smallest group: first those with nodes that were bought for it, then those that fit most
    of its workers, then the one that has least left over, so that large domains stay whole.
    """
    looked = [
        (*_rate(job, sizes, nodes, free, places), name, places)
        for name, places in _domains(nodes, allowed).items()
    ]
    if not looked:
        return Allocation(0, list(free))
    _, found, there, name, places = min(looked, key=lambda one: (one[0], one[3]))
    after = list(free)
    for at, left in zip(places, there, strict=True):
        after[at] = left
    return Allocation(found, after, name if found else None)


def _domains(nodes: Sequence[NodeView], allowed: Collection[int]) -> Mapping[str, list[int]]:
    """Indices of nodes by their domain."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at in allowed:
        name = nodes[at].fabric
        if name is not None:
            found[name].append(at)
    return found


def _rate(
    job: JobDemand,
    sizes: WorkerSizes,
    nodes: Sequence[NodeView],
    free: Sequence[Resources],
    places: Sequence[int],
) -> tuple[tuple[bool, bool, int, int], int, list[Resources]]:
    """How good the domain of these nodes is (least is best), how many workers fit, and what is free there then."""
    found, after = place_group([free[at] for at in places], sizes, job.worker_resources)
    over, _ = place(after, _ALL, job.worker_resources)
    is_enough = found >= sizes.min
    is_own = any(nodes[at].bought_for == job.id for at in places)
    return (not is_enough, is_enough and not is_own, -found, over), found, after

"""Places worker groups on the free resources of nodes, in the order of the nodes or in one fabric domain (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.scheduling.fitting import Resources, slots, take
from cluster.scheduling.view import JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes

#: More workers than fit in any domain.
_ALL = 2**40
#: Where workers fit: indices of nodes, in their order, with how many on each.
Places = list[tuple[int, int]]


@dataclass(frozen=True)
class Allocation:
    """Where workers of a job would be placed."""

    places: Places = field(default_factory=list)
    #: Their fabric domain; None: they are in none, or no domain fits one of them.
    fabric: str | None = None

    @property
    def workers(self) -> int:
        """How many workers fit."""
        return count_of(self.places)


def count_of(places: Places) -> int:
    """How many workers these are."""
    return sum(count for _, count in places)


def place(
    nodes: Sequence[Resources], workers: int, worker: Resources, allowed: Sequence[bool] | None = None
) -> Places:
    """Where up to `workers` fit on the allowed nodes, the first ones first; `nodes` is what is free on each."""
    places: Places = []
    for at, node in enumerate(nodes):
        if workers <= 0:
            break
        if allowed is not None and not allowed[at]:
            continue
        count = min(workers, slots(node, worker))
        if count > 0:
            workers -= count
            places.append((at, count))
    return places


def place_group(
    nodes: Sequence[Resources],
    sizes: WorkerSizes,
    worker: Resources,
    allowed: Sequence[bool] | None = None,
    held: int = 0,
) -> Places:
    """Where a worker group fits that has `held` workers elsewhere: as many more as make up one of its possible sizes.

    Where its smallest size does not fit, the workers that fit are counted, so that messages say how many are missing.
    """
    places = place(nodes, sizes.max - held, worker, allowed)
    could = held + count_of(places)
    size = sizes.fit(could)
    return place(nodes, max(0, size - held), worker, allowed) if 0 < size < could else places


def beside(nodes: Sequence[Resources], places: Places, worker: Resources) -> list[Resources]:
    """What is free on each node beside workers at these places."""
    after = list(nodes)
    for at, count in places:
        after[at] = without(after[at], count, worker)
    return after


def without(node: Resources, workers: int, worker: Resources) -> Resources:
    """What is free on a node beside `workers` workers."""
    left = dict(node)
    take(left, worker, workers)
    return left


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
        (*_rate(job, sizes, nodes, free, there), name) for name, there in _domains(nodes, allowed).items()
    ]
    if not looked:
        return Allocation()
    _, places, name = min(looked, key=lambda one: (one[0], one[2]))
    return Allocation(places, name if places else None)


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
    there: Sequence[int],
) -> tuple[tuple[bool, bool, int, int], Places]:
    """How good the domain of these nodes is (least is best), and where workers fit in it."""
    worker, free_there = job.worker_resources, [free[at] for at in there]
    places = place_group(free_there, sizes, worker)
    found, over = count_of(places), count_of(place(beside(free_there, places, worker), _ALL, worker))
    is_enough = found >= sizes.min
    is_own = any(nodes[at].bought_for == job.id for at in there)
    rate = (not is_enough, is_enough and not is_own, -found, over)
    return rate, [(there[at], count) for at, count in places]

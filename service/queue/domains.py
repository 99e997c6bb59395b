"""Chooses the fabric domain of a job whose workers all have to be in one (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.view import LEAVING
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.queue.ready_nodes import ReadyNode, Resources, place, place_group
from service.queue.rows import AttemptRow, JobRow, NodeRow

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


def allocate_in_domain(
    job: JobRow,
    sizes: WorkerSizes,
    nodes: Sequence[ReadyNode],
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


def _domains(nodes: Sequence[ReadyNode], allowed: Collection[int]) -> Mapping[str, list[int]]:
    """Indices of nodes by their domain."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at in allowed:
        name = nodes[at].fabric
        if name is not None:
            found[name].append(at)
    return found


def _rate(
    job: JobRow,
    sizes: WorkerSizes,
    nodes: Sequence[ReadyNode],
    free: Sequence[Resources],
    places: Sequence[int],
) -> tuple[tuple[bool, bool, int, int], int, list[Resources]]:
    """How good the domain of these nodes is (least is best), how many workers fit, and what is free there then."""
    found, after = place_group([free[at] for at in places], sizes, job.worker_resources)
    over, _ = place(after, _ALL, job.worker_resources)
    is_enough = found >= sizes.min
    is_own = any(nodes[at].bought_for == job.id for at in places)
    return (not is_enough, is_enough and not is_own, -found, over), found, after


def is_lost(attempt: AttemptRow, nodes: Iterable[NodeRow]) -> bool:
    """The attempt is bound to a fabric domain in which it cannot have workers any more.

    No node of it stays or is starting, and none of the attempt's workers is on one that is draining.
    """
    if attempt.fabric is None:
        return False
    return not any(
        node.state not in LEAVING or (node.state is NodeState.DRAINING and node.address in attempt.workers)
        for node in nodes
        if node.fabric == attempt.fabric and node.ended_at is None
    )

"""Which fabric domain a job's workers go to, where all of them have to be in one (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.view import LEAVING
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.queue.rooms import Resources, Room, place, place_group
from service.queue.rows import AttemptRow, JobRow, NodeRow

#: More workers than any domain has room for.
_ALL = 2**40


@dataclass(frozen=True)
class Seats:
    """Room for workers of a job."""

    workers: int
    #: What is free on every node afterwards.
    after: list[Resources]
    #: The fabric domain that they are in; None: in none, or none has room for one of them.
    fabric: str | None = None


def seats_in_a_domain(
    job: JobRow,
    sizes: WorkerSizes,
    rooms: Sequence[Room],
    free: Sequence[Resources],
    allowed: Collection[int],
) -> Seats:
    """Room for a worker group of the job of one of these sizes in one fabric domain; `allowed` are places in `rooms`.

    Of the domains that hold its smallest group: those with nodes that were bought for it, then those with room for
    most of its workers, then the one of which least is left over, so that large domains stay whole.
    """
    looked = [
        (*_look(job, sizes, rooms, free, places), name, places)
        for name, places in _domains(rooms, allowed).items()
    ]
    if not looked:
        return Seats(0, list(free))
    _, found, there, name, places = min(looked, key=lambda one: (one[0], one[3]))
    after = list(free)
    for at, left in zip(places, there, strict=True):
        after[at] = left
    return Seats(found, after, name if found else None)


def _domains(rooms: Sequence[Room], allowed: Collection[int]) -> Mapping[str, list[int]]:
    """Places of nodes by their domain."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at in allowed:
        name = rooms[at].fabric
        if name is not None:
            found[name].append(at)
    return found


def _look(
    job: JobRow, sizes: WorkerSizes, rooms: Sequence[Room], free: Sequence[Resources], places: Sequence[int]
) -> tuple[tuple[bool, bool, int, int], int, list[Resources]]:
    """How good the domain at these places is (the least is the best), its workers, and what is free there then."""
    found, after = place_group([free[at] for at in places], sizes, job.worker_resources)
    over, _ = place(after, _ALL, job.worker_resources)
    is_enough = found >= sizes.min
    is_own = any(rooms[at].bought_for == job.id for at in places)
    return (not is_enough, is_enough and not is_own, -found, over), found, after


def is_lost(attempt: AttemptRow, nodes: Iterable[NodeRow]) -> bool:
    """The attempt is bound to a fabric domain that has nothing for it any more.

    No node of it stays or comes, and none of the attempt's workers is on one that still goes.
    """
    if attempt.fabric is None:
        return False
    return not any(
        node.state not in LEAVING or (node.state is NodeState.DRAINING and node.address in attempt.workers)
        for node in nodes
        if node.fabric == attempt.fabric and node.ended_at is None
    )

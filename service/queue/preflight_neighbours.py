"""With which neighbour each node is measured: one of its pool, so that nothing grows with the pairs (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A node that may be measured with another one."""

    id: str
    pool: str
    #: Neighbours that it was measured with.
    tried: frozenset[str] = frozenset()
    #: A link of it was slow: it is no good measure for others.
    is_slow: bool = False


def pairs(waiting: Iterable[Candidate], idle: Iterable[Candidate]) -> list[tuple[str, str]]:
    """Nodes that are measured with each other now, each at most once; the first of a pair is one that waits.

    Those that wait are put together first, so that the `idle` ones of their pool are left alone; one whose link was
    slow is measured with one whose links were not, where there is one.  Takes time linear in the nodes.
    """
    asking: dict[str, list[Candidate]] = {}
    for one in sorted(waiting, key=lambda one: one.is_slow):
        asking.setdefault(one.pool, []).append(one)
    free: dict[str, deque[Candidate]] = {}
    for pool, ones in asking.items():
        free[pool] = deque(one for one in ones if not one.is_slow)
    for one in idle:
        if one.pool in free:
            free[one.pool].append(one)
    for pool, ones in asking.items():
        free[pool].extend(one for one in ones if one.is_slow)
    found: list[tuple[str, str]] = []
    taken: set[str] = set()
    for pool, ones in asking.items():
        for one in ones:
            if one.id not in taken and (other := _take(free[pool], one, taken)) is not None:
                taken |= {one.id, other.id}
                found.append((one.id, other.id))
    return found


def _take(free: deque[Candidate], one: Candidate, taken: set[str]) -> Candidate | None:
    """The first free node that it was not measured with; those that are passed over stay free."""
    passed: list[Candidate] = []
    found = None
    while free and found is None:
        other = free.popleft()
        if other.id in taken:
            continue
        if other.id == one.id or other.id in one.tried or one.id in other.tried:
            passed.append(other)
        else:
            found = other
    free.extendleft(reversed(passed))
    return found

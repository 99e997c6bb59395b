"""Which worker does something for which other one; pure."""

from __future__ import annotations

from collections.abc import Sequence


def neighbours(nodes: Sequence[int]) -> list[int]:
    """For each rank another one, each of them once, given the node of each rank.

    It is on another node whenever no node has more than half of the ranks.  A single rank is its own neighbour.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    largest = max(nodes.count(node) for node in set(nodes))
    shift = largest % len(order) or 1
    found = [0] * len(order)
    for place, rank in enumerate(order):
        found[rank] = order[(place + shift) % len(order)]
    return found

"""The fixed order in which a sum over shards is taken; pure.

The sum over shards 0..n-1 is a binary tree that splits at the largest power of two below n.  A worker sums the largest
subtrees that lie inside its own shards (its *cover*); the rest of the tree is summed over the covers of all workers.
Which worker does it changes with their number; what is added to what does not, and so neither do the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

#: A subtree, as the first shard in it and the first one after it.
Node = tuple[int, int]
T = TypeVar("T")


def children(node: Node) -> tuple[Node, Node]:
    """The two halves of a subtree of at least two shards."""
    low, high = node
    middle = low + (1 << ((high - low - 1).bit_length() - 1))
    return (low, middle), (middle, high)


@lru_cache(maxsize=64)
def parents(shards: int) -> Mapping[Node, Node]:
    """The parent of every subtree of the tree over `shards` shards but the whole one."""
    found: dict[Node, Node] = {}
    waiting = [(0, shards)]
    while waiting:
        node = waiting.pop()
        if node[1] - node[0] > 1:
            for child in children(node):
                found[child] = node
                waiting.append(child)
    return found


# Every worker asks for the covers of all workers in every step.
@lru_cache(maxsize=1 << 15)
def cover(own: range, shards: int) -> tuple[Node, ...]:
    """The largest subtrees inside the contiguous shards `own`, from left to right."""

    def inside(node: Node) -> list[Node]:
        low, high = node
        if own.start <= low and high <= own.stop:
            return [node]
        if high <= own.start or own.stop <= low:
            return []
        left, right = children(node)
        return inside(left) + inside(right)

    return tuple(inside((0, shards)))


def total(node: Node, known: Mapping[Node, T], add: Callable[[T, T], T]) -> T:
    """Sum of a subtree from the sums of a set of subtrees that covers it."""
    if node in known:
        return known[node]
    left, right = children(node)
    return add(total(left, known, add), total(right, known, add))

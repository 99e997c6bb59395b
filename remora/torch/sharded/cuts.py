"""Where tensors are cut, and who needs which rows of whom; pure.

FSDP cuts a tensor along one dimension as `torch.chunk` does: pieces of equal size from the front, the last ones smaller
or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remora.torch.order import shard_size, shards_of


def rows_of(size: int, parts: int, part: int) -> range:
    """Rows of a dimension of `size` rows that piece `part` of `parts` has."""
    most = -(-size // parts)
    return range(min(size, part * most), min(size, (part + 1) * most))


@dataclass(frozen=True)
class Move:
    """Rows that travel from one rank to another."""

    source: int
    target: int
    #: Piece of the old cut that they come from, and the first of them counted from that piece's begin.
    part: int
    offset: int
    #: The first of them counted from the begin of the target's new piece.
    place: int
    count: int


def moves(size: int, holders: Mapping[int, int], targets: int) -> list[Move]:
    """How pieces on their `holders` (rank by old piece) become `targets` new ones; by source, target, and part."""
    found = []
    for part, source in holders.items():
        old = rows_of(size, len(holders), part)
        for target in range(targets):
            new = rows_of(size, targets, target)
            first, last = max(old.start, new.start), min(old.stop, new.stop)
            if first < last:
                found.append(Move(source, target, part, first - old.start, first - new.start, last - first))
    return sorted(found, key=lambda one: (one.source, one.target, one.part))


def passes(total: int, world_size: int, shards: int, micro_batch: int | None) -> int:
    """Forward passes that every rank makes in a step of `total` samples: as many as the busiest one needs.

    All ranks meet in each of them, because none has a whole layer alone.
    """
    return max(
        sum(
            _passes_of(shard_size(total, shard, shards), micro_batch)
            for shard in shards_of(rank, world_size, shards)
        )
        for rank in range(world_size)
    )


def _passes_of(samples: int, micro_batch: int | None) -> int:
    return min(samples, 1) if micro_batch is None else -(-samples // micro_batch)


def keepers(nodes: Sequence[int]) -> list[int]:
    """For each rank the one that keeps its snapshot, given the node of each rank.

    Every rank keeps one.  It lies on another node whenever no node has more than half of the ranks.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    largest = max(nodes.count(node) for node in set(nodes))
    shift = largest % len(order) or 1
    keeper = [0] * len(order)
    for place, rank in enumerate(order):
        keeper[rank] = order[(place + shift) % len(order)]
    return keeper

"""Where tensors are cut, and who needs what of whom; pure.

A tensor is cut along a dimension as `torch.chunk` does: pieces of equal size from the front, the last ones smaller or
empty.  Tensor parallelism cuts first, and FSDP cuts what is left to each worker, along the same dimension or another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remora.torch.order import shard_size, shards_of


def rows_of(size: int, parts: int, part: int) -> range:
    """Rows of a dimension of `size` rows that piece `part` of `parts` has."""
    most = -(-size // parts)
    return range(min(size, part * most), min(size, (part + 1) * most))


@dataclass(frozen=True)
class Cut:
    """One dimension of a tensor in `count` pieces; piece `part` of the state has number `part // stride % count`."""

    dim: int
    count: int
    stride: int


#: What a piece has of a tensor: indices along each of its dimensions, contiguous.
Box = tuple[range, ...]


def box_of(size: Sequence[int], cuts: Sequence[Cut], part: int) -> Box:
    """What piece `part` has of a tensor of this size; the cuts are made one after the other."""
    box = [range(length) for length in size]
    for cut in cuts:
        whole = box[cut.dim]
        box[cut.dim] = whole[slice_of(rows_of(len(whole), cut.count, part // cut.stride % cut.count))]
    return tuple(box)


def slice_of(rows: range) -> slice:
    """The same indices as a slice."""
    return slice(rows.start, rows.stop)


@dataclass(frozen=True)
class Move:
    """A block that travels from one rank to another."""

    source: int
    target: int
    #: Piece of the old state that it comes from, and where it lies in that piece's block.
    part: int
    taken: tuple[slice, ...]
    #: Where it comes to lie in the target's new block.
    put: tuple[slice, ...]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements that travel."""
        return math.prod(self.shape)


def moves(old: Sequence[Box], holders: Mapping[int, int], new: Sequence[Box]) -> list[Move]:
    """How blocks on their `holders` (rank by old piece) become those of the ranks; by source, target, and part.

    `old` has a box per piece, `new` one per rank.  Of pieces that hold the same the first one gives it.
    """
    found = []
    first = {box: part for part, box in reversed(list(enumerate(old)))}
    for given, part in first.items():
        for target, wanted in enumerate(new):
            both = [_common(one, other) for one, other in zip(given, wanted, strict=True)]
            if all(both):
                taken = tuple(_within(one, rows) for one, rows in zip(given, both, strict=True))
                put = tuple(_within(one, rows) for one, rows in zip(wanted, both, strict=True))
                shape = tuple(map(len, both))
                found.append(Move(holders[part], target, part, taken, put, shape))
    return sorted(found, key=lambda one: (one.source, one.target, one.part))


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _within(whole: range, rows: range) -> slice:
    return slice(rows.start - whole.start, rows.stop - whole.start)


def passes(total: int, readers: int, shards: int, micro_batch: int | None) -> int:
    """Forward passes that every worker makes in a step of `total` samples: as many as the busiest one needs.

    All workers meet in each of them, because none has a whole layer alone.
    """
    return max(
        sum(
            _passes_of(shard_size(total, shard, shards), micro_batch)
            for shard in shards_of(reader, readers, shards)
        )
        for reader in range(readers)
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

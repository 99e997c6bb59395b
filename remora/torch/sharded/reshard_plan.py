"""How tensors are sharded, which blocks travel when the sharding changes, and which rank keeps whose backup; pure.

A tensor is split along a dimension as `torch.chunk` does: shards of equal size from the front, the last ones smaller or
empty.  Tensor parallelism splits first, FSDP splits what is left to each worker, along the same dimension or another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remora.torch.order import shard_size, shards_of


def rows_of(size: int, count: int, index: int) -> range:
    """Rows of a dimension of `size` rows that shard `index` of `count` has."""
    most = -(-size // count)
    return range(min(size, index * most), min(size, (index + 1) * most))


@dataclass(frozen=True)
class Split:
    """One dimension of a tensor in `count` shards; shard `shard` of the state has number `shard // stride % count`."""

    dim: int
    count: int
    stride: int


#: What a shard has of a tensor: indices along each of its dimensions, contiguous.
Box = tuple[range, ...]


def box_of(size: Sequence[int], splits: Sequence[Split], shard: int) -> Box:
    """What shard `shard` of the state has of a tensor of this size; the splits are made one after the other."""
    box = [range(length) for length in size]
    for split in splits:
        whole = box[split.dim]
        box[split.dim] = whole[
            slice_of(rows_of(len(whole), split.count, shard // split.stride % split.count))
        ]
    return tuple(box)


def slice_of(rows: range) -> slice:
    """The same indices as a slice."""
    return slice(rows.start, rows.stop)


@dataclass(frozen=True)
class Transfer:
    """A block that travels from one rank to another."""

    source: int
    target: int
    #: Shard of the old state that it comes from, and where it lies in that shard's block.
    shard: int
    source_slices: tuple[slice, ...]
    #: Where it is put in the target's new block.
    target_slices: tuple[slice, ...]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements that travel."""
        return math.prod(self.shape)


def plan_transfers(old: Sequence[Box], holders: Mapping[int, int], new: Sequence[Box]) -> list[Transfer]:
    """How blocks on their `holders` (rank by old shard) become those of the ranks; by source, target, and shard.

    `old` has a box per shard, `new` one per rank.  Of shards that hold the same the first one is the source.
    """
    found = []
    first = {box: shard for shard, box in reversed(list(enumerate(old)))}
    for given, shard in first.items():
        for target, wanted in enumerate(new):
            both = [_common(one, other) for one, other in zip(given, wanted, strict=True)]
            if all(both):
                source_slices = tuple(_within(one, rows) for one, rows in zip(given, both, strict=True))
                target_slices = tuple(_within(one, rows) for one, rows in zip(wanted, both, strict=True))
                shape = tuple(map(len, both))
                found.append(Transfer(holders[shard], target, shard, source_slices, target_slices, shape))
    return sorted(found, key=lambda one: (one.source, one.target, one.shard))


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _within(whole: range, rows: range) -> slice:
    return slice(rows.start - whole.start, rows.stop - whole.start)


def passes(total: int, readers: int, shards: int, micro_batch: int | None) -> int:
    """Forward passes that every worker makes in a step of `total` samples: as many as the busiest one needs.

    Each pass has collectives of all workers, because none has a whole layer alone.
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


def backup_ranks(nodes: Sequence[int]) -> list[int]:
    """For each rank the one that keeps a copy of its shard of a snapshot, given the node of each rank.

    Every rank keeps one copy.  It lies on another node whenever no node has more than half of the ranks.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    largest = max(nodes.count(node) for node in set(nodes))
    shift = largest % len(order) or 1
    backup = [0] * len(order)
    for place, rank in enumerate(order):
        backup[rank] = order[(place + shift) % len(order)]
    return backup

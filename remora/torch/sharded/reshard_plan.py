"""How tensors are sharded, which blocks travel when the sharding changes; pure.

A tensor is split along a dimension as `torch.chunk` does: shards of equal size from the front, the last ones smaller or
empty.  Tensor parallelism splits first, FSDP splits what is left to each worker, along the same dimension or another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

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

    def part(self, index: int, count: int) -> Transfer:
        """Part `index` of `count`, cut along the longest dimension; both ends make the same ones."""
        if count == 1 or not self.shape:
            # A number has no dimensions, and is never large.
            return self
        dim = max(range(len(self.shape)), key=self.shape.__getitem__)
        length = self.shape[dim]
        rows = range(length * index // count, length * (index + 1) // count)
        return replace(
            self,
            source_slices=_narrowed(self.source_slices, dim, rows),
            target_slices=_narrowed(self.target_slices, dim, rows),
            shape=(*self.shape[:dim], len(rows), *self.shape[dim + 1 :]),
        )


def _narrowed(slices: tuple[slice, ...], dim: int, rows: range) -> tuple[slice, ...]:
    first = slices[dim].start
    return (*slices[:dim], slice(first + rows.start, first + rows.stop), *slices[dim + 1 :])


@dataclass(frozen=True)
class RankPlan:
    """What one rank sends and receives of a tensor."""

    #: By target, then shard.
    outgoing: tuple[Transfer, ...]
    #: By source, then shard.
    incoming: tuple[Transfer, ...]

    def part(self, index: int, count: int) -> RankPlan:
        """Part `index` of `count`: of each block one part."""
        return RankPlan(
            tuple(one.part(index, count) for one in self.outgoing),
            tuple(one.part(index, count) for one in self.incoming),
        )


def most_elements(old: torch.Tensor, holders: torch.Tensor, new: torch.Tensor) -> int:
    """Elements of a tensor that no rank sends or receives more of; all ranks find the same number.

    `old`, `holders` and `new` as for `plan_transfers`.
    """
    received = _elements(new).max()
    replicas = new.flatten(1).unique(dim=0, return_counts=True)[1].max() if new.shape[1] else len(new)
    held = holders.bincount().max()
    return int(torch.maximum(received, _elements(old).max() * replicas * held))


def _elements(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[:, :, 1] - boxes[:, :, 0]).prod(1)


def boxes_of(size: Sequence[int], splits: Sequence[Split], shards: torch.Tensor) -> torch.Tensor:
    """The boxes of many shards of the state, as `box_of` has them: (shard, dimension, start and stop)."""
    boxes = torch.zeros(len(shards), len(size), 2, dtype=torch.int64)
    boxes[:, :, 1] = torch.tensor(size)
    for split in splits:
        start, stop = boxes[:, split.dim].unbind(1)
        whole = stop - start
        most = (whole + split.count - 1).div(split.count, rounding_mode="floor")
        index = shards.div(split.stride, rounding_mode="floor") % split.count
        rows = torch.stack((index * most, (index + 1) * most), 1)
        boxes[:, split.dim] = start[:, None] + torch.minimum(rows, whole[:, None])
    return boxes


def plan_transfers(rank: int, old: torch.Tensor, holders: torch.Tensor, new: torch.Tensor) -> RankPlan:
    """How blocks on their holders become those of the ranks, as far as one rank has to do with it.

    `old` has a box per shard of the old state, whose rank `holders` names; `new` has one per rank.  Of shards that hold
    the same the first one is the source.  The rank compares what it holds with what all ranks want, and what it wants
    with what all hold: linear in both.
    """
    sources = _first_of_equals(old).nonzero().flatten()
    outgoing, incoming = [], []
    for shard in sources[holders[sources] == rank].tolist():
        for target in _overlapping(new, old[shard]).tolist():
            outgoing.append(_transfer(rank, target, shard, old[shard], new[target]))
    for shard in sources[_overlapping(old[sources], new[rank])].tolist():
        incoming.append(_transfer(int(holders[shard]), rank, shard, old[shard], new[rank]))
    outgoing.sort(key=lambda one: (one.target, one.shard))
    incoming.sort(key=lambda one: (one.source, one.shard))
    return RankPlan(tuple(outgoing), tuple(incoming))


def _first_of_equals(boxes: torch.Tensor) -> torch.Tensor:
    """True for each box that none before it is equal to."""
    if boxes.shape[1] == 0:
        # A number without dimensions: all hold the same.
        return torch.arange(len(boxes)) == 0
    _, kinds = boxes.flatten(1).unique(dim=0, return_inverse=True)
    places = torch.arange(len(boxes))
    first = torch.full((len(boxes),), len(boxes)).scatter_reduce(0, kinds, places, "amin")
    return first[kinds] == places


def _overlapping(boxes: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
    """Places of the boxes that have something in common with one."""
    start, stop = torch.maximum(boxes[:, :, 0], box[:, 0]), torch.minimum(boxes[:, :, 1], box[:, 1])
    return (start < stop).all(1).nonzero().flatten()


def _transfer(source: int, target: int, shard: int, given: torch.Tensor, wanted: torch.Tensor) -> Transfer:
    held, needed = given.tolist(), wanted.tolist()
    both = [
        range(max(one, other), min(stop, end)) for (one, stop), (other, end) in zip(held, needed, strict=True)
    ]
    return Transfer(
        source,
        target,
        shard,
        tuple(_within(first, rows) for (first, _), rows in zip(held, both, strict=True)),
        tuple(_within(first, rows) for (first, _), rows in zip(needed, both, strict=True)),
        tuple(map(len, both)),
    )


def slices_in_common(
    first: Sequence[int], shape: Sequence[int], other: Sequence[int], other_shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """What two blocks of a tensor have in common, as slices of each; None for nothing.

    A block is given by the offset of its first element in the tensor, and its shape.
    """
    both = [
        range(max(one, two), min(one + length, two + count))
        for one, length, two, count in zip(first, shape, other, other_shape, strict=True)
    ]
    if not all(both):
        return None
    return (
        tuple(_within(start, rows) for start, rows in zip(first, both, strict=True)),
        tuple(_within(start, rows) for start, rows in zip(other, both, strict=True)),
    )


def _within(start: int, rows: range) -> slice:
    return slice(rows.start - start, rows.stop - start)


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

"""Which samples a step uses, which shard carries them, and in which order a sum over shards is taken; pure.

None of it depends on the number of workers.  An epoch is a seeded permutation of the samples, split into global
batches; a global batch is split into `shards`, and a shard into micro-batches.  Workers carry shards: when their number
changes, shards move and nothing else does.

The sum over shards 0..n-1 is a binary tree that splits at the largest power of two below n.  A worker sums the largest
subtrees that lie inside its own shards (its *cover*); the rest of the tree is summed over the covers of all workers.
Which worker does it changes with their number; what is added to what does not, and so neither do the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch

from remora.torch.randomness import derive


@dataclass(frozen=True, order=True)
class Position:
    """The next step: `place` counts the steps of its epoch, both from 0."""

    epoch: int
    place: int


def shards_of(rank: int, world_size: int, shards: int) -> range:
    """Shards that a worker carries: contiguous, and every worker has at least one.

    Raises ValueError when there are more workers than shards.
    """
    if not 1 <= world_size <= shards:
        raise ValueError(
            f"{world_size} workers cannot share {shards} shards, because each needs at least one: "
            f"start at most {shards} workers, or a new job with more shards"
        )
    return range(rank * shards // world_size, (rank + 1) * shards // world_size)


def shard_size(batch: int, shard: int, shards: int) -> int:
    """Samples of a global batch of `batch` samples that fall to `shard`; sizes differ by one at most."""
    return batch // shards + (shard < batch % shards)


def split_shard(samples: Sequence[int], micro_batch: int | None) -> list[Sequence[int]]:
    """A shard's samples in micro-batches of at most `micro_batch` samples; none for an empty shard."""
    size = micro_batch or len(samples) or 1
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def shard_of(batch: Sequence[int], shard: int, shards: int) -> Sequence[int]:
    """The samples of a global batch that `shard` carries: contiguous ones."""
    start = shard * (len(batch) // shards) + min(shard, len(batch) % shards)
    return batch[start : start + shard_size(len(batch), shard, shards)]


def check_sizes(global_batch: int, shards: int, micro_batch: int | None) -> None:
    """Raise ValueError for sizes that make no steps."""
    if global_batch < 1:
        raise ValueError(f"global_batch is the number of samples of a step, at least 1, not {global_batch}")
    if not 1 <= shards <= global_batch:
        raise ValueError(
            f"shards is a number from 1 to global_batch ({global_batch}), not {shards}: "
            "a shard without samples would never have work"
        )
    if micro_batch is not None and micro_batch < 1:
        raise ValueError(f"micro_batch is a number of samples, at least 1, or None, not {micro_batch}")


@dataclass(frozen=True)
class Order:
    """The order of a dataset of known length."""

    samples: int
    global_batch: int
    shards: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{self.samples} samples make no step of {self.global_batch}: "
                "use more data, a smaller global_batch, or drop_last=False"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Global batches of an epoch; the last one may be smaller unless `drop_last`."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)

    def position_after(self, steps: int) -> Position:
        """Where training stands when `steps` steps are done."""
        return Position(*divmod(steps, self.steps_per_epoch))

    def batch(self, position: Position) -> list[int]:
        """Sample numbers of the global batch at `position`, in order."""
        start = position.place * self.global_batch
        stop = min(start + self.global_batch, self.samples)
        if not self.shuffle:
            return list(range(start, stop))
        permutation: list[int] = _permutation(self.samples, self.seed, position.epoch)[start:stop].tolist()
        return permutation

    def shard(self, position: Position, shard: int) -> Sequence[int]:
        """Sample numbers that `shard` carries of the global batch at `position`."""
        return shard_of(self.batch(position), shard, self.shards)

    def steps_in(self, epoch: int) -> int:  # noqa: ARG002 - of a sampler's order it depends on it
        """Global batches of an epoch."""
        return self.steps_per_epoch

    def number(self, position: Position) -> int:
        """Steps before that one since the beginning."""
        return position.epoch * self.steps_per_epoch + position.place

    def digest(self, epoch: int) -> int:  # noqa: ARG002
        """0: all workers make the same order from the seed."""
        return 0


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive(seed, "order", epoch))
    return torch.randperm(samples, generator=generator)


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

"""How the workers of a group are arranged over one model: copies of it, and its shards; pure.

Ranks count the workers of one tensor-parallel group first, then those that shard a copy, then the copies.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names of a mesh's dimensions.
REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"


@dataclass(frozen=True)
class Grid:
    """`replicas` copies of a model, each split over `shard` x `tensor` workers."""

    replicas: int
    shard: int
    tensor: int
    #: Dimensions of the mesh that the script builds its model on.
    names: tuple[str, ...] = (SHARD,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of these dimensions."""
        all_ = {REPLICATE: self.replicas, SHARD: self.shard, TENSOR: self.tensor}
        return tuple(all_[name] for name in self.names)

    @property
    def state_shards(self) -> int:
        """Number of different shards of the state."""
        return self.shard * self.tensor

    @property
    def readers(self) -> int:
        """Groups of workers that read batches of their own; workers of one tensor-parallel group read the same."""
        return self.replicas * self.shard

    def state_shard_of(self, rank: int) -> int:
        """The shard of the state that a rank holds."""
        return rank % self.state_shards

    def reader_of(self, rank: int) -> int:
        """Which of the `readers` a rank belongs to."""
        return rank // self.tensor

    def counts_batch(self, rank: int) -> bool:
        """Whether a rank is the one of its tensor-parallel group that counts where each batch counts once."""
        return rank % self.tensor == 0


@dataclass(frozen=True)
class Parallel:
    """What a script fixes: workers that one copy of the model is split over (None: all), and those of one layer."""

    shard: int | None = None
    tensor: int | None = None

    def __post_init__(self) -> None:
        for name, size in (("shard", self.shard), ("tensor", self.tensor)):
            if size is not None and size < 1:
                raise ValueError(f"{name} is a number of workers, at least 1, not {size}")

    def arrange(self, world_size: int) -> Grid:
        """The grid for this number of workers; raises ValueError when the number does not fit."""
        multiple = (self.shard or 1) * (self.tensor or 1)
        if world_size % multiple:
            asked = [
                f"{name}={size}" for name, size in (("shard", self.shard), ("tensor", self.tensor)) if size
            ]
            raise ValueError(
                f"{world_size} workers cannot be arranged with {' and '.join(asked)}: "
                f"write workers.multiple_of: {multiple} into the job, or start a multiple of {multiple}"
            )
        copies = world_size // multiple
        names = ((REPLICATE,) if self.shard else ()) + (SHARD,) + ((TENSOR,) if self.tensor else ())
        replicas, shard = (copies, self.shard) if self.shard else (1, copies)
        return Grid(replicas, shard, self.tensor or 1, names)

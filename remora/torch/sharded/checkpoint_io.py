"""Checkpoints of a sharded state: every rank writes its own shard, and any number of workers reads them.

Each rank writes one file in the safetensors format, without asking another one: which blocks it writes follows from how
the tensors are split.  The header says where each block lies in the whole tensor, as
`torch.distributed.checkpoint.HuggingFaceStorageReader` of PyTorch 2.13 reads it.  What is the same on all ranks lies
beside them in the files of `remora.torch.layout`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remora.torch.layout import Writer, assign
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.reshard_plan import slices_in_common
from remora.torch.sharded.state_shards import ShardedState, ShardOffsets, StateLayout, TensorSpec
from remora.torch.state import CheckpointUnusable, read, write
from remora.torch.tensor_files import MappedTensors, TensorFileDamaged, nbytes_of, write_tensors

#: Pattern of the names of files with blocks.
FILES = "sharded-*-of-*.safetensors"
#: What the headers of PyTorch call the places of blocks.
_PLACES, _OFFSETS, _VERSION = "DCP_SHARDING_INFO", "saved_offsets", "DCP_VERSION"
#: Not of PyTorch: the size of the whole tensor.
_SIZE = "size"


@dataclass(frozen=True)
class Block:
    """What a rank writes of one tensor."""

    size: tuple[int, ...]
    #: Of its first element in the whole tensor.
    offset: tuple[int, ...]
    tensor: torch.Tensor


def blocks_of(
    layout: StateLayout, offsets: ShardOffsets, memory: torch.Tensor, grid: Grid, rank: int
) -> dict[str, Block]:
    """What a rank writes of its shard `memory`, by name: of a block that several ranks hold one writes it."""
    shard = grid.state_shard_of(rank)
    boxes = {name: spec.box(shard) for name, spec in layout.items()}
    found = {}
    for name in _written_by(layout, offsets, grid, rank):
        offset = tuple(rows.start for rows in boxes[name])
        block = Block(layout[name].size, offset, offsets.view(memory, name))
        if block.tensor.numel():
            found[name] = block
    return found


def save(folder: Path, blocks: Mapping[str, Block], writer: Writer, state: Mapping[str, Any] | None) -> None:
    """Write a rank's blocks into its folder; rank 0 adds `state`.  Raises OSError."""
    places = {name: {_OFFSETS: one.offset, _SIZE: one.size} for name, one in blocks.items()}
    metadata = {_PLACES: json.dumps(places), _VERSION: "1.0", "format": "pt"}
    path = folder / f"sharded-{writer.rank + 1:05d}-of-{writer.world_size:05d}.safetensors"
    write_tensors({name: one.tensor for name, one in blocks.items()}, path, metadata)
    if state is not None:
        write(state, folder)


def load(folder: Path, sharded: ShardedState) -> dict[str, Any]:
    """Take over the tensors in a checkpoint's folder, and return the rest; no rank needs another one for it.

    Raises CheckpointUnusable for what another script has written.
    """
    state = read(folder)
    saved = all_saved(folder)
    check(sharded, {name: one.size for name, one in saved.items()})
    for name, one in saved.items():
        here = sharded.as_split_here(name, TensorSpec(one.size, one.dtype, ()))
        block = torch.empty(tuple(map(len, here.box(sharded.shard))), dtype=one.dtype)
        if one.fill(block, tuple(rows.start for rows in here.box(sharded.shard))) != block.numel():
            raise CheckpointUnusable(f"{folder} does not hold all of {name}: files are damaged")
        sharded.set_block(name, here, block)
    return state


def all_saved(folder: Path) -> dict[str, SavedTensor]:
    """All sharded tensors in a checkpoint's folder, by name; raises CheckpointUnusable where files are missing."""
    if not (paths := sorted(folder.glob(FILES))):
        raise CheckpointUnusable(
            f"{folder} holds no sharded state: it was not written by ShardedLoop, or files are missing"
        )
    if not all(path.stem.endswith(f"-of-{len(paths):05d}") for path in paths):
        raise CheckpointUnusable(
            f"{folder} holds {len(paths)} files of a sharded state, and others are missing"
        )
    try:
        return saved_tensors(paths)
    except (TensorFileDamaged, OSError) as error:
        raise CheckpointUnusable(f"{folder} cannot be read: {error}") from error


def _written_by(layout: StateLayout, offsets: ShardOffsets, grid: Grid, rank: int) -> Iterator[str]:
    """Names of the blocks that a rank writes; those that hold the same share the work by its bytes."""
    replica, tensor = rank // grid.state_shards, rank % grid.tensor
    kinds = (
        (False, replica, grid.replicas),
        # Tensor parallelism leaves them whole: all of its group hold the same.
        (True, replica * grid.tensor + tensor, grid.replicas * grid.tensor),
    )
    for is_whole, place, holders in kinds:
        sizes = {
            name: offsets.nbytes(name)
            for name, spec in layout.items()
            if (len(spec.splits) == 1 and grid.tensor > 1) == is_whole
        }
        yield from (name for name, owner in assign(sizes, holders).items() if owner == place)


@dataclass
class SavedTensor:
    """A tensor in the files of a checkpoint."""

    size: tuple[int, ...]
    dtype: torch.dtype
    #: Offsets and shapes of its blocks, and the files that they lie in.
    blocks: list[tuple[tuple[int, ...], tuple[int, ...], MappedTensors]]
    name: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return nbytes_of(self.size, self.dtype)

    def whole(self) -> torch.Tensor:
        """All of it, which must not be changed; raises TensorFileDamaged where the files do not hold all.

        Where it lies in one block nothing is copied.
        """
        _, shape, file = self.blocks[0]
        if shape == self.size:
            return file.view(self.name)
        if sum(math.prod(one) for _, one, _ in self.blocks) != math.prod(self.size):
            raise TensorFileDamaged(f"the files do not hold all of {self.name}")
        # Zeros: where blocks overlap, what they leave out must not be what this process had there before.
        found = torch.zeros(self.size, dtype=self.dtype)
        self.fill(found, (0,) * len(self.size))
        return found

    def fill(self, block: torch.Tensor, offset: tuple[int, ...]) -> int:
        """Copy what is in the files of the block at this place; returns how many elements were there."""
        filled = 0
        for start, shape, file in self.blocks:
            found = slices_in_common(start, shape, offset, tuple(block.shape))
            if found is not None:
                source, target = found
                block[target] = file.view(self.name)[source]
                filled += block[target].numel()
        return filled


def saved_tensors(paths: list[Path]) -> dict[str, SavedTensor]:
    """All tensors in these files; raises TensorFileDamaged and OSError."""
    found: dict[str, SavedTensor] = {}
    for path in paths:
        file = MappedTensors(path)
        try:
            places = json.loads(file.metadata[_PLACES])
            for name, (shape, dtype) in file.shapes().items():
                size, offset = (tuple(map(int, places[name][key])) for key in (_SIZE, _OFFSETS))
                one = found.setdefault(name, SavedTensor(size, dtype, [], name))
                if not _lies_in(offset, shape, size) or (one.size, one.dtype) != (size, dtype):
                    raise ValueError(f"{name} is not the one of other files")  # noqa: TRY301
                one.blocks.append((offset, shape, file))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TensorFileDamaged(f"{path.name} is damaged: {error}") from error
    return found


def _lies_in(offset: tuple[int, ...], shape: tuple[int, ...], size: tuple[int, ...]) -> bool:
    return len(offset) == len(shape) == len(size) and all(
        # What is larger is no size of a tensor, also where it has no element.
        first >= 0 and first + length <= whole < 1 << 62
        for first, length, whole in zip(offset, shape, size, strict=True)
    )


def check(sharded: ShardedState, saved: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointUnusable where the tensors of these sizes are not those of the script's model."""
    parameters = sharded.parameters
    for name, size in saved.items():
        kind, _, rest = name.partition("/")
        owner = rest if kind == "model" else rest.rpartition("/")[0]
        if owner not in parameters or (kind == "model" and tuple(parameters[owner].shape) != size):
            raise CheckpointUnusable(f"the saved {name} does not fit the script's model")
    missing = [name for name, one in parameters.items() if one.numel() and f"model/{name}" not in saved]
    if missing:
        raise CheckpointUnusable(f"the checkpoint holds no {missing[0]}: it is one of another model")

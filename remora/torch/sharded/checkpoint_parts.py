"""Loads a checkpoint whose files of blocks lie on several nodes: one rank reads each, and its blocks travel.

Supervisors fetch each file of blocks on one node alone (`trainers/checkpoints/parts.py`).  The ranks that read the
files are to the new group what holders of a snapshot are: the same plan says which blocks they send to whom.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remora.torch.group import Group
from remora.torch.sharded import checkpoint_io
from remora.torch.sharded.building import SHARDED_PART
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.process_groups import StateLost, gather_objects
from remora.torch.sharded.reshard import exchange
from remora.torch.sharded.reshard_plan import most_elements, plan_transfers
from remora.torch.sharded.state_shards import ShardedState, TensorSpec
from remora.torch.state import CheckpointUnusable, read
from remora.torch.tensor_files import TensorFileDamaged


@dataclass(frozen=True)
class SavedBlock:
    """A block in a file, without its content."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedBlocks:
    """What one rank reads of a tensor."""

    size: tuple[int, ...]
    dtype: torch.dtype
    blocks: tuple[SavedBlock, ...]


def is_whole(files: Sequence[str]) -> bool:
    """Whether these names of files of blocks are all of a checkpoint."""
    return bool(files) and all(Path(name).stem.endswith(f"-of-{len(files):05d}") for name in files)


def readers_of(files: Sequence[Sequence[str]]) -> dict[str, int]:
    """Which rank reads each file, of the files that each rank finds: the one with the fewest so far."""
    finders: dict[str, list[int]] = {}
    for rank, names in enumerate(files):
        for name in names:
            finders.setdefault(name, []).append(rank)
    load = [0] * len(files)
    readers = {}
    # Those that few ranks find are given away first.
    for name in sorted(finders, key=lambda one: (len(finders[one]), one)):
        rank = min(finders[name], key=lambda one: (load[one], one))
        load[rank] += 1
        readers[name] = rank
    return readers


def load(folder: Path, sharded: ShardedState, grid: Grid, host_group: Group) -> dict[str, Any]:
    """Take over the tensors of a checkpoint, and return the rest; all ranks call it.

    Raises CheckpointUnusable for what another script has written, StateLost where files were on a node that is gone,
    and PeerLost.
    """
    here = sorted(path.name for path in folder.glob(checkpoint_io.FILES))
    found: list[list[str]] = gather_objects(host_group, here)
    readers = readers_of(found)
    if all(is_whole(one) for one in found):
        return checkpoint_io.load(folder, sharded)
    if not readers and not _is_sharded(folder):
        raise CheckpointUnusable(f"{folder} holds no sharded state: it was not written by ShardedLoop")
    if not is_whole(list(readers)):
        raise StateLost("files of the checkpoint were on a node that is gone")
    own, tables = _read_own(
        folder, [name for name, rank in readers.items() if rank == host_group.rank], host_group
    )
    _check(folder, sharded, tables)
    for name in sorted({name for table in tables for name in table}):
        _take(name, own.get(name), tables, sharded, grid, host_group)
    return read(folder)


def _is_sharded(folder: Path) -> bool:
    """Whether the files that every node has are those of a sharded model.  Raises CheckpointUnusable."""
    return SHARDED_PART in read(folder)["parts"]


def _read_own(
    folder: Path, files: list[str], host_group: Group
) -> tuple[Mapping[str, checkpoint_io.SavedTensor], list[dict[str, SavedBlocks]]]:
    """The tensors in the files that this rank reads, and what each rank reads.  Raises CheckpointUnusable."""
    own: dict[str, checkpoint_io.SavedTensor] = {}
    failure = ""
    try:
        own = checkpoint_io.saved_tensors([folder / name for name in sorted(files)])
    except (TensorFileDamaged, OSError) as error:
        failure = f"{os.fspath(folder)} cannot be read: {error}"
    table = {
        name: SavedBlocks(
            one.size, one.dtype, tuple(SavedBlock(offset, shape) for offset, shape, _ in one.blocks)
        )
        for name, one in own.items()
    }
    answers: list[tuple[str, dict[str, SavedBlocks]]] = gather_objects(host_group, (failure, table))
    for rank, (why, _) in enumerate(answers):
        if why:
            raise CheckpointUnusable(f"rank {rank}: {why}")
    return own, [one for _, one in answers]


def _check(folder: Path, sharded: ShardedState, tables: list[dict[str, SavedBlocks]]) -> None:
    """Raise CheckpointUnusable on all ranks alike where blocks are missing, or are those of another model."""
    counts: dict[str, int] = {}
    kinds: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for table in tables:
        for name, one in table.items():
            counts[name] = counts.get(name, 0) + sum(math.prod(block.shape) for block in one.blocks)
            if kinds.setdefault(name, (one.size, one.dtype)) != (one.size, one.dtype):
                raise CheckpointUnusable(f"{folder} cannot be read: {name} is not the one of other files")
    for name, (size, _) in kinds.items():
        if counts[name] != math.prod(size):
            raise CheckpointUnusable(f"{folder} does not hold all of {name}: files are damaged")
    checkpoint_io.check(sharded, {name: size for name, (size, _) in kinds.items()})


def _take(
    name: str,
    own: checkpoint_io.SavedTensor | None,
    tables: list[dict[str, SavedBlocks]],
    sharded: ShardedState,
    grid: Grid,
    host_group: Group,
) -> None:
    """Bring one tensor's blocks from the ranks that read them to those that need them."""
    saved = [(rank, table[name]) for rank, table in enumerate(tables) if name in table]
    held = [(rank, place, block) for rank, one in saved for place, block in enumerate(one.blocks)]
    size, dtype = saved[0][1].size, saved[0][1].dtype
    here = sharded.as_split_here(name, TensorSpec(size, dtype, ()))
    old = torch.tensor([_box(block) for *_, block in held], dtype=torch.int64).view(len(held), len(size), 2)
    wanted = [here.box(grid.state_shard_of(rank)) for rank in range(host_group.world_size)]
    new = torch.tensor([[(rows.start, rows.stop) for rows in box] for box in wanted], dtype=torch.int64)
    holders = torch.tensor([rank for rank, *_ in held])
    new = new.view(len(wanted), len(size), 2)
    plan = plan_transfers(host_group.rank, old, holders, new)

    def held_here(number: int) -> torch.Tensor:
        assert own is not None
        *_, file = own.blocks[held[number][1]]
        return file.view(name)

    block = torch.empty(tuple(map(len, wanted[host_group.rank])), dtype=dtype)
    exchange(host_group, plan, most_elements(old, holders, new), held_here, block)
    sharded.set_block(name, here, block)


def _box(block: SavedBlock) -> list[tuple[int, int]]:
    return [(first, first + length) for first, length in zip(block.offset, block.shape, strict=True)]

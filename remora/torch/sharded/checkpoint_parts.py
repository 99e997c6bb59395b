"""Loads a checkpoint whose files of blocks lie on several nodes: one rank reads each, and its blocks travel.

Supervisors fetch each file of blocks on one node alone (`trainers/checkpoints/parts.py`).  The ranks that read the
files are to the new group what holders of a snapshot are: the same plan says which blocks they send to whom, and it is
made once for tensors that are cut alike (`saved_blocks.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from remora.torch.group import Group
from remora.torch.sharded import checkpoint_io
from remora.torch.sharded.building import SHARDED_PART
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.process_groups import StateLost, gather_objects
from remora.torch.sharded.reshard import TargetPlans, exchange
from remora.torch.sharded.reshard_plan import RankPlan, Split
from remora.torch.sharded.saved_blocks import Listing, Places, SavedAlike, listed, together
from remora.torch.sharded.state_shards import ShardedState, TensorSpec
from remora.torch.state import CheckpointUnusable, read
from remora.torch.tensor_files import TensorFileDamaged


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
    own, saved = _read_own(
        folder, [name for name, rank in readers.items() if rank == host_group.rank], host_group
    )
    _check(folder, sharded, saved)
    targets = TargetPlans(host_group.rank, host_group.world_size, grid)
    for alike in saved:
        for name, spec, plan in plans_of(alike, sharded, targets):
            _take(name, spec, plan, alike.numbers, own.get(name), sharded, grid, host_group)
    return read(folder)


def _is_sharded(folder: Path) -> bool:
    """Whether the files that every node has are those of a sharded model.  Raises CheckpointUnusable."""
    return SHARDED_PART in read(folder)["parts"]


def _read_own(
    folder: Path, files: list[str], host_group: Group
) -> tuple[Mapping[str, checkpoint_io.SavedTensor], list[SavedAlike]]:
    """The tensors in the files that this rank reads, and what all ranks read.  Raises CheckpointUnusable."""
    own: dict[str, checkpoint_io.SavedTensor] = {}
    failure = ""
    try:
        own = checkpoint_io.saved_tensors([folder / name for name in sorted(files)])
    except (TensorFileDamaged, OSError) as error:
        failure = f"{os.fspath(folder)} cannot be read: {error}"
    listing, places = listed(own)
    said: list[tuple[str, int, Places]] = gather_objects(host_group, (failure, listing.digest, places))
    for rank, (why, *_) in enumerate(said):
        if why:
            raise CheckpointUnusable(f"rank {rank}: {why}")
    digests = [digest for _, digest, _ in said]
    is_first = digests.index(listing.digest) == host_group.rank
    given: list[Listing | None] = gather_objects(host_group, listing if is_first else None)
    listings = {digest: one for digest, one in zip(digests, given, strict=True) if one is not None}
    try:
        return own, list(together(listings, digests, [one for *_, one in said]))
    except ValueError as error:
        raise CheckpointUnusable(f"{folder} cannot be read: {error}") from error


def _check(folder: Path, sharded: ShardedState, saved: Sequence[SavedAlike]) -> None:
    """Raise CheckpointUnusable on all ranks alike where blocks are missing, or are those of another model."""
    for alike in saved:
        if not alike.is_whole:
            raise CheckpointUnusable(f"{folder} does not hold all of {alike.names[0]}: files are damaged")
    checkpoint_io.check(sharded, {name: alike.size for alike in saved for name in alike.names})


def plans_of(
    alike: SavedAlike, sharded: ShardedState, targets: TargetPlans
) -> Iterator[tuple[str, TensorSpec, tuple[RankPlan, int]]]:
    """The name of each of these tensors, how it is split here, and what this rank sends and receives of it.

    With the plan comes `most_elements` of the tensor.
    """
    boxes, holders = alike.boxes(), torch.tensor(alike.holders)
    plans: dict[tuple[Split, ...], tuple[RankPlan, int]] = {}
    for name in alike.names:
        here = sharded.as_split_here(name, TensorSpec(alike.size, alike.dtype, ()))
        if here.splits not in plans:
            plans[here.splits] = targets.of(boxes, holders, here)
        yield name, here, plans[here.splits]


def _take(
    name: str,
    here: TensorSpec,
    plan: tuple[RankPlan, int],
    numbers: Sequence[int],
    own: checkpoint_io.SavedTensor | None,
    sharded: ShardedState,
    grid: Grid,
    host_group: Group,
) -> None:
    """Bring one tensor's blocks from the ranks that read them to those that need them."""

    def held_here(block: int) -> torch.Tensor:
        assert own is not None
        *_, file = own.blocks[numbers[block]]
        return file.view(name)

    rows = here.box(grid.state_shard_of(host_group.rank))
    block = torch.empty(tuple(map(len, rows)), dtype=here.dtype)
    exchange(host_group, *plan, held_here, block)
    sharded.set_block(name, here, block)

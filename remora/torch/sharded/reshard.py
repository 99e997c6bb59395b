"""Moves the shards of a snapshot from the ranks that hold them into the model of a new group."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from remora.torch.group import Group
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.reshard_plan import RankPlan, boxes_of, most_elements, plan_transfers
from remora.torch.sharded.snapshot_choice import SnapshotSource
from remora.torch.sharded.snapshots import Snapshot
from remora.torch.sharded.state_shards import ShardedState, ShardOffsets, StateLayout, TensorSpec
from remora.torch.state_messages import MESSAGE_BYTES


def reshard(
    host_group: Group,
    grid: Grid,
    source: SnapshotSource,
    snapshot: Snapshot | None,
    layout: StateLayout,
    sharded: ShardedState,
    limit: int = MESSAGE_BYTES,
) -> None:
    """Bring a snapshot from its holders into `sharded`; all ranks call it.  Raises PeerLost.

    One tensor travels at a time, and of a large one parts of which no rank sends or receives more than `limit` bytes.
    """
    plans = Plans(host_group.rank, host_group.world_size, grid, source.holders)
    offsets = {
        shard: ShardOffsets(layout, shard)
        for shard, rank in source.holders.items()
        if rank == host_group.rank
    }

    def held(name: str, shard: int) -> torch.Tensor:
        assert snapshot is not None
        return offsets[shard].view(snapshot.shards[shard], name)

    for name, spec in layout.items():
        here = sharded.as_split_here(name, spec)
        plan, most = plans.of(spec, here)
        own = sharded.block_to_fill(name, here, grid.state_shard_of(host_group.rank))
        exchange(host_group, plan, most, functools.partial(held, name), own, limit)
        sharded.set_block(name, here, own)


def exchange(
    host_group: Group,
    plan: RankPlan,
    most: int,
    held: Callable[[int], torch.Tensor],
    own: torch.Tensor,
    limit: int = MESSAGE_BYTES,
) -> None:
    """Fill this rank's block of one tensor; `held` is a block that it sends of, by its number in the plan.

    `most`: elements that any rank sends or receives (`most_elements`); they travel in parts of at most `limit` bytes.
    All ranks call it.  Raises PeerLost.
    """
    count = -(-most * own.element_size() // limit) or 1
    for index in range(count):
        _move(host_group, plan.part(index, count), own, held)


def _move(
    host_group: Group,
    plan: RankPlan,
    own: torch.Tensor,
    held: Callable[[int], torch.Tensor],
) -> None:
    """Exchange the blocks of a plan; `held` is this rank's block of a tensor in a shard.  Raises PeerLost."""
    blocks = [held(one.shard)[one.source_slices].reshape(-1) for one in plan.outgoing]
    sent = torch.cat(blocks) if blocks else torch.empty(0, dtype=own.dtype)
    del blocks
    received = torch.empty(sum(one.count for one in plan.incoming), dtype=own.dtype)
    if host_group.world_size == 1:
        received.copy_(sent)
    counts_in, counts_out = [0] * host_group.world_size, [0] * host_group.world_size
    for one in plan.incoming:
        counts_in[one.source] += one.count
    for one in plan.outgoing:
        counts_out[one.target] += one.count
    host_group.wait(host_group.exchange(received, sent, counts_in, counts_out))
    for one, block in zip(plan.incoming, received.split([one.count for one in plan.incoming]), strict=True):
        own[one.target_slices].copy_(block.view(one.shape))


class TargetPlans:
    """What one rank sends and receives of a tensor whose blocks lie somewhere, to become those of its group."""

    def __init__(self, rank: int, world_size: int, grid: Grid) -> None:
        self._rank = rank
        self._wanted = torch.tensor([grid.state_shard_of(one) for one in range(world_size)])

    def of(self, old: torch.Tensor, holders: torch.Tensor, here: TensorSpec) -> tuple[RankPlan, int]:
        """The plan, and `most_elements`; `old` and `holders` as for `plan_transfers`."""
        new = boxes_of(here.size, here.splits, self._wanted)
        return plan_transfers(self._rank, old, holders, new), most_elements(old, holders, new)


class Plans:
    """What one rank sends and receives of all tensors; those of one size that are split in one way have the same."""

    def __init__(self, rank: int, world_size: int, grid: Grid, holders: Mapping[int, int]) -> None:
        self._holders = torch.tensor([holders[shard] for shard in range(len(holders))])
        self._targets = TargetPlans(rank, world_size, grid)
        self._found: dict[tuple[object, ...], tuple[RankPlan, int]] = {}

    def of(self, spec: TensorSpec, here: TensorSpec) -> tuple[RankPlan, int]:
        """The plan of a tensor, as it was split and as it is split now, and `most_elements` of it."""
        kind = (spec.size, spec.splits, here.splits)
        if kind not in self._found:
            old = boxes_of(spec.size, spec.splits, torch.arange(len(self._holders)))
            self._found[kind] = self._targets.of(old, self._holders, here)
        return self._found[kind]

"""Moves the shards of a snapshot from the ranks that hold them into the model of a new group."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from remora.torch.group import Group
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.reshard_plan import RankPlan, boxes_of, plan_transfers
from remora.torch.sharded.snapshot_choice import SnapshotSource
from remora.torch.sharded.snapshots import Snapshot
from remora.torch.sharded.state_shards import ShardedState, ShardOffsets, StateLayout, TensorSpec


def reshard(
    host_group: Group,
    grid: Grid,
    source: SnapshotSource,
    snapshot: Snapshot | None,
    layout: StateLayout,
    sharded: ShardedState,
) -> None:
    """Bring a snapshot from its holders into `sharded`, one tensor at a time; all ranks call it.  Raises PeerLost."""
    plans = Plans(host_group.rank, host_group.world_size, grid, source.holders)
    offsets = {
        shard: ShardOffsets(layout, shard)
        for shard, rank in source.holders.items()
        if rank == host_group.rank
    }
    for name, spec in layout.items():
        here = sharded.as_split_here(name, spec)

        def held(shard: int, name: str = name) -> torch.Tensor:
            assert snapshot is not None
            return offsets[shard].view(snapshot.shards[shard], name)

        shape = tuple(map(len, here.box(grid.state_shard_of(host_group.rank))))
        sharded.set_block(name, here, exchange(host_group, plans.of(spec, here), held, shape, spec.dtype))


def exchange(
    host_group: Group,
    plan: RankPlan,
    held: Callable[[int], torch.Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """This rank's block of one tensor, of that shape; `held` is a block that it sends of, by its number in the plan.

    All ranks call it.  Raises PeerLost.
    """
    blocks = [held(one.shard)[one.source_slices].reshape(-1) for one in plan.outgoing]
    sent = torch.cat(blocks) if blocks else torch.empty(0, dtype=dtype)
    received = torch.empty(sum(one.count for one in plan.incoming), dtype=dtype)
    if host_group.world_size == 1:
        received.copy_(sent)
    counts_in, counts_out = [0] * host_group.world_size, [0] * host_group.world_size
    for one in plan.incoming:
        counts_in[one.source] += one.count
    for one in plan.outgoing:
        counts_out[one.target] += one.count
    host_group.wait(host_group.exchange(received, sent, counts_in, counts_out))
    own = torch.empty(shape, dtype=dtype)
    pieces = received.split([one.count for one in plan.incoming])
    for one, piece in zip(plan.incoming, pieces, strict=True):
        own[one.target_slices] = piece.view(one.shape)
    return own


class Plans:
    """What one rank sends and receives of all tensors; those of one size that are split in one way have the same."""

    def __init__(self, rank: int, world_size: int, grid: Grid, holders: Mapping[int, int]) -> None:
        self._rank = rank
        self._holders = torch.tensor([holders[shard] for shard in range(len(holders))])
        self._wanted = torch.tensor([grid.state_shard_of(one) for one in range(world_size)])
        self._found: dict[tuple[object, ...], RankPlan] = {}

    def of(self, spec: TensorSpec, here: TensorSpec) -> RankPlan:
        """The plan of a tensor, as it was split and as it is split now."""
        kind = (spec.size, spec.splits, here.splits)
        if kind not in self._found:
            old = boxes_of(spec.size, spec.splits, torch.arange(len(self._holders)))
            new = boxes_of(spec.size, here.splits, self._wanted)
            self._found[kind] = plan_transfers(self._rank, old, self._holders, new)
        return self._found[kind]

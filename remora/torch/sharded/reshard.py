"""Moves the shards of a snapshot from the ranks that hold them into the model of a new group."""

from __future__ import annotations

import torch

from remora.torch.group import Group
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.reshard_plan import plan_transfers
from remora.torch.sharded.snapshot_choice import SnapshotSource
from remora.torch.sharded.snapshots import Snapshot
from remora.torch.sharded.state_shards import ShardedState, ShardOffsets, StateLayout


def reshard(
    host_group: Group,
    grid: Grid,
    source: SnapshotSource,
    snapshot: Snapshot | None,
    layout: StateLayout,
    sharded: ShardedState,
) -> None:
    """Bring a snapshot from its holders into `sharded`, one tensor at a time; all ranks call it.  Raises PeerLost."""
    shards, ranks = range(len(source.holders)), range(host_group.world_size)
    offsets = {
        shard: ShardOffsets(layout, shard)
        for shard, rank in source.holders.items()
        if rank == host_group.rank
    }
    for name, spec in layout.items():
        here = sharded.as_split_here(name, spec)
        boxes = [here.box(grid.state_shard_of(rank)) for rank in ranks]
        plan = plan_transfers([spec.box(shard) for shard in shards], source.holders, boxes)
        outgoing = [one for one in plan if one.source == host_group.rank]
        incoming = [one for one in plan if one.target == host_group.rank]
        blocks = []
        for one in outgoing:
            assert snapshot is not None
            blocks.append(
                offsets[one.shard].view(snapshot.shards[one.shard], name)[one.source_slices].reshape(-1)
            )
        sent = torch.cat(blocks) if blocks else torch.empty(0, dtype=spec.dtype)
        received = torch.empty(sum(one.count for one in incoming), dtype=spec.dtype)
        if host_group.world_size == 1:
            received.copy_(sent)
        counts_in = [sum(one.count for one in incoming if one.source == rank) for rank in ranks]
        counts_out = [sum(one.count for one in outgoing if one.target == rank) for rank in ranks]
        host_group.wait(host_group.exchange(received, sent, counts_in, counts_out))
        own = torch.empty(tuple(map(len, boxes[host_group.rank])), dtype=spec.dtype)
        for one, block in zip(incoming, received.split([one.count for one in incoming]), strict=True):
            own[one.target_slices] = block.view(one.shape)
        sharded.set_block(name, here, own)

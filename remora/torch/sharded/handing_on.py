"""A snapshot on its way from those who hold it into the model of a new group."""

from __future__ import annotations

import torch

from remora.torch.group import Group
from remora.torch.sharded.cuts import moves
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.holdings import Source
from remora.torch.sharded.pieces import Layout, Places, Sharded
from remora.torch.sharded.snapshots import Snapshot


def hand_on(
    ring: Group, grid: Grid, source: Source, snapshot: Snapshot | None, layout: Layout, sharded: Sharded
) -> None:
    """Bring a snapshot from its holders into `sharded`, one tensor at a time; all ranks call it.  Raises PeerLost."""
    parts, ranks = range(len(source.holders)), range(ring.world_size)
    pieces = {part: Places(layout, part) for part, rank in source.holders.items() if rank == ring.rank}
    for name, shape in layout.items():
        here = sharded.as_cut_here(name, shape)
        boxes = [here.box(grid.part_of(rank)) for rank in ranks]
        plan = moves([shape.box(part) for part in parts], source.holders, boxes)
        mine = [one for one in plan if one.source == ring.rank]
        coming = [one for one in plan if one.target == ring.rank]
        lots = []
        for one in mine:
            assert snapshot is not None
            lots.append(pieces[one.part].view(snapshot.pieces[one.part], name)[one.taken].reshape(-1))
        sent = torch.cat(lots) if lots else torch.empty(0, dtype=shape.dtype)
        received = torch.empty(sum(one.count for one in coming), dtype=shape.dtype)
        if ring.world_size == 1:
            received.copy_(sent)
        counts_in = [sum(one.count for one in coming if one.source == rank) for rank in ranks]
        counts_out = [sum(one.count for one in mine if one.target == rank) for rank in ranks]
        ring.wait(ring.exchange(received, sent, counts_in, counts_out))
        own = torch.empty(tuple(map(len, boxes[ring.rank])), dtype=shape.dtype)
        for one, lot in zip(coming, received.split([one.count for one in coming]), strict=True):
            own[one.put] = lot.view(one.shape)
        sharded.put(name, here, own)

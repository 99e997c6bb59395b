"""Snapshots in host memory: every worker has its own piece of the state, and that of one neighbour.

A snapshot is taken after a step, by copying; the exchange with the neighbours runs while the next step computes, and
is waited for at its end.  So of a lost worker's pieces the newest one or the one before is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from remora.torch.group import Group, Ticket
from remora.torch.sharded.cuts import keepers, moves, rows_of
from remora.torch.sharded.holdings import Held, Label, Source
from remora.torch.sharded.pieces import Layout, Sharded, places, view

#: Whole snapshots kept beside the one under way.
KEPT = 2


@dataclass
class Snapshot:
    """One worker's share of a snapshot."""

    label: Label
    parts: int
    layout: Layout
    #: What is the same on all ranks.
    whole: Any
    #: Pieces by number: this worker's own, and the neighbour's once it is here.
    pieces: dict[int, torch.Tensor]
    #: The neighbour's piece under way, with the tensors that the exchange uses.
    under_way: tuple[Ticket | None, int, torch.Tensor] | None = None

    def settle(self) -> None:
        """Note whether the neighbour's piece has come."""
        if self.under_way is not None:
            ticket, part, piece = self.under_way
            if ticket is None or (ticket.is_done and ticket.error is None):
                self.pieces[part] = piece
                self.under_way = None


class Snapshots:
    """The newest snapshots, and the ring of workers that exchange them."""

    def __init__(self) -> None:
        self._taken: list[Snapshot] = []
        self._ring: Group | None = None
        self._keeper: list[int] = [0]

    @property
    def newest_step(self) -> int:
        """Step of the newest own piece; -1 without one."""
        return max((one.label.step for one in self._taken), default=-1)

    def use(self, ring: Group, nodes: list[int]) -> None:
        """Exchange over this group from now on; `nodes` tells the node of each rank."""
        self._ring = ring
        self._keeper = keepers(nodes)

    def take(self, label: Label, sharded: Sharded, whole: Any) -> None:
        """Copy the state now, and start to exchange it with the neighbours; raises PeerLost."""
        ring = self._ring
        assert ring is not None
        self.wait()
        layout, parts = sharded.layout(), ring.world_size
        own = torch.empty(places(layout, parts, ring.rank)[1], dtype=torch.uint8)
        sharded.copy_into(own, layout, parts, ring.rank)
        snapshot = Snapshot(label, parts, layout, whole, {ring.rank: own})
        self._taken = [*[one for one in self._taken if one.label != label][-KEPT:], snapshot]
        if parts == 1:
            return
        kept = self._keeper.index(ring.rank)
        piece = torch.empty(places(layout, parts, kept)[1], dtype=torch.uint8)
        counts_in, counts_out = [0] * parts, [0] * parts
        counts_in[kept], counts_out[self._keeper[ring.rank]] = len(piece), len(own)
        snapshot.under_way = ring.exchange(piece, own, counts_in, counts_out), kept, piece

    def wait(self) -> None:
        """Wait until the neighbour's piece of the newest snapshot is here; raises PeerLost."""
        if self._taken and (under_way := self._taken[-1].under_way) is not None:
            assert self._ring is not None
            self._ring.wait(under_way[0])
            self._taken[-1].settle()

    def held(self) -> list[Held]:
        """What this worker could give to others; what was under way in a group that broke is given up."""
        for one in self._taken:
            one.settle()
            one.under_way = None
        return [Held(one.label, one.parts, tuple(sorted(one.pieces))) for one in self._taken]

    def find(self, label: Label) -> Snapshot | None:
        """This worker's share of a snapshot."""
        return next((one for one in self._taken if one.label == label), None)

    def forget(self) -> None:
        """Drop everything."""
        self._taken = []


def hand_on(ring: Group, source: Source, snapshot: Snapshot | None, layout: Layout, sharded: Sharded) -> None:
    """Bring a snapshot from its holders into `sharded`, one tensor at a time; all ranks call it.  Raises PeerLost."""
    parts = len(source.holders)
    for name, shape in layout.items():
        plan = moves(shape.rows, source.holders, ring.world_size)
        mine = [one for one in plan if one.source == ring.rank]
        coming = [one for one in plan if one.target == ring.rank]
        width = torch.Size(shape.row).numel()
        lots = []
        for one in mine:
            assert snapshot is not None
            rows = view(snapshot.pieces[one.part], layout, parts, one.part, name)
            lots.append(rows[one.offset : one.offset + one.count].reshape(-1))
        sent = torch.cat(lots) if lots else torch.empty(0, dtype=shape.dtype)
        received = torch.empty(sum(one.count for one in coming) * width, dtype=shape.dtype)
        if ring.world_size == 1:
            received.copy_(sent)
        counts_in = [width * sum(m.count for m in coming if m.source == r) for r in range(ring.world_size)]
        counts_out = [width * sum(m.count for m in mine if m.target == r) for r in range(ring.world_size)]
        ring.wait(ring.exchange(received, sent, counts_in, counts_out))
        own = torch.empty(len(rows_of(shape.rows, ring.world_size, ring.rank)), *shape.row, dtype=shape.dtype)
        for one, lot in zip(coming, received.split([one.count * width for one in coming]), strict=True):
            own[one.place : one.place + one.count] = lot.view(one.count, *shape.row)
        sharded.put(name, shape, own)


def lost_text(label: Label, parts: list[int]) -> str:
    """Why nobody can go on from memory."""
    names = ", ".join(map(str, parts))
    return (
        f"nobody holds the shards of rank {names} after step {label.step} any more, because the workers that kept "
        "them are lost too: training goes on from the newest checkpoint"
    )

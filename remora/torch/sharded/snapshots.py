"""Snapshots in host memory: every worker has its own piece of the state, and that of one neighbour.

The state does not change between two optimizer steps.  So a snapshot is copied beside the next step's passes, and
`optimizer.step()` alone waits for it; then it goes to the neighbour, which is waited for at the end of that step.  So
of a lost worker's pieces the newest one or the one before is whole.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remora.torch.group import Group, PeerLost, Ticket
from remora.torch.saving import copy_stream, step_event
from remora.torch.sharded.copies import Kept
from remora.torch.sharded.cuts import keepers
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.holdings import Held, Label
from remora.torch.sharded.pieces import Layout, Places, Sharded

#: Whole snapshots kept beside the one under way.
KEPT = 2
#: Bytes of a piece up to which it is copied at once, because a thread would cost more.
SMALL_BYTES = 1 << 20


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
    #: The neighbour's piece under way, with the collective that brings it.
    under_way: tuple[Ticket | None, int, torch.Tensor] | None = None

    def settle(self) -> None:
        """Note whether the neighbour's piece has come."""
        if self.under_way is not None:
            ticket, part, piece = self.under_way
            if ticket is None or (ticket.is_done and ticket.error is None):
                self.pieces.setdefault(part, piece)
                self.under_way = None


class Copying:
    """The copy of one snapshot and the begin of its exchange, in a thread of their own."""

    def __init__(self, copy: Callable[[], None], exchange: Callable[[], None]) -> None:
        self._copy, self._exchange = copy, exchange
        self._copied = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="remora-snapshot", daemon=True)
        self._thread.start()

    def await_copy(self) -> None:
        """Wait until the state may change."""
        self._copied.wait()

    def wait(self) -> None:
        """Wait until the exchange is under way; raises what went wrong."""
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        try:
            self._copy()
            self._copied.set()
            self._exchange()
        except BaseException as error:
            self._error = error
        finally:
            self._copied.set()


class Snapshots:
    """The newest snapshots, and the ring of workers that exchange them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: list[Snapshot] = []
        self._ring: Group | None = None
        self._grid = Grid(1, 1, 1)
        self._keeper: list[int] = [0]
        self._copying: Copying | None = None
        self._places: dict[int, Places] = {}
        self._layout: Layout | None = None

    @property
    def newest_step(self) -> int:
        """Step of the newest own piece; -1 without one."""
        return max((one.label.step for one in self._taken), default=-1)

    def use(self, ring: Group, grid: Grid, nodes: list[int], optimizer: torch.optim.Optimizer) -> None:
        """Exchange over this group from now on, and let the optimizer wait for copies; `nodes`: that of each rank."""
        self._ring, self._grid = ring, grid
        self._keeper = keepers(nodes)
        optimizer.register_step_pre_hook(lambda *_: self.await_copy())

    def take(self, label: Label, sharded: Sharded, whole: Any) -> None:
        """Begin to copy the state as it is now, and to exchange it with the neighbours; raises PeerLost.

        The optimizer of `sharded` must not change it before `await_copy`.
        """
        self.wait()
        ring, grid = self._ring, self._grid
        assert ring is not None
        layout = sharded.layout()
        part, places = grid.part_of(ring.rank), self._places_of(layout, grid.part_of(ring.rank))
        on_cuda = self._device.type == "cuda"
        own = torch.empty(places.size_bytes, dtype=torch.uint8, pin_memory=on_cuda)
        snapshot = Snapshot(label, grid.parts, layout, whole, {})
        ready = step_event(self._device)

        def copy_own() -> None:
            with torch.no_grad(), copy_stream(self._device, ready):
                sharded.copy_into(own, places)
                if on_cuda:
                    torch.cuda.current_stream(self._device).synchronize()
            snapshot.pieces[part] = own
            self._taken = [*[one for one in self._taken if one.label != label][-KEPT:], snapshot]

        def exchange() -> None:
            if ring.world_size > 1:
                self._exchange(ring, snapshot, own)

        if on_cuda or places.size_bytes > SMALL_BYTES:
            self._copying = Copying(copy_own, exchange)
        else:
            copy_own()
            exchange()

    def await_copy(self) -> None:
        """Wait until the state may change."""
        if self._copying is not None:
            self._copying.await_copy()

    def wait(self) -> None:
        """Wait until the neighbour's piece of the newest snapshot is here; raises PeerLost."""
        self._join()
        if self._taken and (under_way := self._taken[-1].under_way) is not None:
            assert self._ring is not None
            self._ring.wait(under_way[0])
            self._taken[-1].settle()

    def take_back(self, sharded: Sharded) -> Any:
        """Let `sharded` be as it was at the newest snapshot of its group; returns what is the same on all ranks.

        Raises PeerLost, and then nothing has changed.
        """
        self.wait()
        newest = self._taken[-1]
        part = self._grid.part_of(self._own_rank)
        sharded.take_back(newest.layout, newest.pieces[part], self._places_of(newest.layout, part))
        return copy.deepcopy(newest.whole)

    def kept(self, label: Label) -> Kept:
        """The copy of a part that this rank keeps in the snapshot of that label, which is the newest; raises PeerLost.

        It is that of the neighbour, and its own where the neighbour has the same part.
        """
        self.wait()
        newest = self._taken[-1]
        if newest.label != label:
            raise ValueError(f"the newest snapshot is {newest.label}, not {label}")
        grid, owners = self._grid, []
        for rank in range(len(self._keeper)):
            owner = self._keeper.index(rank)
            owners.append(rank if grid.part_of(owner) == grid.part_of(rank) else owner)
        part = grid.part_of(owners[self._own_rank])
        return Kept(newest.pieces[part], self._places_of(newest.layout, part), owners)

    @property
    def _own_rank(self) -> int:
        assert self._ring is not None
        return self._ring.rank

    def leave(self) -> None:
        """Give up what is under way in a group that broke; a copy that began is ended, and kept."""
        with contextlib.suppress(PeerLost):
            self._join()
        for one in self._taken:
            one.settle()
            one.under_way = None

    def held(self) -> list[Held]:
        """What this worker could give to others."""
        return [Held(one.label, one.parts, tuple(sorted(one.pieces))) for one in self._taken]

    def find(self, label: Label) -> Snapshot | None:
        """This worker's share of a snapshot."""
        return next((one for one in self._taken if one.label == label), None)

    def forget(self) -> None:
        """Drop everything."""
        self._taken = []

    def _exchange(self, ring: Group, snapshot: Snapshot, own: torch.Tensor) -> None:
        kept, keeper = self._keeper.index(ring.rank), self._keeper[ring.rank]
        part = self._grid.part_of(kept)
        piece = torch.empty(self._places_of(snapshot.layout, part).size_bytes, dtype=torch.uint8)
        counts_in, counts_out = [0] * ring.world_size, [0] * ring.world_size
        counts_in[kept], counts_out[keeper] = len(piece), len(own)
        snapshot.under_way = ring.exchange(piece, own, counts_in, counts_out), part, piece

    def _places_of(self, layout: Layout, part: int) -> Places:
        if layout is not self._layout:
            self._layout, self._places = layout, {}
        if part not in self._places:
            self._places[part] = Places(layout, part)
        return self._places[part]

    def _join(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.wait()


def lost_text(label: Label, parts: list[int]) -> str:
    """Why nobody can go on from memory."""
    names = ", ".join(map(str, parts))
    return (
        f"nobody holds the shards of rank {names} after step {label.step} any more, because the workers that kept "
        "them are lost too: training goes on from the newest checkpoint"
    )

"""Snapshots in host memory: every worker has its own shard of the state, and that of one neighbour.

The state does not change between two optimizer steps.  So a snapshot is copied while the next step's passes run, and
`optimizer.step()` alone waits for it; then it is sent to the neighbour, which is waited for at the end of that step.
So of a lost worker's shards the newest one or the one before is complete.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remora.torch.group import Group, PeerLost
from remora.torch.neighbours import neighbours
from remora.torch.saving import copy_stream, step_event
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.replica_check import BackupCopy
from remora.torch.sharded.snapshot_choice import HeldShards, SnapshotId
from remora.torch.sharded.state_shards import ShardedState, ShardOffsets, StateLayout
from remora.torch.ticket import Ticket

#: Whole snapshots kept beside the one under way.
SNAPSHOTS_KEPT = 2
#: Bytes of a shard up to which it is copied at once, because a thread would cost more.
SMALL_BYTES = 1 << 20


@dataclass
class Snapshot:
    """One worker's share of a snapshot."""

    snapshot_id: SnapshotId
    shard_count: int
    layout: StateLayout
    #: What is the same on all ranks.
    whole: Any
    #: Shards by number: this worker's own, and the neighbour's once it is here.
    shards: dict[int, torch.Tensor]
    #: The neighbour's shard under way, with the collective that brings it.
    under_way: tuple[Ticket | None, int, torch.Tensor] | None = None

    def settle(self) -> None:
        """Note whether the neighbour's shard has arrived."""
        if self.under_way is not None:
            ticket, shard, memory = self.under_way
            if ticket is None or (ticket.is_done and ticket.error is None):
                self.shards.setdefault(shard, memory)
                self.under_way = None


class Copying:
    """The copy of one snapshot and the begin of its exchange, in a thread of their own."""

    def __init__(self, copy: Callable[[], None], exchange: Callable[[], None]) -> None:
        self._copy, self._exchange = copy, exchange
        self._copied = threading.Event()
        self._is_whole = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="remora-snapshot", daemon=True)
        self._thread.start()

    def await_copy(self) -> bool:
        """Wait until the state may change; returns whether the copy is whole."""
        self._copied.wait()
        return self._is_whole

    def wait(self) -> None:
        """Wait until the exchange is under way; raises what went wrong."""
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        try:
            self._copy()
            self._is_whole = True
            self._copied.set()
            self._exchange()
        except BaseException as error:
            self._error = error
        finally:
            self._copied.set()


@dataclass(frozen=True)
class OwnCopy:
    """A worker's own shard in a snapshot, which may still be copied; its memory is used for nothing else."""

    snapshot_id: SnapshotId
    layout: StateLayout
    #: What is the same on all ranks.
    whole: Any
    offsets: ShardOffsets
    _memory: torch.Tensor
    _copying: Copying | None

    def memory(self) -> torch.Tensor:
        """The whole shard, waited for; raises RuntimeError where it could not be copied."""
        if self._copying is not None and not self._copying.await_copy():
            raise RuntimeError("the state could not be copied into host memory for a checkpoint")
        return self._memory


class Snapshots:
    """The newest snapshots, and the host_group of workers that exchange them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: list[Snapshot] = []
        self._host_group: Group | None = None
        self._grid = Grid(1, 1, 1)
        self._backup_ranks: list[int] = [0]
        self._copying: Copying | None = None
        #: This rank's shard in the snapshot that was begun last.
        self._own: OwnCopy | None = None
        self._offsets: dict[int, ShardOffsets] = {}
        self._layout: StateLayout | None = None

    @property
    def newest_step(self) -> int:
        """Step of the newest own memory; -1 without one."""
        return max((one.snapshot_id.step for one in self._taken), default=-1)

    def use(self, host_group: Group, grid: Grid, nodes: list[int], optimizer: torch.optim.Optimizer) -> None:
        """Exchange over this group from now on, and let the optimizer wait for copies; `nodes`: that of each rank."""
        self._host_group, self._grid = host_group, grid
        self._backup_ranks = neighbours(nodes)
        optimizer.register_step_pre_hook(lambda *_: self.await_copy())

    def take(self, snapshot_id: SnapshotId, sharded: ShardedState, whole: Any) -> None:
        """Begin to copy the state as it is now, and to exchange it with the neighbours; raises PeerLost.

        The optimizer of `sharded` must not change it before `await_copy`.
        """
        self.wait()
        host_group, grid = self._host_group, self._grid
        assert host_group is not None
        layout = sharded.layout()
        shard = grid.state_shard_of(host_group.rank)
        offsets = self._offsets_of(layout, shard)
        on_cuda = self._device.type == "cuda"
        own = torch.empty(offsets.size_bytes, dtype=torch.uint8, pin_memory=on_cuda)
        snapshot = Snapshot(snapshot_id, grid.state_shards, layout, whole, {})
        ready = step_event(self._device)

        def copy_own() -> None:
            with torch.no_grad(), copy_stream(self._device, ready):
                sharded.copy_into(own, offsets)
                if on_cuda:
                    torch.cuda.current_stream(self._device).synchronize()
            snapshot.shards[shard] = own
            self._taken = [
                *[one for one in self._taken if one.snapshot_id != snapshot_id][-SNAPSHOTS_KEPT:],
                snapshot,
            ]

        def exchange() -> None:
            if host_group.world_size > 1:
                self._exchange(host_group, snapshot, own)

        if on_cuda or offsets.size_bytes > SMALL_BYTES:
            self._copying = Copying(copy_own, exchange)
        else:
            copy_own()
        self._own = OwnCopy(snapshot_id, layout, whole, offsets, own, self._copying)
        if self._copying is None:
            exchange()

    def own_copy(self, snapshot_id: SnapshotId) -> OwnCopy | None:
        """This rank's own shard in the snapshot of this id; None where it is not the one that was begun last."""
        return self._own if self._own is not None and self._own.snapshot_id == snapshot_id else None

    def await_copy(self) -> None:
        """Wait until the state may change."""
        if self._copying is not None:
            self._copying.await_copy()

    def wait(self) -> None:
        """Wait until the neighbour's shard of the newest snapshot is here; raises PeerLost."""
        self._join()
        if self._taken and (under_way := self._taken[-1].under_way) is not None:
            assert self._host_group is not None
            self._host_group.wait(under_way[0])
            self._taken[-1].settle()

    def take_back(self, sharded: ShardedState) -> Any:
        """Let `sharded` be as it was at the newest snapshot of its group; returns what is the same on all ranks.

        Raises PeerLost, and then nothing has changed.
        """
        self.wait()
        newest = self._taken[-1]
        shard = self._grid.state_shard_of(self._own_rank)
        sharded.take_back(newest.layout, newest.shards[shard], self._offsets_of(newest.layout, shard))
        return copy.deepcopy(newest.whole)

    def backup(self, snapshot_id: SnapshotId) -> BackupCopy:
        """The copy of a shard that this rank keeps in the snapshot of this id, the newest one; raises PeerLost.

        It is that of the neighbour, and its own where the neighbour has the same shard.
        """
        self.wait()
        newest = self._taken[-1]
        if newest.snapshot_id != snapshot_id:
            raise ValueError(f"the newest snapshot is {newest.snapshot_id}, not {snapshot_id}")
        grid, owners = self._grid, []
        for rank in range(len(self._backup_ranks)):
            owner = self._backup_ranks.index(rank)
            owners.append(rank if grid.state_shard_of(owner) == grid.state_shard_of(rank) else owner)
        shard = grid.state_shard_of(owners[self._own_rank])
        return BackupCopy(newest.shards[shard], self._offsets_of(newest.layout, shard), owners)

    @property
    def _own_rank(self) -> int:
        assert self._host_group is not None
        return self._host_group.rank

    def leave(self) -> None:
        """Give up what is under way in a group that broke; a copy that began is ended, and kept."""
        with contextlib.suppress(PeerLost):
            self._join()
        for one in self._taken:
            one.settle()
            one.under_way = None

    def held(self) -> list[HeldShards]:
        """The shards that this worker could send to others."""
        return [
            HeldShards(one.snapshot_id, one.shard_count, tuple(sorted(one.shards))) for one in self._taken
        ]

    def find(self, snapshot_id: SnapshotId) -> Snapshot | None:
        """This worker's share of a snapshot."""
        return next((one for one in self._taken if one.snapshot_id == snapshot_id), None)

    def forget(self) -> None:
        """Drop everything."""
        self._taken, self._own = [], None

    def _exchange(self, host_group: Group, snapshot: Snapshot, own: torch.Tensor) -> None:
        owner, backup = self._backup_ranks.index(host_group.rank), self._backup_ranks[host_group.rank]
        shard = self._grid.state_shard_of(owner)
        memory = torch.empty(self._offsets_of(snapshot.layout, shard).size_bytes, dtype=torch.uint8)
        counts_in, counts_out = [0] * host_group.world_size, [0] * host_group.world_size
        counts_in[owner], counts_out[backup] = len(memory), len(own)
        snapshot.under_way = host_group.exchange(memory, own, counts_in, counts_out), shard, memory

    def _offsets_of(self, layout: StateLayout, shard: int) -> ShardOffsets:
        if layout is not self._layout:
            self._layout, self._offsets = layout, {}
        if shard not in self._offsets:
            self._offsets[shard] = ShardOffsets(layout, shard)
        return self._offsets[shard]

    def _join(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.wait()


def lost_text(snapshot_id: SnapshotId, shards: list[int]) -> str:
    """Why training cannot go on from memory."""
    names = ", ".join(map(str, shards))
    return (
        f"no worker holds the shards of rank {names} after step {snapshot_id.step} any more, because the workers that"
        " kept them are lost too: training goes on from the newest checkpoint"
    )

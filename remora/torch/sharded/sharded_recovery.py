"""How a worker of a sharded model comes to the state of each new group, and what it keeps and saves for that."""

from __future__ import annotations

import copy
import gc
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from remora import training
from remora.torch.buffers import Buffers
from remora.torch.elastic import REPORTS_KEPT, ElasticLoop
from remora.torch.layout import Writer
from remora.torch.loading import Loading
from remora.torch.loop_settings import Settings, fingerprint
from remora.torch.optimizers import EARLY
from remora.torch.order import shards_of
from remora.torch.sharded import checkpoint_io, checkpoint_parts
from remora.torch.sharded.building import Build, BuiltModel, construct
from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.mesh import MeshProcessGroup, open_mesh
from remora.torch.sharded.process_groups import ProcessGroups, StateLost, broadcast_object, gather_objects
from remora.torch.sharded.reshard import reshard
from remora.torch.sharded.sharded_saving import ShardedSaving
from remora.torch.sharded.snapshot_choice import (
    HeldShards,
    SnapshotId,
    SnapshotSource,
    missing_shards,
    newest_complete,
)
from remora.torch.sharded.snapshots import Snapshots, lost_text
from remora.torch.sharded.step_runner import StepRunner, forget_optimizers
from remora.torch.state import LoopState, Stateful

log = logging.getLogger("remora.torch")


@dataclass(frozen=True)
class _Announcement:
    """What a worker sends to all others when a group has formed."""

    fingerprint: int
    node: int
    #: It has trained nothing yet, and can make the state that training begins with by itself.
    is_new: bool
    held: list[HeldShards]


class ShardedRecovery(ElasticLoop):
    """A sharded training but for its steps: its groups, the model of each, snapshots and checkpoints."""

    #: The error where an optimizer steps before the gradients are there.
    _early_text = EARLY

    def __init__(
        self, settings: Settings, data: Any, loading: Loading, build: Build, parallel: Parallel, scaler: Any
    ) -> None:
        super().__init__(settings, _device(), data, loading)
        self._parallel = parallel
        self._build = build
        self._scaler = scaler
        self._snapshots = Snapshots(self._device)
        self._saving = ShardedSaving()
        #: The checkpoint that needed a snapshot of its own, and the seconds that it has held the loop up so far.
        self._stall: tuple[int, float] | None = None
        self._step_runner = StepRunner(
            settings, self._device, self._source, loading.collate, scaler, self._compute_time
        )
        self._groups = ProcessGroups(self._link, self._device, self._resume, self._newest_held_step)
        self._built: BuiltModel | None = None
        self._mesh_group: MeshProcessGroup | None = None
        self._state: LoopState | None = None
        self._is_new = not self._groups.is_joiner
        #: What the script saves beside them.
        self._extra: dict[str, Stateful] = {}
        #: Steps in a row that were left out.
        self._skips = 0

    @property
    def _rank(self) -> int:
        return self._groups.group.rank

    @property
    def _generation(self) -> int:
        return self._groups.generation

    @property
    def _own_shards(self) -> range:
        grid = self._present.grid
        return shards_of(grid.reader_of(self._rank), grid.readers, self._settings.shards)

    @property
    def _present(self) -> BuiltModel:
        if self._built is None:
            raise RuntimeError("the model is built when the loop begins: use it inside `for step in loop`")
        return self._built

    def _begin(self) -> None:
        self._groups.begin()

    # --- a new group ------------------------------------------------------------------------------------------------

    def _newest_held_step(self) -> int:
        self._snapshots.leave()
        return max(self._snapshots.newest_step, 0 if self._is_new else -1)

    def _change(self, why: str) -> None:
        """Join the next group, and take over the newest state that it holds completely."""
        self._saved_step = None
        before = self._progress.step
        self._groups.change(why)
        again = range(self._progress.step + 1, before + 1)
        if self._groups.group.rank == 0 and again:
            log.warning("after a loss training goes on from memory; steps done again: %s", list(again))

    def _resume(self) -> int:
        """Come to a common state with the group that was just formed; raises PeerLost and StateLost."""
        groups, settings = self._groups, self._settings
        group, host_group = groups.group, groups.host_group
        grid = self._parallel.arrange(group.world_size)
        # Raises where there are more readers than shards.
        shards_of(grid.reader_of(group.rank), grid.readers, settings.shards)
        if self._built is not None:
            self._built.optimizers.close()
        self._built = self._state = None
        gc.collect()
        forget_optimizers(self._scaler, self._device)
        mesh, self._mesh_group = open_mesh(group, self._device, grid)
        built = self._built = construct(self._build, mesh, grid, settings.seed, self._early_text)
        self._state = LoopState({**built.parts(self._scaler), **self._extra}, settings.data_order())
        mark = fingerprint(settings, built.sharded.model.parameters())
        announcement = _Announcement(mark, group.rendezvous.node_rank, self._is_new, self._snapshots.held())
        announcements: list[_Announcement] = gather_objects(host_group, announcement)
        if any(one.fingerprint != announcements[0].fingerprint for one in announcements):
            raise ValueError("the workers differ in their model or settings: start all with the same script")
        source = newest_complete([one.held for one in announcements])
        if source is not None:
            self._fetch(source)
        elif all(one.is_new for one in announcements):
            self._start()
        else:
            lost = missing_shards([one.held for one in announcements])
            self._snapshots.forget()
            raise StateLost(
                lost_text(*lost) if lost else "no worker of the new group holds the training state"
            )
        built.buffers = Buffers(built.sharded.model)
        built.optimizers.know_saved([] if built.scheduler is None else [built.scheduler])
        built.optimizers.open()
        self._snapshots.use(host_group, grid, [one.node for one in announcements], built.sharded.optimizer)
        self._take()
        self._secure()
        self._is_new = False
        self._report_again()
        self._open_feed()
        return self._progress.step

    def _start(self) -> None:
        """Begin with the newest checkpoint, or from the start."""
        folder, built = training.resume_from(), self._present
        if folder is None:
            return
        if self._link is None:
            self._restore_state(checkpoint_io.load(folder, built.sharded))
            return
        try:
            state = checkpoint_parts.load(folder, built.sharded, built.grid, self._groups.host_group)
        except StateLost:
            # Only a worker group for which the files are fetched once more can go on.
            self._is_new = False
            raise
        self._restore_state(state)

    def _fetch(self, source: SnapshotSource) -> None:
        """Take over a snapshot from the ranks that hold it."""
        host_group = self._groups.host_group
        snapshot = self._snapshots.find(source.snapshot_id)
        content = (snapshot.layout, snapshot.whole) if snapshot is not None else None
        layout, whole = broadcast_object(host_group, source.holders[0], content)
        reshard(host_group, self._present.grid, source, snapshot, layout, self._present.sharded)
        self._restore(whole)

    def _restore(self, whole: Mapping[str, Any]) -> None:
        """Take over what a snapshot says that is the same on all ranks."""
        self._restore_state(whole["state"])
        self._step_runner.metric_names = tuple(whole["metric_names"])
        own = self._reports or whole["reports"]
        self._reports = deque([one for one in own if one[0] <= self._progress.step], maxlen=REPORTS_KEPT)

    # --- what is kept for it ----------------------------------------------------------------------------------------

    def _capture_state(self) -> dict[str, Any]:
        assert self._state is not None
        left_out = [list(one) for one in self._left_out]
        return {**self._state.capture(self._progress), "left_out": left_out, "skips": self._skips}

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointUnusable."""
        assert self._state is not None
        self._progress = self._state.restore(state)
        self._left_out = [(int(epoch), int(place)) for epoch, place in state.get("left_out", ())]
        self._skips = int(state.get("skips", 0))

    def _take(self) -> None:
        """Take a snapshot of the state as it is after the last step; raises PeerLost."""
        whole = {
            "state": copy.deepcopy(self._capture_state()),
            "metric_names": self._step_runner.metric_names,
            "reports": list(self._reports),
        }
        snapshot_id = SnapshotId(self._progress.step, self._groups.generation)
        self._snapshots.take(snapshot_id, self._present.sharded, whole)

    def _secure(self) -> None:
        """Wait until all workers have their neighbours' parts of the newest snapshot; raises PeerLost."""
        self._snapshots.wait()
        host_group = self._groups.host_group
        host_group.wait(host_group.sum(torch.ones(1)))

    def _checkpoint(self, *, is_last: bool) -> None:
        """Write this rank's part of the state, in the background unless this process is about to end.

        Raises PeerLost, and what went wrong with the one before.
        """
        step = self._progress.step
        if self._link is None or step == self._saved_step:
            return
        began = time.monotonic()
        # Before the wait: the one under way may be handed over in it.
        in_background = not (is_last or self._link.stops)
        self._saving.wait()
        snapshot_id = SnapshotId(step, self._groups.generation)
        if not (is_taken := self._snapshots.own_copy(snapshot_id) is not None):
            self._take()
        own = self._snapshots.own_copy(snapshot_id)
        assert own is not None
        self._saved_step = step
        group = self._groups.group
        writer = Writer(group.rank, group.world_size, self._groups.generation)
        built = self._present
        self._saving.save(own, built.sharded.names(), writer, built.grid, in_background=in_background)
        ended = time.monotonic() if in_background else self._link.taken_at
        self._stall = (step, ended - began)
        if is_taken or not in_background:
            self._report_stall(0.0)

    def _report_stall(self, more_s: float) -> None:
        """Report how long the checkpoint begun last has held the loop up, with what it took since; once."""
        stall, self._stall = self._stall, None
        if stall is not None and self._link is not None:
            self._link.stalled(stall[0], stall[1] + more_s)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", training.world().local_rank)
    torch.cuda.set_device(device)
    return device

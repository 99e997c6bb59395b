"""What all loops of a sharded model have in common: groups, snapshots, and what follows a loss."""

from __future__ import annotations

import copy
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist

from remora import training
from remora.torch.agreement import (
    CHECK_EVERY,
    StateDigests,
    is_due,
    parameters_beside,
)
from remora.torch.buffers import Buffers
from remora.torch.elastic import REPORTS_KEPT, ElasticLoop
from remora.torch.evaluation import TOO_EARLY, Evaluate, PartSums, held_for
from remora.torch.feed import Loading, is_stream
from remora.torch.group import Group, PeerLost
from remora.torch.layout import Writer
from remora.torch.loop_settings import Settings, agreed, fingerprint, needed
from remora.torch.nonfinite import (
    Nonfinite,
    NotFinite,
    check_rollbacks,
    is_checked,
    left_out_text,
    rollback_text,
)
from remora.torch.optimizers import EARLY
from remora.torch.order import shards_of
from remora.torch.sampling import batch_size_of, check_prefetch, sampling_of
from remora.torch.sharded import checkpoint_parts
from remora.torch.sharded.building import Build, BuiltModel, construct
from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.mesh import MeshProcessGroup, open_mesh
from remora.torch.sharded.process_groups import ProcessGroups, StateLost, broadcast_object, gather_objects
from remora.torch.sharded.replica_check import ReplicaDigests
from remora.torch.sharded.reshard import reshard
from remora.torch.sharded.sharded_evaluation import Interrupted, evaluated_together
from remora.torch.sharded.sharded_saving import ShardedSaving
from remora.torch.sharded.snapshot_choice import (
    HeldShards,
    SnapshotId,
    SnapshotSource,
    missing_shards,
    newest_complete,
)
from remora.torch.sharded.snapshots import Snapshots, lost_text
from remora.torch.sharded.step_runner import (
    StepResult,
    StepRunner,
    forget_optimizers,
    full,
    local,
    local_gradients,
)
from remora.torch.state import LoopState, Progress, Stateful
from remora.torch.step import AnyStep, Compute

log = logging.getLogger("remora.torch")


@dataclass(frozen=True)
class _Announcement:
    """What a worker sends to all others when a group has formed."""

    fingerprint: int
    node: int
    #: It has trained nothing yet, and can make the state that training begins with by itself.
    is_new: bool
    held: list[HeldShards]


class ShardedTraining(ElasticLoop):
    """What loops share whose model is sharded over the workers: groups, snapshots, and what follows a loss."""

    #: The error where an optimizer steps before the gradients are there.
    _early_text = EARLY

    def __init__(
        self,
        build: Build,
        *,
        data: Any,
        global_batch: int | None = None,
        shards: int | None = None,
        total_steps: int | None = None,
        epochs: int | None = None,
        seed: int = 0,
        snapshot_every: int = 1,
        shard: int | None = None,
        tensor: int | None = None,
        scaler: Any = None,
        micro_batch: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        shuffle: bool = True,
        drop_last: bool = False,
        check_every: int = CHECK_EVERY,
        nonfinite: Nonfinite | None = None,
    ) -> None:
        if snapshot_every < 1:
            raise ValueError(f"snapshot_every is a number of steps, at least 1, not {snapshot_every}")
        if dist.is_initialized():
            raise ValueError(
                f"leave out init_process_group: {type(self).__name__} forms the process group itself"
            )
        agreed("exactness", "sample-exact", str)  # raises when the job asks for more
        nonfinite = cast("Nonfinite | None", agreed("nonfinite", nonfinite, str))
        check_prefetch(num_workers, prefetch_factor)
        sampling = sampling_of(data, sampler, batch_sampler, is_stream=is_stream(data))
        global_batch = needed("global_batch", batch_size_of(batch_sampler, global_batch))
        shards = needed("shards", shards)
        settings = Settings(
            global_batch,
            shards,
            micro_batch,
            seed,
            shuffle,
            drop_last,
            "sample-exact",
            epochs,
            total_steps,
            check_every,
            nonfinite,
            sampler="" if sampling is None else sampling.name,
        )
        loading = Loading(collate_fn, num_workers, prefetch_factor, sampling)
        super().__init__(settings, _device(), data, loading)
        self._parallel = Parallel(shard, tensor)
        self._build = build
        self._scaler = scaler
        self._every = snapshot_every
        self._snapshots = Snapshots(self._device)
        self._saving = ShardedSaving()
        #: The checkpoint that needed a snapshot of its own, and the seconds that it has held the loop up so far.
        self._stall: tuple[int, float] | None = None
        self._step_runner = StepRunner(
            self._settings, self._device, data, collate_fn, scaler, self._compute_time
        )
        self._groups = ProcessGroups(self._link, self._device, self._resume, self._newest_held_step)
        self._built: BuiltModel | None = None
        self._mesh_group: MeshProcessGroup | None = None
        self._state: LoopState | None = None
        self._is_new = not self._groups.is_joiner
        #: What the script saves beside them.
        self._extra: dict[str, Stateful] = {}
        #: Steps after which all copies were last the same.
        self._agreed_after: int | None = None
        #: Steps in a row that were left out.
        self._skips = 0

    # --- what scripts use -------------------------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The model of the present group, once the loop has begun."""
        return self._present.sharded.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimizer."""
        return self._present.sharded.optimizer

    @property
    def scheduler(self) -> Any:
        """Its scheduler, None without one."""
        return self._present.scheduler

    @property
    def steps_done(self) -> int:
        """Steps that are complete."""
        return self._progress.step

    def evaluate(
        self,
        data: Any,
        compute: Evaluate,
        *,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> dict[str, float]:
        """The mean loss over a dataset, as `loss`, and the means beside it by name, as `Loop.evaluate` gives them.

        Where a worker is lost meanwhile, every mean is not a number, and the step is done again.
        Raises RuntimeError where it is called elsewhere than inside a step after its `optimizer.step()`, ValueError
        for a dataset that has no sample, and TypeError for a function that does not return the same metrics each time.
        """
        step, found = self._step, PartSums()
        held = held_for(
            step,
            self._settings,
            self._loading,
            self._device,
            data,
            compute,
            batch_size,
            collate_fn,
            num_workers,
        )
        assert step is not None
        if self._is_broken():
            return Interrupted()
        built = self._present
        if built.optimizers.is_unused(step.number, local_gradients(built.sharded.parameters.values())):
            raise RuntimeError(TOO_EARLY)
        self._set_lenient(False)
        try:
            return evaluated_together(held, built, self._groups.group, found)
        except Exception:
            # Whatever goes wrong in a layer while a peer is missing, goes wrong because of that.
            if not self._is_broken():
                raise
            return Interrupted()
        finally:
            self._set_lenient(True)

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

    # --- what copies hold, and what is not finite -------------------------------------------------------------------

    def _check_data(self, group: Group) -> None:
        one = self._feed.peek()
        if one is not None and one.fingerprint is not None:
            # The exchange of a snapshot is of the same group, whose collectives have one order on all ranks.
            self._snapshots.wait()
        super()._check_data(group)

    def _agree(self, compute: Compute | None) -> StateDigests | None:
        """Compare all copies with each other when it is time; returns what the step must not change.

        Raises PeerLost and Diverged.
        """
        steps_done = self._progress.step
        if not is_due(steps_done, self._settings.check_every):
            return None
        assert self._state is not None
        backup = self._snapshots.backup(SnapshotId(steps_done, self._generation))
        shared = self._state.capture(self._progress)["parts"]
        shared = {**shared.pop("sharded"), **shared}
        found = ReplicaDigests(self._present.grid, self._present.sharded, shared, backup).difference(
            self._groups.host_group
        )
        if found is not None:
            self._end_diverged(found.text(steps_done, self._agreed_after))
        self._agreed_after = steps_done
        return StateDigests(self._watched(compute), self._device)

    def _watched(self, compute: Compute | None) -> dict[str, torch.Tensor]:
        """What may not change while gradients are computed, by a function given to `backward` where there is one."""
        own = self._present.sharded.parameters
        known = {id(one) for one in own.values()}
        beside = {} if compute is None else parameters_beside(compute, known)
        return {name: local(one) for name, one in {**own, **beside}.items()}

    def _is_settled(self, step: AnyStep, result: StepResult) -> bool:
        """Whether the script may use the gradients; if not, it went back.  Raises PeerLost and NotFinite."""
        what = self._not_finite(result)
        if what is None:
            self._skips = 0
            return True
        if self._settings.nonfinite == "stop":
            raise NotFinite(f"the {what} of step {step.number} is not finite")
        if self._settings.nonfinite == "skip":
            self._skip(step, what)
            return True
        self._roll_back(step, what)
        return False

    def _not_finite(self, result: StepResult) -> str | None:
        """`loss` or `gradient`, where something is to follow from it; the same on all ranks."""
        if not is_checked(self._settings.nonfinite, is_scaled=self._scaler is not None):
            return None
        if not math.isfinite(result.means[0]):
            return "loss"
        return "gradient" if self._scaler is None and not result.are_gradients_finite else None

    def _skip(self, step: AnyStep, what: str) -> None:
        self._skips += 1
        text = left_out_text(self._skips, what, step.number)
        self._present.drop_gradients()
        self._present.buffers.restore()
        step.was_skipped = True
        if self._rank == 0:
            log.warning("%s", text)

    def _roll_back(self, step: AnyStep, what: str) -> None:
        """Go on from the newest snapshot, without the batch of this step; raises PeerLost."""
        check_rollbacks(len(self._left_out), what, step.number)
        left_out = [*self._left_out, (step.epoch, step.place)]
        self._restore(self._snapshots.take_back(self._present.sharded))
        self._left_out = left_out
        self._saved_step = None
        self._present.drop_gradients()
        if self._rank == 0:
            text = rollback_text(what, step.number, self._progress.step, step.epoch, step.place)
            log.warning("%s", text)
        self._open_feed()

    def _end_step(self, step: AnyStep) -> None:
        self._set_lenient(False)
        self._step = None
        try:
            self._groups.check()
            self._progress = Progress(step.number, step.epoch, step.place + 1)
            # One step is time enough for an exchange: waiting longer could cost more repeated steps.
            self._snapshots.wait()
            is_compared = is_due(step.number, self._settings.check_every)
            if step.number % self._every == 0 or is_compared:
                self._take()
            if self._link is not None:
                self._compute_time.report()
                self._carry_out(self._link.reach_boundary(step.number))
        except PeerLost as lost:
            self._change(str(lost))

    def _carry_out(self, decided: str | None) -> None:
        """Do what was decided for the end of this step; raises PeerLost."""
        if decided == "checkpoint":
            self._checkpoint(is_last=False)
        elif decided == "regroup":
            # The state of a worker that leaves as planned must be in the memory of another one.
            self._snapshots.wait()
            if self._snapshots.newest_step != self._progress.step:
                self._take()
            self._secure()
            self._change("planned")
        else:
            self._groups.check()

    def _settle(self) -> bool:
        try:
            self._secure()
            self._checkpoint(is_last=True)
            self._saving.wait()
            # Where one is lost before it has handed over its part, the others write it again.
            self._secure()
        except PeerLost as lost:
            self._change(str(lost))
            return False
        return True

    def _finish(self) -> None:
        self._present.optimizers.close()

    def _interrupt(self) -> None:
        # A process that ends would take the thread with it, and with that a checkpoint.
        self._saving.wait()
        self._present.optimizers.close()

    def _secure(self) -> None:
        """Wait until all workers have their neighbours' parts of the newest snapshot; raises PeerLost."""
        self._snapshots.wait()
        host_group = self._groups.host_group
        host_group.wait(host_group.sum(torch.ones(1)))

    # --- the group and the state ------------------------------------------------------------------------------------

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
        self._saving.save(own, writer, self._present.grid, in_background=in_background)
        ended = time.monotonic() if in_background else self._link.taken_at
        self._stall = (step, ended - began)
        if is_taken or not in_background:
            self._report_stall(0.0)

    def _report_stall(self, more_s: float) -> None:
        """Report how long the checkpoint begun last has held the loop up, with what it took since; once."""
        stall, self._stall = self._stall, None
        if stall is not None and self._link is not None:
            self._link.stalled(stall[0], stall[1] + more_s)

    def _does_report(self) -> bool:
        return not self._is_broken()

    def _value(self, value: Any) -> float:
        return float(full(value))

    def _is_broken(self) -> bool:
        try:
            self._groups.check()
        except PeerLost:
            return True
        return False

    def _set_lenient(self, is_lenient: bool) -> None:
        if self._mesh_group is not None:
            self._mesh_group.is_lenient = is_lenient


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", training.world().local_rank)
    torch.cuda.set_device(device)
    return device

"""What all loops of a sharded model have in common: what scripts use, what is checked, and how steps end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from remora.torch.agreement import (
    CHECK_EVERY,
    StateDigests,
    is_due,
    parameters_beside,
)
from remora.torch.evaluation import TOO_EARLY, Evaluate, PartSums, held_for
from remora.torch.group import Group, PeerLost
from remora.torch.loop_arguments import settings_and_loading
from remora.torch.nonfinite import (
    Nonfinite,
    NotFinite,
    check_rollbacks,
    is_checked,
    left_out_text,
    rollback_text,
)
from remora.torch.sharded.building import Build
from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.replica_check import ReplicaDigests
from remora.torch.sharded.sharded_evaluation import Interrupted, evaluated_together
from remora.torch.sharded.sharded_recovery import ShardedRecovery
from remora.torch.sharded.snapshot_choice import (
    SnapshotId,
)
from remora.torch.sharded.step_runner import (
    StepResult,
    full,
    local,
    local_gradients,
)
from remora.torch.step import AnyStep, Compute

log = logging.getLogger("remora.torch")


class ShardedTraining(ShardedRecovery):
    """What loops share whose model is sharded over the workers; `ShardedLoop` describes the arguments."""

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
        settings, loading = settings_and_loading(
            data=data,
            global_batch=global_batch,
            shards=shards,
            total_steps=total_steps,
            epochs=epochs,
            seed=seed,
            micro_batch=micro_batch,
            collate_fn=collate_fn,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            sampler=sampler,
            batch_sampler=batch_sampler,
            shuffle=shuffle,
            drop_last=drop_last,
            # Raises where the job asks for more.
            exactness="sample-exact",
            check_every=check_every,
            nonfinite=nonfinite,
        )
        super().__init__(settings, data, loading, build, Parallel(shard, tensor), scaler)
        self._every = snapshot_every
        #: Steps after which all copies were last the same.
        self._agreed_after: int | None = None

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
            self._data,
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
            self._groups.synchronize()
            self._progress = self._progress_after(step)
            # One step is time enough for an exchange: waiting longer could cost more repeated steps.
            self._snapshots.wait()
            is_compared = is_due(step.number, self._settings.check_every)
            if step.number % self._every == 0 or is_compared:
                self._share_places(self._groups.host_group, torch.device("cpu"))
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

    # --- a group that broke -----------------------------------------------------------------------------------------

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

"""What loops share whose workers each hold the whole model: its state, their group, checkpoints and evaluations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from remora import training
from remora.torch import state as states
from remora.torch.agreement import CHECK_EVERY, is_due
from remora.torch.buffers import Buffers
from remora.torch.elastic import ElasticLoop
from remora.torch.evaluation import TOO_EARLY, Evaluate, held_for
from remora.torch.group import PeerLost
from remora.torch.hardware import hardware
from remora.torch.layout import Writer
from remora.torch.loop_arguments import settings_and_loading
from remora.torch.loop_settings import (
    Exactness,
    agreed,
    check_model,
    fingerprint,
    make_deterministic,
    repr_hash,
)
from remora.torch.losses import Losses
from remora.torch.members import Membership
from remora.torch.nonfinite import Nonfinite
from remora.torch.optimizers import EARLY, Optimizers
from remora.torch.order import shards_of
from remora.torch.reduction import Bitwise, SampleExact
from remora.torch.replica import Replica
from remora.torch.replicated_evaluation import Evaluations
from remora.torch.saving import Saving
from remora.torch.state import Progress, Stateful
from remora.torch.state_sync import WorkerState
from remora.torch.step import NOTES, AnyStep


class ReplicatedTraining(ElasticLoop):
    """Training with one copy of the model on each worker, but for its steps; `Loop` describes the arguments."""

    #: The error for an optimizer that steps before the gradients of all workers are there.
    _early_text = EARLY

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        data: Any,
        global_batch: int | None = None,
        shards: int | None = None,
        total_steps: int | None = None,
        epochs: int | None = None,
        seed: int = 0,
        scheduler: Stateful | None = None,
        scaler: Any = None,
        state: Mapping[str, Stateful] | None = None,
        micro_batch: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        shuffle: bool = True,
        drop_last: bool = False,
        exactness: Exactness | None = None,
        check_every: int = CHECK_EVERY,
        nonfinite: Nonfinite | None = None,
        verify_every: int | None = None,
    ) -> None:
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
            exactness=exactness,
            check_every=check_every,
            nonfinite=nonfinite,
            verify_every=agreed("verify_every", verify_every, int),
        )
        check_model(model)
        is_bitwise = settings.exactness == "bitwise"
        if is_bitwise:
            make_deterministic()
        parameters = [one for one in model.parameters() if one.requires_grad]
        super().__init__(settings, parameters[0].device, data, loading)
        if settings.verify_every is not None:
            self._check_verifiable()
        self._optimizers = Optimizers(model, optimizer, early=self._early_text)
        self._scaler = scaler
        self._replica = Replica(model, self._optimizers, scheduler, scaler, state, settings.data_order())
        self._losses = Losses(scaler, self._device)
        self._buffers = Buffers(model)
        kind = Bitwise if is_bitwise else SampleExact
        self._reduction = kind(parameters, settings.shards, NOTES + self._buffers.width)
        self._members = Membership(self._link, settings.shards, self._reduction, self._buffers, self._device)
        self._evaluations = Evaluations(self._members, model, self._device)
        self._saving = Saving(model, self._optimizers, self._device)
        self._fingerprint = fingerprint(settings, self._replica.parameters.values())
        self._hardware = repr_hash(hardware(self._device)) if is_bitwise else 0
        #: What a rollback goes to, the same step on all workers.
        self._snapshot: dict[str, Any] | None = None
        #: The state is that of the snapshot, and no step was done since.
        self._is_rolled_back = False
        #: The script has asked for a checkpoint of the step that it is in.
        self._wants_checkpoint = False

    def _check_verifiable(self) -> None:
        """Raise ValueError where no worker can compute a shard of another one."""
        raise ValueError(
            "verify_every needs Loop, whose function computes the shard of another worker again: leave it out here"
        )

    # --- what scripts use -------------------------------------------------------------------------------------------

    @property
    def steps_done(self) -> int:
        """Steps whose `backward` has returned."""
        return self._reached().step

    def checkpoint(self) -> None:
        """Write a checkpoint of the step that the script is in, when it ends; all workers call it alike.

        Beside those that the loop writes by itself, for a step whose metrics say that it is worth keeping.  A change of
        the group at the end of this very step goes before.
        """
        self._wants_checkpoint = True

    def check_group(self) -> None:
        """Go on with another group where this one is to be left, as the end of a step does.

        For long work inside a step and behind its `backward`, such as an evaluation: a worker that does not leave a
        group that has lost a peer within seconds counts as lost, too.  Workers that join meanwhile get the state of
        now, so what this work has still to change belongs into it.
        """
        if self._link is not None and self._link.must_leave(self._members.generation):
            self._change_inside("the supervisor said that the group is to be left")

    def evaluate(
        self,
        data: Any,
        compute: Evaluate,
        *,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> dict[str, float]:
        """The mean loss over a dataset, as `loss`, and the means beside it by name: the same on every worker.

        All workers call it alike inside a step, after its `optimizer.step()`, and share the samples: each counts once.
        `compute(model, batch)` returns what the function for `backward` returns, and is called without gradients, with
        the model in evaluation.  `data` is a dataset with a length, or a stream that is the same on all workers; a
        batch has at most `batch_size` samples, those of a shard if None.  Where a batch has the same bits on every
        worker, the result has the same for any number of them.
        Raises RuntimeError where it is called elsewhere, ValueError for a dataset that has no sample or cannot be
        shared, TypeError for a function that does not return the same metrics each time, and PeerLost as `backward`
        does.
        """
        step = self._step
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
        if self._optimizers.is_unused(step.number, self._replica.gradients()):
            raise RuntimeError(TOO_EARLY)
        return self._evaluations.run(held, self._change_inside)

    def save(self, folder: Path) -> None:
        """Write the state of training into a folder that is there; one worker is enough.

        Inside the loop it is called after `optimizer.step()`.
        """
        states.write(self._saved_state(self._reached()), folder)

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` or a checkpoint has written; raises CheckpointUnusable."""
        self._restore_state(states.read(folder))

    # --- steps begin and end ----------------------------------------------------------------------------------------

    @property
    def _rank(self) -> int:
        return self._members.group.rank

    @property
    def _generation(self) -> int:
        return self._members.generation

    @property
    def _own_shards(self) -> range:
        group = self._members.group
        return shards_of(group.rank, group.world_size, self._settings.shards)

    def _reached(self) -> Progress:
        """Progress of training, with the step that the script is in once its gradients are complete."""
        step = self._step
        if step is None or not step.is_done:
            return self._progress
        return self._progress_after(step)

    def _begin(self) -> None:
        folder = training.resume_from()
        is_fresh = self._progress.step == 0
        if folder is not None and not self._members.is_joiner:
            self.load(folder)
            is_fresh = False
        step = -1 if self._members.is_joiner else self._progress.step
        worker_state = WorkerState(step, is_fresh, self._fingerprint, self._hardware)
        self._members.begin(worker_state, self._capture, self._restore)
        self._was_rank_0 = self._members.group.rank == 0
        self._open_feed()
        self._optimizers.know_saved(self._replica.saved_beside)
        self._optimizers.open()

    def _end_step(self, step: AnyStep) -> None:
        self._progress = self._reached()
        self._step = None
        self._evaluations.end_step()
        wants_checkpoint, self._wants_checkpoint = self._wants_checkpoint, False
        if self._link is None:
            return
        self._compute_time.report()
        decided = self._link.reach_boundary(step.number)
        is_decided = decided is not None and self._link.is_agreed
        if is_decided or is_due(step.number, self._settings.check_every):
            self._share_places(self._members.group, self._device)
        match decided:
            case "checkpoint":
                self._checkpoint(is_last=False)
            case "regroup":
                self._change("planned")
            case None if self._link.must_leave(self._members.generation):
                self._change("the supervisor said that the group is to be left")
            case None if wants_checkpoint:
                self._checkpoint(is_last=False)

    def _settle(self) -> bool:
        try:
            self._reduction.confirm()
            self._reduction.await_confirmation()
        except PeerLost as lost:
            self._change(str(lost))
            return False
        return True

    def _finish(self) -> None:
        self._optimizers.close()
        self._checkpoint(is_last=True)
        self._saving.wait()

    def _interrupt(self) -> None:
        self._optimizers.close()
        # Its end shall not meet a collective under way.
        with contextlib.suppress(PeerLost):
            self._reduction.await_confirmation()

    # --- the group and the state ------------------------------------------------------------------------------------

    def _change(self, why: str) -> bool:
        """Join the next group; True when that brought the result of the step under way."""
        self._saved_step = None
        # A worker that joins has none of the old ones.
        self._snapshot = None
        is_inside = self._step is not None and self._step.is_done
        worker_state = WorkerState(
            self._progress.step,
            False,
            self._fingerprint,
            self._hardware,
            self._is_rolled_back,
            self._evaluations.reached if is_inside else 0,
        )
        was_delivered = self._members.change(worker_state, why, self._capture, self._restore)
        self._report_again()
        self._open_feed()
        if was_delivered:
            # The step under way needs no batches any more.
            for _ in self._feed.step():
                pass
        return was_delivered

    def _change_inside(self, why: str) -> None:
        """Join the next group inside a step whose gradients are there, with what the script has made of it."""
        self._progress = self._reached()
        self._change(why)

    def _capture_state(self, progress: Progress, only: Container[str] | None = None) -> dict[str, Any]:
        return self._replica.capture(progress, self._left_out, only)

    def _saved_state(self, progress: Progress, only: Container[str] | None = None) -> dict[str, Any]:
        """The same, as files have it: with what those need to know of the optimizers who open it without the script."""
        return {
            **self._capture_state(progress, only),
            "optimized": self._optimizers.names(self._replica.parameters),
        }

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointUnusable."""
        self._progress, self._left_out = self._replica.restore(state)

    def _capture(self) -> Any:
        return {
            "state": self._capture_state(self._progress),
            "metric_names": list(self._losses.metric_names),
            "reports": list(self._reports),
        }

    def _restore(self, captured: Any) -> None:
        self._restore_state(captured["state"])
        self._losses.metric_names = tuple(captured["metric_names"])
        self._reports.clear()
        self._reports.extend((number, dict(values)) for number, values in captured["reports"])

    def _checkpoint(self, *, is_last: bool) -> None:
        """Write what is asked for, in the background unless this process is about to end."""
        step = self._progress.step
        if self._link is None or step == self._saved_step:
            return
        self._saved_step = step
        place = self._members.group.rendezvous
        writer = Writer(place.rank, place.world_size, self._members.generation)
        state = self._saved_state(self._progress, None if place.rank == 0 else self._saving.replicated)
        self._saving.save(step, state, writer, in_background=not (is_last or self._link.stops))

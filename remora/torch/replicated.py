"""What loops share whose workers each hold the whole model: its state, their group, and the gradients of a step."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from remora import training
from remora.torch import state as states
from remora.torch.agreement import (
    CHECK_EVERY,
    StateDigests,
    changed_text,
    difference_text,
    gathered,
    is_due,
    tensors_of,
)
from remora.torch.buffers import Buffers
from remora.torch.elastic import ElasticLoop
from remora.torch.evaluation import (
    TOO_EARLY,
    Evaluate,
    Held,
    PartSums,
    evaluated,
    held_for,
    names_of,
    rows_of,
    total,
)
from remora.torch.feed import Loading, MicroBatch, is_stream
from remora.torch.group import PeerLost
from remora.torch.hardware import hardware
from remora.torch.layout import Writer
from remora.torch.loop_settings import (
    Exactness,
    Settings,
    agreed,
    check_model,
    fingerprint,
    make_deterministic,
    needed,
    repr_hash,
)
from remora.torch.members import Membership
from remora.torch.nonfinite import (
    SNAPSHOT_EVERY,
    Nonfinite,
    NotFinite,
    check_rollbacks,
    is_checked,
    left_out_text,
    rollback_text,
    snapshot,
    what_is_not_finite,
)
from remora.torch.optimizers import EARLY, Optimizers
from remora.torch.order import shards_of
from remora.torch.randomness import derive, seed_everything
from remora.torch.reduction import Bitwise, SampleExact
from remora.torch.sampling import batch_size_of, check_prefetch, sampling_of
from remora.torch.saving import Saving
from remora.torch.state import LoopState, Progress, Stateful
from remora.torch.state_sync import WorkerState
from remora.torch.step import (
    NOTES,
    AnyStep,
    Outcome,
    divide_gradients,
    means,
)

log = logging.getLogger("remora.torch")


class ReplicatedLoop(ElasticLoop):
    """Training with one copy of the model on each worker; `Loop` describes the arguments.

    A step is computed in tries: `_batches` gives this worker's micro-batches, `_add` takes the loss of each, and
    `_reduce` adds up the gradients of all workers, or says that the step is to be computed again.
    """

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
        nonfinite = cast("Nonfinite | None", agreed("nonfinite", nonfinite, str))
        exactness = cast("Exactness", agreed("exactness", exactness, str) or "sample-exact")
        verify_every = agreed("verify_every", verify_every, int)
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
            exactness,
            epochs,
            total_steps,
            check_every,
            nonfinite,
            verify_every,
            "" if sampling is None else sampling.name,
        )
        check_model(model)
        if exactness == "bitwise":
            make_deterministic()
        parameters = [one for one in model.parameters() if one.requires_grad]
        loading = Loading(collate_fn, num_workers, prefetch_factor, sampling)
        super().__init__(settings, parameters[0].device, data, loading)
        if verify_every is not None:
            self._check_verifiable()
        self._model = model
        #: All, also those that are frozen.
        self._parameters = dict(model.named_parameters())
        #: Names of those that have gradients.
        self._trained = _trained(self._parameters)
        self._optimizers = Optimizers(model, optimizer, early=self._early_text)
        self._scaler = scaler
        self._buffers = Buffers(model)
        notes = NOTES + self._buffers.width
        kind = Bitwise if exactness == "bitwise" else SampleExact
        self._reduction = kind(parameters, shards, notes)
        self._state = LoopState(
            _parts(model, self._optimizers, scheduler, scaler, state), settings.data_order()
        )
        self._members = Membership(self._link, shards, self._reduction, self._buffers, self._device)
        self._saving = Saving(model, self._optimizers, self._device)
        self._fingerprint = fingerprint(settings, self._parameters.values())
        self._hardware = repr_hash(hardware(self._device)) if exactness == "bitwise" else 0
        self._metric_names: tuple[str, ...] = ()
        #: Whether the loss, and each metric, comes as a sum with its count.
        self._are_sums: tuple[bool, ...] | None = None
        #: What else is saved, that only the script changes.
        self._extra = dict(state or {})
        self._saved_beside = [*self._extra.values(), *([scheduler] if scheduler is not None else [])]
        #: Steps after which the workers last held the same weights.
        self._agreed_after: int | None = None
        #: What a rollback goes to, the same step on all workers.
        self._snapshot: dict[str, Any] | None = None
        self._is_rolled_back = False
        #: Steps in a row that were left out.
        self._skips = 0
        #: Evaluations of the step under way, counted by two, and whether this worker has the result of the last one.
        self._evaluations = 0
        self._has_result = True
        #: The script has asked for a checkpoint of the step that it is in.
        self._wants_checkpoint = False
        #: The micro-batch whose loss the script computes, and its seed.
        self._micro_batch: MicroBatch | None = None
        self._micro_batch_seed = 0
        #: Why the try under way is to be given up.
        self._lost: PeerLost | None = None
        #: What it must not change, where that is looked at.
        self._unchanging: StateDigests | None = None

    def _check_verifiable(self) -> None:
        """Raise ValueError where no worker can compute a shard of another one."""
        raise ValueError(
            "verify_every needs Loop, whose function computes the shard of another worker again: leave it out here"
        )

    @property
    def steps_done(self) -> int:
        """Steps whose `backward` has returned."""
        return self._reached().step

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
            self._progress = self._reached()
            self._change("the supervisor said that the group is to be left")

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
        Raises RuntimeError where it is called elsewhere, ValueError for a dataset that has no sample, TypeError for a
        function that does not return the same metrics each time, and PeerLost as `backward` does.
        """
        step = self._step
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
        if self._optimizers.is_unused(step.number, (one.grad for one in self._parameters.values())):
            raise RuntimeError(TOO_EARLY)
        self._evaluations += 2
        self._has_result = False
        found = PartSums()
        while True:
            try:
                return self._evaluated(held, found)
            except PeerLost as lost:
                self._progress = self._reached()
                self._change(str(lost))
            # Others may still need this worker's part of it.
            if found.result is not None and self._evaluation - 1 not in self._members.evaluations:
                return found.result

    def _evaluated(self, held: Held, found: PartSums) -> dict[str, float]:
        """The result of an evaluation over all workers that take part; raises PeerLost."""
        ranks = self._members.evaluators or tuple(range(self._members.group.world_size))
        group = self._members.group
        if self._members.evaluators is not None:
            group = self._members.subgroup(ranks, f"evaluation-{self._evaluations}")
        own = shards_of(ranks.index(self._rank), len(ranks), held.parts)
        with contextlib.closing(evaluated(held, self._model, found.missing(own), found)) as batches:
            for _ in batches:
                group.check()
                self._members.check()
        names = names_of(held, self._model, found)
        rows = gathered(group, rows_of(found, own, held.parts).to(self._device).view(-1))
        found.result = total(rows.view(len(ranks), held.parts, -1).sum(0).tolist(), names)
        self._has_result = True
        # No worker goes on before all have it: one that is lost now is not needed any more.
        gathered(group, torch.zeros(1, device=self._device))
        return found.result

    @property
    def _evaluation(self) -> int:
        """How far this worker is in evaluations; see `WorkerState`."""
        if self._step is None or not self._step.is_done:
            return 0
        return 1 + self._evaluations - (not self._has_result)

    def save(self, folder: Path) -> None:
        """Write the state of training into a folder that is there; one worker is enough.

        Inside the loop it is called after `optimizer.step()`.
        """
        states.write(self._saved_state(self._reached()), folder)

    def _reached(self) -> Progress:
        """Progress of training, with the step that the script is in once its gradients are complete."""
        step = self._step
        if step is None or not step.is_done:
            return self._progress
        return Progress(step.number, step.epoch, step.place + 1)

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` or a checkpoint has written; raises CheckpointUnusable."""
        self._restore_state(states.read(folder))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _batches(self, step: AnyStep) -> Iterator[Any]:
        """A try begins: this worker's micro-batches, each with random numbers of its own and to be given to `_add`.

        Fewer come where the group is to be left, which `_reduce` knows then.
        """
        self._lost = None
        self._optimizers.begin(one.grad for one in self._parameters.values())
        try:
            self._start(step)
            for micro_batch, batch in self._feed.step():
                self._reduction.group.check()
                if micro_batch.index == 0:
                    self._buffers.restore()
                step.samples.setdefault(micro_batch.shard, []).extend(micro_batch.samples)
                if micro_batch.samples:
                    self._micro_batch = micro_batch
                    self._micro_batch_seed = self._seed(step, micro_batch)
                    yield batch
                if micro_batch.ends_shard and not micro_batch.ends_step:
                    self._reduction.leaf(micro_batch.shard)
            self._compute_time.end()
        except PeerLost as lost:
            self._lost = lost

    def _seed(self, step: AnyStep, micro_batch: MicroBatch) -> int:
        """Give a micro-batch its random numbers; returns their seed."""
        where = (step.number, micro_batch.shard, micro_batch.index)
        seed = derive(self._settings.seed, "compute", *where)
        seed_everything(seed)
        return seed

    def _start(self, step: AnyStep) -> None:
        """Begin a try; raises PeerLost, after which `_undo` restores the state before the step."""
        if self._settings.nonfinite == "rollback":
            self._set_position(step)
        self._follow_frozen()
        self._reduction.begin()
        # Before anything that a lost peer may break off: an undone step goes back to here.
        self._buffers.begin()
        self._check_data(self._reduction.group)
        self._unchanging = self._agree()
        self._compute_time.begin()
        step.samples = {}

    def _add(self, found: Outcome) -> None:
        """The backward pass of the micro-batch that `_batches` gave last, as its share of the global batch."""
        micro_batch, reduction = self._micro_batch, self._reduction
        assert micro_batch is not None
        self._micro_batch = None
        loss = self._share(found, micro_batch)
        if micro_batch.ends_shard and micro_batch.shard == 0:
            # Before the backward pass, in which the notes may leave already.
            reduction.note(NOTES, self._buffers.keep().to(self._device))
        if micro_batch.ends_step:
            reduction.arm()
        loss.backward()

    def _reduce(self, step: AnyStep) -> list[float] | None:
        """The notes' sums of a step that may count, whose gradients are there; None when it is to be computed again.

        Raises NotFinite when there is none.
        """
        try:
            notes = self._sums(step)
        except PeerLost as lost:
            if not self._recover(str(lost)):
                return None
            # Another worker had the result already.
            notes = self._reduction.spread()
        numbers: list[float] = notes[:NOTES].tolist()
        divide_gradients(self._parameters.values(), numbers)
        self._is_rolled_back = False
        what = self._not_finite(numbers)
        if what is None:
            self._skips = 0
            return numbers
        match self._settings.nonfinite:
            case "stop":
                raise NotFinite(f"the {what} of step {step.number} is not finite")
            case "skip":
                self._skip(step, what)
                return numbers
        return self._gone_back(step, what, numbers)

    def _sums(self, step: AnyStep) -> torch.Tensor:
        """Complete the try under way: the notes' sums; raises PeerLost."""
        if self._lost is not None:
            raise self._lost
        self._reduction.check_hooks()
        notes = self._reduction.finish()
        self._verify(step)
        self._buffers.finish(self._reduction.group, notes[NOTES:])
        if self._unchanging is not None:
            self._check_unchanged(self._unchanging)
        return notes

    def _verify(self, step: AnyStep) -> None:
        """Compare what workers compute for the same shard, when that is due.  Raises PeerLost and Diverged."""

    def _gone_back(self, step: AnyStep, what: str, numbers: list[float]) -> list[float] | None:
        """Roll back; the step's numbers where there is no other batch to train, and None otherwise."""
        try:
            # No worker goes back while others still need the result of this step.
            self._reduction.confirm()
            self._reduction.await_confirmation()
        except PeerLost as lost:
            self._recover(str(lost))
            return None
        self._roll_back(step, what)
        if self._feed.peek() is not None:
            return None
        step.was_skipped = True
        return numbers

    def _complete(self, step: AnyStep, numbers: Sequence[float]) -> torch.Tensor:
        """The gradients are there, and the script goes on; returns the mean loss of the global batch."""
        self._optimizers.end(step.number)
        if not step.was_skipped and all(one.grad is None for one in self._parameters.values()):
            raise RuntimeError(
                "no parameter of the model got a gradient, so it would not be trained: compute the loss from the model"
                " that Loop was given, and not from copies of its parameters"
            )
        seed_everything(derive(self._settings.seed, "body", step.number))
        loss, *metrics = means(numbers)
        step.metrics = dict(zip(self._metric_names, metrics, strict=False))
        return torch.tensor(loss, device=self._device)

    def _not_finite(self, numbers: Sequence[float]) -> str | None:
        """`loss` or `gradient`, where something is to follow from it."""
        if not is_checked(self._settings.nonfinite, is_scaled=self._scaler is not None):
            return None
        gradients = [] if self._scaler is not None else [one.grad for one in self._parameters.values()]
        return what_is_not_finite(means(numbers)[0], gradients)

    def _skip(self, step: AnyStep, what: str) -> None:
        self._skips += 1
        text = left_out_text(self._skips, what, step.number)
        self._drop_gradients()
        # The statistics of BatchNorm are as little finite as the loss.
        self._buffers.restore()
        step.was_skipped = True
        if self._rank == 0:
            log.warning("%s", text)

    def _roll_back(self, step: AnyStep, what: str) -> None:
        """Go on from the last snapshot, without the batch of this step."""
        check_rollbacks(len(self._left_out), what, step.number)
        assert self._snapshot is not None
        left_out = [*self._left_out, (step.epoch, step.place)]
        self._saving.await_copy()
        self._restore_state(copy.deepcopy(self._snapshot))
        self._left_out = left_out
        self._is_rolled_back = True
        self._saved_step = None
        self._drop_gradients()
        if self._rank == 0:
            text = rollback_text(what, step.number, self._progress.step, step.epoch, step.place)
            log.warning("%s", text)
        self._open_feed()

    def _drop_gradients(self) -> None:
        for one in self._parameters.values():
            one.grad = None

    def _recover(self, why: str) -> bool:
        """Join the next group with the state before the step; True when that brought the step's result."""
        # First, because what it had under way may hold the device.
        self._members.leave()
        self._undo()
        return self._change(why)

    def _set_position(self, step: AnyStep) -> None:
        """A rollback may have changed which step comes next; take a snapshot before it when it is time."""
        micro_batch = self._feed.peek()
        assert micro_batch is not None
        step.number = self._progress.step + 1
        step.stand_at(micro_batch)
        before = self._snapshot
        if before is None or self._progress.step - before["progress"][0] >= SNAPSHOT_EVERY:
            self._snapshot = snapshot(self._capture_state(self._progress), self._saving.replicated)

    def _agree(self) -> StateDigests | None:
        """Compare the weights with those of all others when it is time; returns what the step must not change.

        Raises PeerLost and Diverged.
        """
        steps_done = self._progress.step
        if not is_due(steps_done, self._settings.check_every):
            return None
        self._check_names()
        digests = StateDigests({**self._held(), **self._buffers.held()}, self._device)
        found = digests.compare(self._reduction.group, is_bitwise=self._settings.exactness == "bitwise")
        if found is not None:
            self._end_diverged(difference_text(*found, steps_done, self._agreed_after))
        self._agreed_after = steps_done
        return StateDigests(self._watched(), self._device)

    def _check_unchanged(self, before: StateDigests) -> None:
        """Raise Diverged when the step changed what only the script may change, after it."""
        if (name := before.changed(self._watched())) is not None:
            self._end_diverged(changed_text(name))

    def _check_names(self) -> None:
        """Raise RuntimeError where layers were replaced: a worker that joins or resumes would not have the new ones."""
        now = dict(self._model.named_parameters())
        others = [
            name for name in (*now, *self._parameters) if now.get(name) is not self._parameters.get(name)
        ]
        if others:
            raise RuntimeError(
                f"{others[0]} is not the parameter that it was when Loop was made, and neither a worker that joins"
                " nor a resume would know: change layers, parametrizations and pruning before Loop(...)"
            )

    def _held(self) -> dict[str, torch.Tensor]:
        """What all workers hold alike between two steps."""
        extra = {f"state[{name!r}]": part.state_dict() for name, part in self._extra.items()}
        return {**self._parameters, **dict(tensors_of(extra))}

    def _watched(self) -> dict[str, torch.Tensor]:
        """What no try may change."""
        return self._held()

    def _follow_frozen(self) -> None:
        """Parameters may have been frozen or unfrozen since the last step."""
        trained = _trained(self._parameters)
        if trained == self._trained:
            return
        if not trained:
            raise RuntimeError(
                "the model has no parameter to train: leave at least one that requires a gradient"
            )
        self._trained = trained
        self._reduction.train([self._parameters[name] for name in trained])

    def _share(self, found: Outcome, micro_batch: MicroBatch) -> torch.Tensor:
        """Loss of one micro-batch, as its share of the global batch; notes it with its metrics."""
        if found.metrics:
            self._metric_names = tuple(found.metrics)
        self._check_counts(found)
        for place, numbers in found.notes(*_parts_of_batch(micro_batch), self._number):
            self._reduction.note(place, numbers)
        return self._scaled_share(found, micro_batch)

    def _scaled_share(self, found: Outcome, micro_batch: MicroBatch) -> torch.Tensor:
        """The loss whose backward pass adds the micro-batch's part to the gradients."""
        share = found.share(*_parts_of_batch(micro_batch))
        return share if self._scaler is None else self._scaler.scale(share)

    def _check_counts(self, found: Outcome) -> None:
        """Raise TypeError for a script that returns means at one time and sums at another: they do not add up."""
        are_sums = tuple(count is not None for count in found.counts)
        if self._are_sums not in (None, are_sums):
            raise TypeError(
                "the function given to backward returns (sum, count) for every batch, or for none"
            )
        self._are_sums = are_sums

    def _undo(self) -> None:
        self._reduction.drop()
        self._reduction.begin()
        self._buffers.restore()

    def _end_step(self, step: AnyStep) -> None:
        self._progress = self._reached()
        self._step = None
        self._members.evaluators, self._evaluations, self._has_result = None, 0, True
        wants_checkpoint, self._wants_checkpoint = self._wants_checkpoint, False
        if self._link is None:
            return
        self._compute_time.report()
        match self._link.reach_boundary(step.number):
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

    # --- the group and the state -----------------------------------------------------------------------------------

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
        self._optimizers.know_saved(self._saved_beside)
        self._optimizers.open()

    def _change(self, why: str) -> bool:
        """Join the next group; True when that brought the result of the step under way."""
        self._saved_step = None
        # A worker that joins has none of the old ones.
        self._snapshot = None
        worker_state = WorkerState(
            self._progress.step,
            False,
            self._fingerprint,
            self._hardware,
            self._is_rolled_back,
            self._evaluation,
        )
        was_delivered = self._members.change(worker_state, why, self._capture, self._restore)
        self._report_again()
        self._open_feed()
        if was_delivered:
            # The step under way needs no batches any more.
            for _ in self._feed.step():
                pass
        return was_delivered

    def _capture_state(self, progress: Progress, only: Container[str] | None = None) -> dict[str, Any]:
        """The state of training, with the names of the parameters that are not frozen."""
        return {
            **self._state.capture(progress, only),
            "trained": list(_trained(self._parameters)),
            "left_out": [list(one) for one in self._left_out],
        }

    def _saved_state(self, progress: Progress, only: Container[str] | None = None) -> dict[str, Any]:
        """The same, as files have it: with what those need to know of the optimizers who open it without the script."""
        return {
            **self._capture_state(progress, only),
            "optimized": self._optimizers.names(self._parameters),
        }

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointUnusable."""
        self._progress = self._state.restore(state)
        self._left_out = [(int(epoch), int(place)) for epoch, place in state.get("left_out", ())]
        # The script may have frozen and unfrozen some on its way here.
        if (trained := state.get("trained")) is not None:
            for name, one in self._parameters.items():
                one.requires_grad_(name in trained)

    def _capture(self) -> Any:
        return {
            "state": self._capture_state(self._progress),
            "metric_names": list(self._metric_names),
            "reports": list(self._reports),
        }

    def _restore(self, captured: Any) -> None:
        self._restore_state(captured["state"])
        self._metric_names = tuple(captured["metric_names"])
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

    def _number(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(value, dtype=torch.float32, device=self._device).detach().reshape(())


def _parts_of_batch(micro_batch: MicroBatch) -> tuple[float, float]:
    """What a micro-batch is of the global batch's samples, and what one sample is."""
    return len(micro_batch.samples) / micro_batch.total, 1.0 / micro_batch.total


def _trained(parameters: Mapping[str, torch.nn.Parameter]) -> tuple[str, ...]:
    return tuple(name for name, one in parameters.items() if one.requires_grad)


def _parts(
    model: torch.nn.Module,
    optimizers: Optimizers,
    scheduler: Stateful | None,
    scaler: Stateful | None,
    state: Mapping[str, Stateful] | None,
) -> dict[str, Stateful]:
    parts: dict[str, Stateful] = {"model": model, **optimizers.parts}
    named = {"scheduler": scheduler, "scaler": scaler}
    if isinstance(scheduler, list | tuple):
        raise TypeError("hand over one scheduler as scheduler=..., and further ones in state={'second': ...}")
    if scheduler is not None:
        optimizers.check_part("scheduler", scheduler)
    parts.update({name: part for name, part in named.items() if part is not None})
    for name, part in (state or {}).items():
        if name in parts:
            raise ValueError(f"state={{{name!r}: ...}} is a name that Loop uses itself: take another one")
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise ValueError(f"state[{name!r}] needs the methods state_dict() and load_state_dict()")
        optimizers.check_part(f"state[{name!r}]", part)
        parts[name] = part
    return parts

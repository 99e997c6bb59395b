"""The gradients of a step where each worker holds the whole model: tries, and what is checked before they count."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from remora.torch.agreement import StateDigests, changed_text, difference_text, is_due
from remora.torch.feed import MicroBatch
from remora.torch.group import PeerLost
from remora.torch.nonfinite import (
    SNAPSHOT_EVERY,
    NotFinite,
    check_rollbacks,
    is_checked,
    left_out_text,
    rollback_text,
    snapshot,
    what_is_not_finite,
)
from remora.torch.randomness import derive, seed_everything
from remora.torch.replicated_training import ReplicatedTraining
from remora.torch.step import NOTES, AnyStep, Outcome, divide_gradients, means

log = logging.getLogger("remora.torch")


class ReplicatedLoop(ReplicatedTraining):
    """Training with one copy of the model on each worker; `Loop` describes the arguments.

    A step is computed in tries: `_batches` gives this worker's micro-batches, `_add` takes the loss of each, and
    `_reduce` adds up the gradients of all workers, or says that the step is to be computed again.
    """

    #: Steps after which the workers last held the same weights.
    _agreed_after: int | None = None
    #: Steps in a row that were left out.
    _skips = 0
    #: The micro-batch whose loss the script computes, and its seed.
    _micro_batch: MicroBatch | None = None
    _micro_batch_seed = 0
    #: Why the try under way is to be given up.
    _lost: PeerLost | None = None
    #: What it must not change, where that is looked at.
    _unchanging: StateDigests | None = None

    # --- a try ------------------------------------------------------------------------------------------------------

    def _batches(self, step: AnyStep) -> Iterator[Any]:
        """A try begins: this worker's micro-batches, each with random numbers of its own and to be given to `_add`.

        Fewer come where the group is to be left, which `_reduce` knows then.
        """
        self._lost = None
        self._optimizers.begin(self._replica.gradients())
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
        if (parameters := self._replica.newly_trained()) is not None:
            self._reduction.train(parameters)
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
        loss = self._losses.share(found, micro_batch, reduction.note)
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
        divide_gradients(self._replica.parameters.values(), numbers)
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

    def _complete(self, step: AnyStep, numbers: Sequence[float]) -> torch.Tensor:
        """The gradients are there, and the script goes on; returns the mean loss of the global batch."""
        self._optimizers.end(step.number)
        if not step.was_skipped and all(one is None for one in self._replica.gradients()):
            raise RuntimeError(
                "no parameter of the model got a gradient, so it would not be trained: compute the loss from the model"
                " that Loop was given, and not from copies of its parameters"
            )
        seed_everything(derive(self._settings.seed, "body", step.number))
        loss, *metrics = means(numbers)
        step.metrics = dict(zip(self._losses.metric_names, metrics, strict=False))
        return torch.tensor(loss, device=self._device)

    def _recover(self, why: str) -> bool:
        """Join the next group with the state before the step; True when that brought the step's result."""
        # First, because what it had under way may hold the device.
        self._members.leave()
        self._undo()
        return self._change(why)

    def _undo(self) -> None:
        self._reduction.drop()
        self._reduction.begin()
        self._buffers.restore()

    # --- what is not finite -----------------------------------------------------------------------------------------

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

    def _not_finite(self, numbers: Sequence[float]) -> str | None:
        """`loss` or `gradient`, where something is to follow from it."""
        if not is_checked(self._settings.nonfinite, is_scaled=self._scaler is not None):
            return None
        gradients = () if self._scaler is not None else self._replica.gradients()
        return what_is_not_finite(means(numbers)[0], gradients)

    def _skip(self, step: AnyStep, what: str) -> None:
        self._skips += 1
        text = left_out_text(self._skips, what, step.number)
        self._replica.drop_gradients()
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
        self._replica.drop_gradients()
        if self._rank == 0:
            text = rollback_text(what, step.number, self._progress.step, step.epoch, step.place)
            log.warning("%s", text)
        self._open_feed()

    def _set_position(self, step: AnyStep) -> None:
        """A rollback may have changed which step comes next; take a snapshot before it when it is time."""
        micro_batch = self._feed.peek()
        assert micro_batch is not None
        step.number = self._progress.step + 1
        step.stand_at(micro_batch)
        before = self._snapshot
        if before is None or self._progress.step - before["progress"][0] >= SNAPSHOT_EVERY:
            self._snapshot = snapshot(self._capture_state(self._progress), self._saving.replicated)

    # --- what workers agree in --------------------------------------------------------------------------------------

    def _agree(self) -> StateDigests | None:
        """Compare the weights with those of all others when it is time; returns what the step must not change.

        Raises PeerLost and Diverged.
        """
        steps_done = self._progress.step
        if not is_due(steps_done, self._settings.check_every):
            return None
        self._replica.check_names()
        digests = StateDigests({**self._replica.held(), **self._buffers.held()}, self._device)
        found = digests.compare(self._reduction.group, is_bitwise=self._settings.exactness == "bitwise")
        if found is not None:
            self._end_diverged(difference_text(*found, steps_done, self._agreed_after))
        self._agreed_after = steps_done
        return StateDigests(self._watched(), self._device)

    def _check_unchanged(self, before: StateDigests) -> None:
        """Raise Diverged when the step changed what only the script may change, after it."""
        if (name := before.changed(self._watched())) is not None:
            self._end_diverged(changed_text(name))

    def _watched(self) -> dict[str, torch.Tensor]:
        """What no try may change."""
        return self._replica.held()

"""Elastic steps for a training loop that computes, reduces and commits by itself; see `Steps`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from remora.torch.elastic import ElasticLoop
from remora.torch.feed import MicroBatch
from remora.torch.optimizers import Gradient, gradient_of, is_changed
from remora.torch.replicated import ReplicatedLoop
from remora.torch.step import AnyStep, Outcome, moved, outcome

#: The error for an optimizer in a hook.
EARLY_STEP = (
    "an optimizer steps before step.reduce(), when the gradients of other workers are not there: take it out of"
    " hooks, and call optimizer.step() where step.reduce() has returned True"
)


class StepsLoop(ElasticLoop):
    """What loops of open steps have in common: each step is begun by the script."""

    _early_text = EARLY_STEP
    _is_begun = False
    _is_over = False

    def begin(self) -> OpenStep | None:
        """The step to compute now, and None once training is over, also on all other workers.

        It is the same one again after `reduce` has returned False.  The first call forms the worker group, and resumes
        from a checkpoint or from the workers that this one joins.
        Raises RuntimeError where the step before was neither committed nor given up.
        """
        if self._is_over:
            return None
        if not self._is_begun:
            self._is_begun = True
            self._begin()
        if isinstance(self._step, OpenStep) and not (self._is_stopped and self._step.is_untouched):
            self._step.check_given_up()
            return self._step
        first = self._next_step()
        if first is None:
            self._is_over = True
            self._finish()
            return None
        self._step = step = OpenStep(self, self._progress.step + 1, first)
        return step

    def __iter__(self) -> Iterator[OpenStep]:
        """What `begin` returns, until it is None."""
        while (step := self.begin()) is not None:
            try:
                yield step
            except GeneratorExit:
                self._interrupt()
                raise

    @abstractmethod
    def _open_batches(self, step: OpenStep) -> Iterator[Any]: ...

    @abstractmethod
    def _add_loss(self, found: Outcome, before: list[Gradient]) -> None: ...

    @abstractmethod
    def _reduce_open(self, step: OpenStep) -> torch.Tensor | None: ...

    @abstractmethod
    def _commit(self, step: OpenStep) -> bool: ...


class Steps(StepsLoop, ReplicatedLoop):
    """The steps of a training loop that is not ours: each is begun, reduced over all workers, and committed.

        steps = Steps(model, optimizer, data=dataset, global_batch=96, shards=12, total_steps=1000)
        while (step := steps.begin()) is not None:
            for batch in step.batches():
                step.backward(F.cross_entropy(model(batch[0]), batch[1]))
            if step.reduce():
                optimizer.step()
                step.commit()

    Arguments, guarantees and errors are those of `Loop`, which is this with its own calls; as there the
    model is a plain one, without DistributedDataParallel.  What `Loop` finds by calling a function twice is not found.
    """

    def _open_batches(self, step: OpenStep) -> Iterator[Any]:
        is_complete = False
        try:
            for batch in self._batches(step):
                before = [gradient_of(one) for one in self._replica.parameters.values()]
                step.expects(before)
                yield moved(batch, self._device)
                step.check_computed()
            is_complete = True
        finally:
            if not is_complete:
                self._optimizers.end(None)

    def _add_loss(self, found: Outcome, before: list[Gradient]) -> None:
        check_untouched(self._replica.parameters.values(), before)
        self._add(found)

    def _reduce_open(self, step: OpenStep) -> torch.Tensor | None:
        numbers = None
        try:
            numbers = self._reduce(step)
        finally:
            if numbers is None:
                self._optimizers.end(None)
        return None if numbers is None else self._complete(step, numbers)

    def _commit(self, step: OpenStep) -> bool:
        self._end_step(step)
        return True


def check_untouched(parameters: Iterable[torch.Tensor], before: Sequence[Gradient]) -> None:
    """Raise RuntimeError where the script has changed gradients itself."""
    if any(is_changed(one, held) for one, held in zip(parameters, before, strict=True)):
        raise RuntimeError(
            "gradients were changed between step.batches() and step.backward(loss), which adds to or drops those of"
            " other micro-batches: call neither loss.backward() nor zero_grad() there, and use torch.autograd.grad"
            " where the loss needs a gradient on the way"
        )


class OpenStep(AnyStep):
    """A step whose forward and backward passes, optimizers and end are the script's own calls."""

    def __init__(self, steps: StepsLoop, number: int, first: MicroBatch) -> None:
        super().__init__(steps, number, first)
        self._steps = steps
        #: The mean loss over the global batch once `reduce` has returned True, without a graph.
        self.loss: torch.Tensor | None = None
        #: Gradients as they were when the script got a micro-batch whose loss it computes.
        self._before: list[Gradient] | None = None
        #: All micro-batches of this try were given out.
        self._is_read = False
        #: The last try was given up.
        self._is_given_up = False
        self._is_committed = False
        self._is_tried = False

    @property
    def is_untouched(self) -> bool:
        """It was begun, and no more."""
        return not self._is_tried

    def batches(self) -> Iterator[Any]:
        """A try begins, with gradients of zero: this worker's micro-batches, on the device of the model.

        `backward` is called once for each, before the next one.  Random numbers are seeded for each.  There may be
        none, and they end early where a worker is lost; `reduce` is called after them in any case.
        """
        if self.is_done:
            raise RuntimeError(
                "the gradients of this step are complete: call step.commit() after the optimizer"
            )
        self._is_tried, self._is_read, self._is_given_up = True, False, False
        yield from self._steps._open_batches(self)
        self._is_read = True

    def backward(self, loss: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """The backward pass of the micro-batch that `batches` gave last, in place of `loss.backward()`.

        `loss`: its mean loss, or a tuple of a sum and what it counts, such as tokens.  `metrics`: other means or
        tuples by name, of which `self.metrics` has the means over the global batch after `reduce`.
        """
        before, self._before = self._before, None
        if before is None:
            raise RuntimeError("step.backward(loss) is called once for each batch of step.batches()")
        self._steps._add_loss(outcome((loss, metrics or {})), before)

    def reduce(self) -> bool:
        """Add up the gradients of all workers: True when they are there, as means over the global batch.

        False where a worker was lost, or `nonfinite` is `rollback` and the loss was not finite: nothing of this try
        counts then, and the step is computed again from `batches` on, with other micro-batches.
        """
        if self.is_done:
            raise RuntimeError("step.reduce() is called once after step.batches(), and then step.commit()")
        if not self._is_read:
            raise RuntimeError("read step.batches() to its end, also where it is empty, before step.reduce()")
        self._is_read = False
        self.loss = self._steps._reduce_open(self)
        self.is_done = self.loss is not None
        self._is_given_up = not self.is_done
        return self.is_done

    def commit(self) -> bool:
        """The step counts: checkpoints have it, and workers that join begin after it.

        It is called after optimizer and schedulers, and after whatever else belongs to the step, such as an evaluation.
        Returns True; of a sharded model also False where a worker was lost with its part of the step, which is computed
        again then.
        """
        if not self.is_done or self._is_committed:
            raise RuntimeError("step.commit() is called once, after step.reduce() has returned True")
        self._is_committed = True
        return self._steps._commit(self)

    def check_given_up(self) -> None:
        """Raise RuntimeError where the next step is begun and this one is neither committed nor given up."""
        if self.is_done:
            raise RuntimeError(
                f"step {self.number} is not committed: call step.commit() after optimizer.step()"
            )
        if not self._is_given_up:
            raise RuntimeError(f"step {self.number} is not reduced: call step.reduce() after step.batches()")

    def expects(self, before: list[Gradient]) -> None:
        """The script gets a micro-batch."""
        self._before = before

    def check_computed(self) -> None:
        """Raise RuntimeError where the script takes another micro-batch before the loss of this one was given."""
        if self._before is not None:
            raise RuntimeError("call step.backward(loss) for every batch of step.batches()")

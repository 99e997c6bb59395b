"""One step of an elastic loop, and what the function given to its `backward` takes and returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from remora.torch.agreement import ROUNDING
from remora.torch.feed import MicroBatch
from remora.torch.optimizers import Gradient, is_changed

#: Numbers beside the loss that `backward` averages over the shards.
MOST_METRICS = 15
#: The loss and these.
VALUES = 1 + MOST_METRICS
#: What travels of them: each value, and behind all of them the count that each was taken over, 0 for a mean.
NOTES = 2 * VALUES

#: Returns the loss of a batch, as a mean or a sum and its count, alone or with other means by name.
Compute = Callable[[torch.nn.Module, Any], torch.Tensor | tuple[Any, Any]]


@dataclass(frozen=True)
class Outcome:
    """What the function given to `backward` returned for one micro-batch."""

    #: The mean loss of its samples, or the sum of what `counts[0]` counts.
    loss: torch.Tensor
    #: The means beside it, or sums, by name.
    metrics: Mapping[str, Any]
    #: What the loss and each of them count; None for means over samples.
    counts: tuple[Any, ...]

    def notes(
        self, samples_share: float, per_sample: float, number: Callable[[Any], torch.Tensor]
    ) -> list[tuple[int, torch.Tensor]]:
        """Its share of the notes of a step, in stretches with the place where each begins.

        Means count with `samples_share`, the part of the global batch's samples that it has; sums and counts are
        divided by the samples of the global batch (`per_sample` is 1 over their number), so that none is too large.
        """
        values = torch.stack([number(value) for value in (self.loss, *self.metrics.values())])
        if all(count is None for count in self.counts):
            return [(0, values * samples_share)]
        weights = [samples_share if count is None else per_sample for count in self.counts]
        counts = torch.stack([number(0.0 if count is None else count) for count in self.counts])
        return [(0, values * values.new_tensor(weights)), (VALUES, counts * per_sample)]

    def share(self, samples_share: float, per_sample: float) -> torch.Tensor:
        """The loss as its share of the global batch, with its graph; a sum still is to be divided by its count."""
        return self.loss * (samples_share if self.counts[0] is None else per_sample)


def means(notes: Sequence[float]) -> list[float]:
    """The loss and the metrics of a step from the sums of all notes."""
    return [
        value / count if count else value
        for value, count in zip(notes[:VALUES], notes[VALUES:NOTES], strict=True)
    ]


def divide_gradients(parameters: Iterable[torch.Tensor], notes: Sequence[float]) -> None:
    """Make means of gradients of a loss that was given as sums, now that its whole count is known."""
    if count := notes[VALUES]:
        torch._foreach_mul_([one.grad for one in parameters if one.grad is not None], 1.0 / count)


class Reports(Protocol):
    """What takes the metrics of a step."""

    def _report(self, step: AnyStep, metrics: Mapping[str, Any]) -> None: ...


class Trains(Reports, Protocol):
    """What a step that gets a function needs of its loop."""

    def _run(self, step: Step, compute: Compute) -> torch.Tensor: ...


class AnyStep:
    """What is known of one step of training, from its first forward pass to the user's `optimizer.step()`."""

    def __init__(self, loop: Reports, number: int, first: MicroBatch) -> None:
        self._reports = loop
        #: Steps from the job's begin, from 1.
        self.number = number
        self.stand_at(first)
        #: Means over the whole global batch of what was given beside the loss.
        self.metrics: dict[str, float] = {}
        #: Numbers of the samples that this worker trained in this step, by shard.
        self.samples: dict[int, list[int]] = {}
        #: The gradients of all workers are there.
        self.is_done = False
        #: Its loss or gradients were not finite, so that it has no gradients and optimizers change nothing.
        self.was_skipped = False

    def stand_at(self, first: MicroBatch) -> None:
        """Take the place of the step that begins with this micro-batch."""
        #: From 0.
        self.epoch = first.position.epoch
        #: Place among the steps of the epoch, from 0.
        self.place = first.position.place
        #: Samples of all workers together; the last step of an epoch may have fewer than the others.
        self.total = first.total

    def report(self, **metrics: Any) -> None:
        """Report this step's metrics, once for the job whatever the number of workers; `metrics` are added.

        Values need `float()` to work on them, which waits for the GPU.
        """
        self._reports._report(self, {**self.metrics, **metrics})


class Step(AnyStep):
    """A step whose losses are computed by a function of the script."""

    def __init__(self, loop: Trains, number: int, first: MicroBatch) -> None:
        super().__init__(loop, number, first)
        self._loop = loop

    def backward(self, compute: Compute) -> torch.Tensor:
        """Forward and backward passes of this worker's shards, and the mean gradient over the whole global batch.

        `compute(model, batch)` returns the mean loss of a batch, or that and a dictionary of other means.  In place of
        each mean it may return a tuple of a sum and what it counts, such as the tokens of samples of unlike length:
        the mean over the global batch is the sum of all sums over the sum of all counts then.  It is called once for
        each micro-batch, and again when a peer is lost meanwhile.  Gradients begin at zero.
        Returns the mean loss over the global batch, without a graph, the same on every worker.
        """
        if self.is_done:
            raise RuntimeError("backward is called once per step; sum several losses inside its function")
        loss = self._loop._run(self, compute)
        self.is_done = True
        return loss


def check_gradients(parameters: Sequence[torch.Tensor], before: Sequence[Gradient]) -> None:
    """Raise RuntimeError where the function given to `backward` has changed gradients."""
    if any(is_changed(one, held) for one, held in zip(parameters, before, strict=True)):
        raise RuntimeError(
            "the function given to backward changes gradients itself, which adds to or drops those of other"
            " micro-batches: call neither backward() nor zero_grad() in it and return the loss, with"
            " torch.autograd.grad where it needs a gradient on the way"
        )


def repeats(once: float, again: float, *, is_bitwise: bool) -> bool:
    """Whether two losses of the same micro-batch are the same; without `is_bitwise` but for rounding."""
    if is_bitwise or not (math.isfinite(once) and math.isfinite(again)):
        return once == again or (math.isnan(once) and math.isnan(again))
    return abs(once - again) <= ROUNDING * max(abs(once), abs(again))


def not_repeated_text(once: float, again: float) -> str:
    """The error for a function given to `backward` that returns two losses for the same micro-batch."""
    return (
        f"the function given to backward returned {once:.7g} and then {again:.7g} for one micro-batch with the same"
        " random numbers, so it keeps something from one call to the next (a count, a hidden state, a generator of its"
        " own) and the result would depend on which worker calls it: take step.number, keep what lasts in buffers of"
        " the model, and draw from the random numbers that Loop seeds"
    )


def outcome(returned: Any) -> Outcome:
    """What the function given to `backward` returned; raises TypeError and ValueError for what cannot be averaged."""
    loss, metrics = with_metrics(returned)
    loss, count = as_sum(loss)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "the function given to backward returns the mean loss of its batch, a tensor of one element, or a tuple"
            " (sum, count) of its sum and what it counts, or a tuple of one of these and a dictionary of metrics"
        )
    if not loss.requires_grad:
        raise TypeError("the loss has no graph: compute it from the model's output, and not under no_grad()")
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"backward averages at most {MOST_METRICS} metrics, and got {len(metrics)}")
    pairs = {name: as_sum(value) for name, value in metrics.items()}
    counts = (count, *(one for _, one in pairs.values()))
    return Outcome(loss.reshape(()), {name: value for name, (value, _) in pairs.items()}, counts)


def with_metrics(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    """The loss that a function returned, and what is beside it."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        return returned
    return returned, {}


def as_sum(value: Any) -> tuple[Any, Any]:
    """A sum with its count, or a mean with None."""
    if isinstance(value, tuple) and len(value) == 2:
        count = value[1]
        is_number = isinstance(count, int | float) or (isinstance(count, torch.Tensor) and count.numel() == 1)
        if is_number and not isinstance(count, bool):
            return value[0], count
    return value, None


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device; tuples, lists and dictionaries keep their shape."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: moved(one, device) for key, one in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(one, device) for one in batch))
    if type(batch) in (list, tuple):
        return type(batch)(moved(one, device) for one in batch)
    return batch

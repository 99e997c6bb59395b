"""One step of an elastic loop, and what the function given to its `backward` takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from remora.torch.order import Position

#: Numbers beside the loss that `backward` averages over the shards.
MOST_METRICS = 15

#: Returns the mean loss of a batch, alone or with other means by name.
Compute = Callable[[torch.nn.Module, Any], torch.Tensor | tuple[torch.Tensor, Mapping[str, Any]]]


class Trains(Protocol):
    """What a step needs of its loop."""

    def _run(self, step: Step, compute: Compute) -> torch.Tensor: ...

    def _report(self, step: Step, metrics: Mapping[str, Any]) -> None: ...


class Step:
    """One step of training, from its first forward pass to the user's `optimizer.step()`."""

    def __init__(self, loop: Trains, number: int, position: Position) -> None:
        self._loop = loop
        #: Steps from the job's begin, from 1.
        self.number = number
        #: From 0.
        self.epoch = position.epoch
        #: Place among the steps of the epoch, from 0.
        self.place = position.place
        #: Means over the whole global batch that the function given to `backward` returned beside the loss.
        self.metrics: dict[str, float] = {}
        #: Numbers of the samples that this worker trained in this step, by shard.
        self.samples: dict[int, list[int]] = {}
        self.is_done = False

    def backward(self, compute: Compute) -> torch.Tensor:
        """Forward and backward passes of this worker's shards, and the mean gradient over the whole global batch.

        `compute(model, batch)` returns the mean loss of a batch, or that and a dictionary of other means.  It is called
        once for each micro-batch, and again when a peer is lost meanwhile.  Gradients begin at zero.
        Returns the mean loss over the global batch, without a graph, the same on every worker.
        """
        if self.is_done:
            raise RuntimeError("backward is called once per step; sum several losses inside its function")
        loss = self._loop._run(self, compute)
        self.is_done = True
        return loss

    def report(self, **metrics: Any) -> None:
        """Report this step's metrics, once for the job whatever the number of workers; those of `compute` are added.

        Values need `float()` to work on them, which waits for the GPU.
        """
        self._loop._report(self, {**self.metrics, **metrics})


def outcome(returned: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Loss and metrics that the function given to `backward` returned; raises TypeError and ValueError for others."""
    loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not isinstance(metrics, Mapping):
        raise TypeError(
            "the function given to backward returns the mean loss of its batch, a tensor of one element, "
            "or a tuple of that and a dictionary of metrics"
        )
    if not loss.requires_grad:
        raise TypeError("the loss has no graph: compute it from the model's output, and not under no_grad()")
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"backward averages at most {MOST_METRICS} metrics, and got {len(metrics)}")
    return loss.reshape(()), metrics


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

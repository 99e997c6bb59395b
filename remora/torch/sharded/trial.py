"""One try at a step of a sharded model, in which all workers meet in every layer of every pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remora.torch.feed import Feed, is_stream
from remora.torch.loop import MOST_METRICS, Compute, Step, moved, outcome
from remora.torch.randomness import derive, seed_everything
from remora.torch.settings import Settings
from remora.torch.sharded.building import Built
from remora.torch.sharded.cuts import passes
from remora.torch.sharded.meeting import Meeting


class Trial:
    """Computes gradients and means of one step after the other."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        data: Any,
        collate: Callable[[list[Any]], Any] | None,
    ) -> None:
        self._settings = settings
        self._device = device
        self._data = data
        self._collate = collate
        #: A batch for passes in which this worker only keeps the others company.
        self._spare: Any = None
        #: Names of the means beside the loss.
        self.metric_names: tuple[str, ...] = ()

    def run(self, step: Step, compute: Compute, feed: Feed, built: Built, meeting: Meeting) -> list[float]:
        """Gradients of the step that the feed has next; returns the mean loss and the other means.

        Raises PeerLost, after which nothing of the model is of use.
        """
        buffers, group, model = built.buffers, meeting.group, built.sharded.model
        for parameter in model.parameters():
            parameter.grad = None
        buffers.begin()
        step.samples = {}
        notes = torch.zeros(1 + MOST_METRICS + buffers.width, device=self._device)
        done = total = 0
        for parcel, batch in feed.step():
            meeting.check()
            total = parcel.total
            if parcel.micro == 0:
                buffers.restore()
            step.samples.setdefault(parcel.shard, []).extend(parcel.samples)
            if parcel.samples:
                done += 1
                seed_everything(
                    derive(self._settings.seed, "compute", step.number, parcel.shard, parcel.micro)
                )
                self._spare = batch
                notes[: 1 + MOST_METRICS] += self._pass(model, compute, batch, len(parcel.samples) / total)
            if parcel.ends_shard and parcel.shard == 0:
                notes[1 + MOST_METRICS :] = buffers.keep()
        self._keep_company(model, compute, done, total, group.world_size)
        group.wait(group.sum(notes))
        buffers.finish(group, notes[1 + MOST_METRICS :])
        meeting.check()
        numbers: list[float] = notes[: 1 + MOST_METRICS].tolist()
        return numbers

    def _keep_company(
        self, model: torch.nn.Module, compute: Compute, done: int, total: int, workers: int
    ) -> None:
        """Passes that count for nothing, until this worker has made as many as the busiest one."""
        for _ in range(done, passes(total, workers, self._settings.shards, self._settings.micro_batch)):
            if self._spare is None:
                item = next(iter(self._data)) if is_stream(self._data) else self._data[0]
                # Twice, because BatchNorm takes no single sample.
                self._spare = (self._collate or torch.utils.data.default_collate)([item, item])
            self._pass(model, compute, self._spare, 0.0)

    def _pass(self, model: torch.nn.Module, compute: Compute, batch: Any, weight: float) -> torch.Tensor:
        """Forward and backward of one micro-batch; returns its loss and metrics as shares, [1 + MOST_METRICS].

        It counts as its share of the global batch, `weight`.
        """
        loss, metrics = outcome(compute(model, moved(batch, self._device)))
        if metrics:
            self.metric_names = tuple(metrics)
        (loss * weight).backward()
        shares = torch.zeros(1 + MOST_METRICS, device=self._device)
        for place, value in enumerate([loss.detach(), *metrics.values()]):
            shares[place] = torch.as_tensor(value, dtype=torch.float32).detach().reshape(()) * weight
        return shares

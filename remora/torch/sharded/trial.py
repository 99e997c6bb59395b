"""One try at a step of a sharded model, in which all workers meet in every layer of every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from remora.torch.feed import Feed, is_stream
from remora.torch.own_time import OwnTime
from remora.torch.randomness import derive, seed_everything
from remora.torch.settings import Settings
from remora.torch.sharded.building import Built
from remora.torch.sharded.cuts import passes
from remora.torch.sharded.meeting import Meeting
from remora.torch.sharded.mesh import Carried
from remora.torch.step import NOTES, Compute, Step, divide_gradients, means, moved, outcome


class Trial:
    """Computes gradients and means of one step after the other."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        data: Any,
        collate: Callable[[list[Any]], Any] | None,
        scaler: Any,
        own_time: OwnTime,
    ) -> None:
        self._settings = settings
        self._device = device
        self._data = data
        self._collate = collate
        self._scaler = scaler
        self._own_time = own_time
        #: A batch for passes in which this worker only keeps the others company.
        self._spare: Any = None
        self._waited_s = 0.0
        #: Names of the means beside the loss.
        self.metric_names: tuple[str, ...] = ()

    def run(
        self, step: Step, compute: Compute, feed: Feed, built: Built, meeting: Meeting, carried: Carried
    ) -> list[float]:
        """Gradients of the step that the feed has next; returns the mean loss and the other means.

        Raises PeerLost, after which nothing of the model is of use.
        """
        buffers, group, model = built.buffers, meeting.group, built.sharded.model
        self._begin(carried)
        for parameter in model.parameters():
            parameter.grad = None
        buffers.begin()
        notes = self._all_passes(step, compute, feed, built, meeting)
        self._end(carried)
        if self._scaler is not None:
            notes[-1] = 0.0 if all_finite(model.parameters()) else 1.0
        group.wait(group.sum(notes))
        if self._scaler is not None and notes[-1] > 0:
            spoil(model.parameters())
        buffers.finish(group, notes[NOTES:-1])
        meeting.check()
        numbers = notes[:NOTES].tolist()
        divide_gradients(model.parameters(), numbers)
        return means(numbers)

    def _all_passes(
        self, step: Step, compute: Compute, feed: Feed, built: Built, meeting: Meeting
    ) -> torch.Tensor:
        """All forward and backward passes; returns this worker's share of the loss, the metrics and the buffers.

        They are followed by a place for one more number.
        """
        buffers, model = built.buffers, built.sharded.model
        speaks = built.grid.speaks(meeting.group.rank)
        notes = torch.zeros(NOTES + buffers.width + 1, device=self._device)
        step.samples = {}
        done = total = 0
        for parcel, batch in feed.step():
            meeting.check()
            total = parcel.total
            if parcel.micro == 0:
                buffers.restore()
            step.samples.setdefault(parcel.shard, []).extend(parcel.samples)
            if parcel.samples:
                done += 1
                where = (step.number, parcel.shard, parcel.micro)
                seed_everything(derive(self._settings.seed, "compute", *where))
                self._spare = batch
                shares = self._pass(model, compute, batch, len(parcel.samples) / total, 1.0 / total)
                if speaks:
                    notes[:NOTES] += shares
            if parcel.ends_shard and parcel.shard == 0 and speaks:
                notes[NOTES:-1] = buffers.keep()
        self._keep_company(model, compute, done, total, built.grid.readers)
        return notes

    def _begin(self, carried: Carried) -> None:
        # On GPUs the workers' waits for each other lie in the device's queue, where they cannot be told from work.
        if self._device.type == "cpu":
            self._waited_s = carried.waited_s
            self._own_time.begin()

    def _end(self, carried: Carried) -> None:
        if self._device.type == "cpu":
            self._own_time.end(carried.waited_s - self._waited_s)

    def _keep_company(
        self, model: torch.nn.Module, compute: Compute, done: int, total: int, readers: int
    ) -> None:
        """Passes that count for nothing, until this worker has made as many as the busiest one."""
        for _ in range(done, passes(total, readers, self._settings.shards, self._settings.micro_batch)):
            if self._spare is None:
                item = next(iter(self._data)) if is_stream(self._data) else self._data[0]
                # Twice, because BatchNorm takes no single sample.
                self._spare = (self._collate or torch.utils.data.default_collate)([item, item])
            self._pass(model, compute, self._spare, 0.0, 0.0)

    def _pass(
        self,
        model: torch.nn.Module,
        compute: Compute,
        batch: Any,
        samples_share: float,
        per_sample: float,
    ) -> torch.Tensor:
        """Forward and backward of one micro-batch; returns what it adds to the notes.  [NOTES]

        It has this share of the samples of the global batch, and each of its sums counts as so many.
        """
        found = outcome(compute(model, moved(batch, self._device)))
        if found.metrics:
            self.metric_names = tuple(found.metrics)
        share = found.share(samples_share, per_sample)
        if self._scaler is not None:
            share = self._scaler.scale(share)
        share.backward()
        shares = torch.zeros(NOTES, device=self._device)
        for place, numbers in found.notes(samples_share, per_sample, self._number):
            shares[place : place + len(numbers)] = numbers
        return shares

    def _number(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(full(value), dtype=torch.float32, device=self._device).detach().reshape(())


def full(value: Any) -> Any:
    """The value itself, or all of it when it is sharded; all ranks call it then."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def forget_optimizers(scaler: Any, device: torch.device) -> None:
    """Let a GradScaler forget what it noted in a step that was broken off, of an optimizer that is gone."""
    if scaler is not None and scaler.is_enabled():
        scaler.scale(torch.ones(1, device=device))
        scaler.update(scaler.get_scale())


def all_finite(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether this rank's part of all gradients is."""
    found = [torch.isfinite(_local(one.grad)).all() for one in parameters if one.grad is not None]
    return not found or bool(torch.stack(found).all())


def spoil(parameters: Iterable[torch.Tensor]) -> None:
    """Let a GradScaler find on this rank, too, that the gradients of some rank are not finite.

    What it finds out by itself is shared over the mesh of one gradient only, and there may be several.
    """
    for one in parameters:
        if one.grad is not None and _local(one.grad).numel():
            _local(one.grad).view(-1)[0] = torch.inf
            return


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient

"""Forward and backward passes of one step of a sharded model, with collectives of all workers in every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from remora.torch.agreement import copy_of
from remora.torch.compute_time import ComputeTime
from remora.torch.feed import Feed
from remora.torch.loop_settings import Settings
from remora.torch.nonfinite import what_is_not_finite
from remora.torch.optimizers import gradient_of
from remora.torch.randomness import derive, seed_everything
from remora.torch.sharded.building import BuiltModel
from remora.torch.sharded.mesh import MeshProcessGroup
from remora.torch.sharded.process_groups import ProcessGroups
from remora.torch.sharded.reshard_plan import passes
from remora.torch.step import (
    NOTES,
    AnyStep,
    Compute,
    Outcome,
    Step,
    check_gradients,
    divide_gradients,
    means,
    moved,
    not_repeated_text,
    outcome,
    repeats,
)
from remora.torch.streams import Source, sample_of


@dataclass(frozen=True)
class StepResult:
    """What all workers know of a step whose gradients are there."""

    #: The mean loss, and the other means.
    means: list[float]
    #: Of all workers; True where it is not checked.
    are_gradients_finite: bool
    #: The error message where this worker computed a micro-batch twice and got two losses.
    not_repeated: str | None = None


class Weights(NamedTuple):
    """How much one batch counts."""

    #: The part of the samples of the global batch that it has.
    samples_share: float
    #: What each of its sums is multiplied by: 1 over the samples of the global batch.
    per_sample: float
    #: Whether its loss is counted on this rank, and not on another one that computes the same.
    counts: bool


#: A batch that only takes part in the collectives of the others.
NOTHING = Weights(0.0, 0.0, counts=False)


class StepRunner:
    """Computes gradients and means of one step after the other."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        data: Any,
        collate: Callable[[list[Any]], Any] | None,
        scaler: Any,
        compute_time: ComputeTime,
    ) -> None:
        self._settings = settings
        self._device = device
        self._data = data
        self._collate = collate
        self._scaler = scaler
        self._compute_time = compute_time
        #: A batch for passes that count for nothing, and only take part in the collectives of the others.
        self._filler: Any = None
        self._waited_s = 0.0
        #: The next pass is rehearsed.
        self._rehearses = False
        #: Loss of the last pass that was.
        self._loss = 0.0
        self._not_repeated: str | None = None
        #: Of the batch that came last: random numbers, and how much it counts.
        self._seed, self._weights = settings.seed, NOTHING
        #: This worker's share of the loss, the metrics and the buffers, and behind them a place for one more number.
        self._notes = torch.zeros(0)
        #: Names of the means beside the loss.
        self.metric_names: tuple[str, ...] = ()

    def run(
        self,
        step: Step,
        compute: Compute,
        feed: Feed,
        built: BuiltModel,
        groups: ProcessGroups,
        mesh_group: MeshProcessGroup,
        *,
        rehearses: bool = False,
    ) -> StepResult:
        """Gradients of the step that the feed has next, and what all workers know of them.

        With `rehearses` every worker computes the loss of its first micro-batch twice.

        Raises PeerLost, after which nothing of the model is of use.
        """
        self._rehearses, model = rehearses, built.sharded.model
        for batch in self.batches(step, feed, built, groups, mesh_group):
            rehearsed = self._rehearse(built, compute, batch)
            self.add(self._computed(model, compute, batch))
            self._compare(rehearsed)
        return self.finish(built, groups)

    def batches(
        self,
        step: AnyStep,
        feed: Feed,
        built: BuiltModel,
        groups: ProcessGroups,
        mesh_group: MeshProcessGroup,
    ) -> Iterator[Any]:
        """The step begins, with gradients of zero: batches of which each is to be computed and given to `add`.

        Behind this worker's micro-batches come some that count for nothing, until it has made as many passes as the
        busiest one.  Raises PeerLost.
        """
        buffers = built.buffers
        self._begin(mesh_group)
        self._not_repeated = None
        built.drop_gradients()
        buffers.begin()
        counts_batch = built.grid.counts_batch(groups.group.rank)
        self._notes = notes = torch.zeros(NOTES + buffers.width + 1, device=self._device)
        step.samples = {}
        done = total = 0
        for micro_batch, batch in feed.step():
            groups.check()
            total = micro_batch.total
            if micro_batch.index == 0:
                buffers.restore()
            step.samples.setdefault(micro_batch.shard, []).extend(micro_batch.samples)
            if micro_batch.samples:
                done += 1
                where = (step.number, micro_batch.shard, micro_batch.index)
                self._seed = derive(self._settings.seed, "compute", *where)
                self._weights = Weights(len(micro_batch.samples) / total, 1.0 / total, counts_batch)
                seed_everything(self._seed)
                self._filler = batch
                yield moved(batch, self._device)
            if micro_batch.ends_shard and micro_batch.shard == 0 and counts_batch:
                notes[NOTES:-1] = buffers.keep()
        busiest = passes(total, built.grid.readers, self._settings.shards, self._settings.micro_batch)
        for _ in range(done, busiest):
            groups.check()
            self._seed, self._weights = self._settings.seed, NOTHING
            yield moved(without_nonfinite(self._filler_batch()), self._device)
        self._end(mesh_group)

    def add(self, found: Outcome) -> None:
        """The backward pass of the batch that came last, as its share of the global batch."""
        samples_share, per_sample, counts = self._weights
        self._loss = float(full(found.loss.detach())) if self._rehearses else 0.0
        if found.metrics:
            self.metric_names = tuple(found.metrics)
        share = found.share(samples_share, per_sample)
        if self._scaler is not None:
            share = self._scaler.scale(share)
        share.backward()
        # On every rank: what is sharded is put together by all of them, and one of a tensor-parallel group counts.
        notes = found.notes(samples_share, per_sample, self._number)
        if counts:
            for place, numbers in notes:
                self._notes[place : place + len(numbers)] += numbers

    def finish(self, built: BuiltModel, groups: ProcessGroups) -> StepResult:
        """Add up what all workers have; raises PeerLost."""
        group, model, notes = groups.group, built.sharded.model, self._notes
        groups.check()
        if self._scaler is not None or self._settings.nonfinite is not None:
            # On every rank the same is decided, from the sum.
            notes[-1] = 0.0 if all_finite(model.parameters()) else 1.0
        # The one wait of a step on the host, for all that it has queued: what FSDP has done is known to be whole.
        group.wait(group.sum(notes))
        if self._scaler is not None and notes[-1] > 0:
            mark_nonfinite(model.parameters())
        built.buffers.finish(group, notes[NOTES:-1])
        groups.check()
        numbers = notes[:NOTES].tolist()
        divide_gradients(model.parameters(), numbers)
        result = StepResult(means(numbers), float(notes[-1]) == 0.0, self._not_repeated)
        if not (result.are_gradients_finite and math.isfinite(result.means[0])):
            self._filler = None
        return result

    def _filler_batch(self) -> Any:
        if self._filler is None:
            is_stream = isinstance(self._data, Source)
            item = sample_of(self._data, self._settings.shards) if is_stream else self._data[0]
            # Twice, because BatchNorm takes no single sample.
            self._filler = (self._collate or torch.utils.data.default_collate)([item, item])
        return self._filler

    def _begin(self, mesh_group: MeshProcessGroup) -> None:
        # On GPUs the workers' waits for each other lie in the device's queue, and look like work there.
        if self._device.type == "cpu":
            self._waited_s = mesh_group.waited_s
            self._compute_time.begin()

    def _end(self, mesh_group: MeshProcessGroup) -> None:
        if self._device.type == "cpu":
            self._compute_time.end(mesh_group.waited_s - self._waited_s)

    def _computed(self, model: torch.nn.Module, compute: Compute, batch: Any) -> Outcome:
        """What the script's function makes of one micro-batch."""
        parameters = tuple(model.parameters())
        before = [gradient_of(one) for one in parameters]
        found = outcome(compute(model, batch))
        check_gradients(parameters, before)
        return found

    def _rehearse(self, built: BuiltModel, compute: Compute, batch: Any) -> float | None:
        """The loss of this worker's first micro-batch when it is computed once before, where that is to be done."""
        if not self._rehearses or (copied := copy_of(batch)) is None:
            return None
        seed_everything(self._seed)
        loss = float(full(self._computed(built.sharded.model, compute, copied).loss.detach()))
        built.buffers.restore()
        seed_everything(self._seed)
        return loss

    def _compare(self, rehearsed: float | None) -> None:
        """Note where a micro-batch has another loss than when it was rehearsed."""
        is_of_this_worker = self._weights is not NOTHING
        if (
            rehearsed is not None
            and is_of_this_worker
            and not repeats(rehearsed, self._loss, is_bitwise=False)
        ):
            self._not_repeated = not_repeated_text(rehearsed, self._loss)
        self._rehearses = False

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


def without_nonfinite(batch: Any) -> Any:
    """The batch with zeros for what is not finite: a gradient of nothing times infinity would count."""
    if isinstance(batch, torch.Tensor):
        return torch.nan_to_num(batch, 0.0, 0.0, 0.0) if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {key: without_nonfinite(one) for key, one in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(without_nonfinite, batch))
    if type(batch) in (list, tuple):
        return type(batch)(map(without_nonfinite, batch))
    return batch


def all_finite(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether this rank's part of all gradients is."""
    return what_is_not_finite(0.0, local_gradients(parameters)) is None


def mark_nonfinite(parameters: Iterable[torch.Tensor]) -> None:
    """Let a GradScaler find on this rank, too, that the gradients of some rank are not finite.

    What it finds out by itself is shared over the mesh of one gradient only, and there may be several.
    """
    for one in parameters:
        if one.grad is not None and local(one.grad).numel():
            local(one.grad).view(-1)[0] = torch.inf
            return


def local_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of all gradients that are there."""
    return [local(one.grad) for one in parameters if one.grad is not None]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

"""Evaluates a dataset over all workers: each sample counts once, and the sums do not depend on the workers.

The dataset is cut into as many parts as a step has shards, and a part into batches.  A worker computes the parts of its
shards.  What a part makes is added up in double precision, and the parts are added in their order, on every worker.
A dataset with a length is cut into contiguous parts; of a stream, sample i belongs to part i modulo their number.

Where a worker is lost meanwhile, the others share its parts among them, and keep what they have computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from remora.torch.feed import is_stream
from remora.torch.held_stream import HeldStream, PartBatch, StreamBatches, StreamEnd, check_held
from remora.torch.loading import Loading, loader_of
from remora.torch.loop_settings import Settings
from remora.torch.randomness import capture, derive, restore, seed_everything
from remora.torch.step import VALUES, AnyStep, as_sum, moved, with_metrics

#: Returns the mean loss of a batch, or a sum and its count, alone or with other means by name.
Evaluate = Callable[[torch.nn.Module, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Held:
    """What is evaluated, and how it becomes batches."""

    data: Any
    compute: Evaluate
    #: Most samples of one forward pass.
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    #: Processes that read it; of a stream each reads all.
    num_workers: int
    #: Parts of the dataset.
    parts: int
    seed: int
    device: torch.device
    #: How it is read where it is a stream.
    stream: HeldStream

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is a number of samples, at least 1, not {self.batch_size}")
        if not is_stream(self.data) and len(self.data) == 0:
            raise ValueError("the dataset has no sample to evaluate")


def held_for(
    step: AnyStep | None,
    settings: Settings,
    loading: Loading,
    device: torch.device,
    trained: Any,
    data: Any,
    compute: Evaluate,
    batch_size: int | None,
    collate: Callable[[list[Any]], Any] | None,
    num_workers: int,
) -> Held:
    """What a script asks to evaluate inside a step: the same parts and random numbers on every worker.

    `trained`: the dataset of the loop.  Raises RuntimeError outside of a step with gradients, and ValueError.
    """
    if step is None or not step.is_done:
        raise RuntimeError("call evaluate inside a step of the loop, after step.backward")
    check_held(data, trained, num_workers)
    seed = derive(settings.seed, "evaluation", step.number)
    shard_size = settings.micro_batch or -(-settings.global_batch // settings.shards)
    return Held(
        data=data,
        compute=compute,
        batch_size=shard_size if batch_size is None else batch_size,
        collate=collate or loading.collate,
        num_workers=num_workers,
        parts=settings.shards,
        seed=seed,
        device=device,
        stream=HeldStream(data, derive(seed, "order")),
    )


#: Said where the gradients of the step are still to be used.
TOO_EARLY = "call evaluate after optimizer.step(): a worker that joins meanwhile gets the weights of now"


@dataclass
class PartSums:
    """What this worker has computed, by part: sums of all values, and behind them of what each counts."""

    #: Names of what is beside the loss; None: nothing was computed.
    names: tuple[str, ...] | None = None
    by_part: dict[int, list[float]] = field(default_factory=dict)
    #: Parts that are computed to their end.
    complete: set[int] = field(default_factory=set)
    #: How many batches of each part were computed in this try.
    batches: Counter[int] = field(default_factory=Counter)
    #: Of the whole dataset, once all own parts are read.
    samples: int = 0
    #: What all workers have found together, once it is known.
    result: dict[str, float] | None = None

    def missing(self, own: Sequence[int]) -> list[int]:
        """Parts that are still to be computed; what there is of them is dropped."""
        self.by_part = {part: sums for part, sums in self.by_part.items() if part in self.complete}
        self.batches.clear()
        return [part for part in own if part not in self.complete]

    def add(self, part: int, returned: Any, samples: int, number: Callable[[Any], float] = float) -> None:
        """Count what the script's function returned for a batch; `number` makes a number of a value.

        Raises TypeError and ValueError.
        """
        loss, metrics = with_metrics(returned)
        if len(metrics) >= VALUES:
            raise ValueError(f"evaluate averages at most {VALUES - 1} metrics, and got {len(metrics)}")
        if "loss" in metrics:
            raise ValueError("evaluate calls the loss 'loss' itself: give the metric another name")
        names = tuple(metrics)
        if self.names not in (None, names):
            raise TypeError(
                "the function given to evaluate returns the same metrics, in one order, for every batch"
            )
        self.names = names
        sums = self.by_part.setdefault(part, [0.0] * (2 * VALUES))
        for place, value in enumerate((loss, *metrics.values())):
            amount, count = as_sum(value)
            sums[place] += number(amount) * (samples if count is None else 1.0)
            sums[VALUES + place] += samples if count is None else number(count)


def evaluated(
    held: Held, model: torch.nn.Module, parts: Sequence[int], found: PartSums
) -> Generator[None, None, None]:
    """Compute parts into `found`; yields after each batch."""
    with as_it_was(model):
        for part, batch, samples in batches_of(held, parts, found):
            computed(held, model, batch, samples, part, found)
            yield
    found.complete.update(parts)


def computed(
    held: Held,
    model: torch.nn.Module,
    batch: Any,
    samples: int,
    part: int,
    found: PartSums,
    number: Callable[[Any], float] = float,
) -> None:
    """Compute the next batch of a part into `found`."""
    # What the function draws is not to depend on which worker calls it.
    seed_everything(derive(held.seed, "evaluate", part, found.batches[part]))
    found.batches[part] += 1
    with torch.no_grad():
        found.add(part, held.compute(model, moved(batch, held.device)), samples, number)


def most_batches(held: Held, samples: int, parts_of: Sequence[Sequence[int]]) -> int:
    """How many batches the worker with the most of them has; `parts_of`: the parts of each worker."""
    return max(sum(_batches_in(held, part, samples) for part in parts) for parts in parts_of)


def _batches_in(held: Held, part: int, samples: int) -> int:
    """Of one part of a dataset with this many samples."""
    if is_stream(held.data):
        of_part = -(-(samples - part) // held.parts) if samples > part else 0
    else:
        of_part = len(_samples_of(held, part))
    return -(-of_part // held.batch_size)


def first_item(held: Held) -> Any:
    """The first sample of the dataset, of a stream once that was read.  Raises ValueError where it has none."""
    if not is_stream(held.data):
        return held.data[0]
    if not held.stream.first:
        raise ValueError("the dataset has no sample to evaluate")
    return held.stream.first[0]


def filler_of(held: Held) -> Any:
    """A batch of the first sample, for what counts for nothing; its random numbers follow from the evaluation."""
    seed_everything(derive(held.seed, "filler"), devices=False)
    return (held.collate or default_collate)([first_item(held)])


def total(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """The loss and the other means from the sums of all parts, in their order.

    Raises ValueError where nothing was counted.
    """
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    every = ("loss", *names)
    if any(sums[VALUES + place] == 0 for place in range(len(every))):
        raise ValueError(
            "nothing was counted in the evaluation: the dataset has no sample, or all counts are 0"
        )
    return {name: sums[place] / sums[VALUES + place] for place, name in enumerate(every)}


@contextmanager
def as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation; afterwards each module is in the mode that it was in, as are random numbers."""
    modes = {module: module.training for module in model.modules()}
    numbers = capture()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training
        restore(numbers)
        if devices:
            torch.cuda.set_rng_state_all(devices)


def batches_of(held: Held, parts: Sequence[int], found: PartSums) -> Iterator[PartBatch]:
    """The batches of some parts; afterwards `found` has the number of samples of the dataset."""
    return _of_stream(held, parts, found) if is_stream(held.data) else _of_dataset(held, parts, found)


class _Batches(Dataset):  # type: ignore[misc]  # torch is not checked
    """Batches of a dataset; the random numbers of what it computes follow the batch."""

    def __init__(self, held: Held) -> None:
        # Nothing else of it: the script's function may be one that no process can be given.
        self._data, self._seed = held.data, held.seed
        self._collate = held.collate or default_collate

    def __getitem__(self, where: tuple[int, int, range]) -> Any:
        part, number, samples = where
        seed_everything(derive(self._seed, "data", part, number), devices=False)
        return self._collate([self._data[sample] for sample in samples])


def _of_dataset(held: Held, parts: Sequence[int], found: PartSums) -> Iterator[PartBatch]:
    found.samples = len(held.data)
    ranges = [_samples_of(held, part) for part in parts]
    cut = [[one[at : at + held.batch_size] for at in range(0, len(one), held.batch_size)] for one in ranges]
    places = [
        (part, number, batch)
        for part, batches in zip(parts, cut, strict=True)
        for number, batch in enumerate(batches)
    ]
    loaded = iter(loader_of(_Batches(held), places, Loading(num_workers=held.num_workers)))
    for part, batches in zip(parts, cut, strict=True):
        for batch in batches:
            yield part, next(loaded), len(batch)
        found.complete.add(part)


def _samples_of(held: Held, part: int) -> range:
    size = len(held.data)
    return range(part * size // held.parts, (part + 1) * size // held.parts)


def _of_stream(held: Held, parts: Sequence[int], found: PartSums) -> Iterator[PartBatch]:
    collate = held.collate or default_collate
    batches = StreamBatches(held.stream, list(parts), held.parts, held.batch_size, collate, held.seed)
    loading = Loading(num_workers=held.num_workers)
    for one in batches if held.num_workers == 0 else loader_of(batches, None, loading):
        if isinstance(one, StreamEnd):
            # Of several processes each comes to the end.
            found.samples, held.stream.first = one.samples, one.first
            return
        yield one


def rows_of(found: PartSums, own: Sequence[int], parts: int) -> torch.Tensor:
    """What this worker has of its own parts, zeros for all others: parts x (2 x VALUES), in double precision."""
    rows = torch.zeros(parts, 2 * VALUES, dtype=torch.float64)
    for part in own:
        if (sums := found.by_part.get(part)) is not None:
            rows[part] = torch.tensor(sums, dtype=torch.float64)
    return rows


def names_of(held: Held, model: torch.nn.Module, found: PartSums) -> tuple[str, ...]:
    """Names of the metrics, also where this worker has no sample of its own: the first sample has them."""
    if found.names is None:
        names = PartSums()
        if found.samples:
            with as_it_was(model):
                computed(held, model, filler_of(held), 1, 0, names)
        found.names = names.names or ()
    return found.names

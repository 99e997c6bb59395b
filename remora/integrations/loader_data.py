"""The dataset, order and collator of a Trainer, as `Loop` reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from remora.torch.feed import is_stream
from remora.torch.randomness import derive, seed_everything


@dataclass(frozen=True)
class TrainingData:
    """What `Loop` is given."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    shuffle: bool
    drop_last: bool
    num_workers: int
    #: Samples of an epoch; None for a dataset without a length.
    samples: int | None


def training_data(loader: DataLoader, seed: int) -> TrainingData:
    """What the data loader of a Trainer reads; raises ValueError for one whose batches are not made by its samples."""
    dataset, collate, workers = loader.dataset, loader.collate_fn, loader.num_workers
    if is_stream(dataset):
        return TrainingData(dataset, collate, False, bool(loader.drop_last), workers, None)
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise ValueError(
            f"batches are made by a {type(batches).__name__}, which divides the data by the number of workers: use a"
            " sampler of single samples, or a dataset in the order that you want"
        )
    sampler = batches.sampler
    is_random = isinstance(sampler, RandomSampler)
    if is_random and (sampler.replacement or len(sampler) != len(dataset)):
        raise ValueError(
            "the sampler draws some samples twice or not at all: Loop reads each sample once in an epoch, so make the"
            " dataset what is to be read"
        )
    if not (is_random or isinstance(sampler, SequentialSampler)):
        dataset = InOrder(dataset, sampler, seed)
    return TrainingData(dataset, collate, is_random, bool(batches.drop_last), workers, len(dataset))


class InOrder:
    """A dataset in the order of a sampler, which follows from the seed and the epoch alone."""

    def __init__(self, data: Any, sampler: Any, seed: int) -> None:
        self._data = data
        self._sampler = sampler
        self._seed = seed
        self._order: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch; raises ValueError for a sampler that leaves samples out or repeats them."""
        for one in (self._data, self._sampler):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
        seed = derive(self._seed, "sampler", epoch)
        seed_everything(seed, devices=False)
        if getattr(self._sampler, "generator", None) is not None:
            self._sampler.generator.manual_seed(seed)
        self._order = [int(sample) for sample in self._sampler]
        if len(self._order) != len(self._data):
            raise ValueError(
                f"{type(self._sampler).__name__} gives {len(self._order)} of {len(self._data)} samples: the place in"
                " an epoch is counted in samples, so make the dataset what is to be read"
            )

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> Any:
        return self._data[self._order[place]]

"""What a data loader of another library reads, as `Loop` reads it: dataset, order and collator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler

from remora.integrations.loader_data import training_data


class Backwards(Sampler):
    """Gives some of the samples, in an order that its own generator decides."""

    def __init__(self, given: int) -> None:
        self._given = given
        self.generator = torch.Generator()

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self._given, generator=self.generator).tolist())

    def __len__(self) -> int:
        return self._given


class Counting(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def order_of(data: Any, epoch: int) -> list[int]:
    data.set_epoch(epoch)
    return [data[place] for place in range(len(data))]


@pytest.mark.parametrize(("options", "is_shuffled"), [({}, False), ({"shuffle": True}, True)])
def test_a_plain_loader_is_read_by_number(options: dict[str, Any], is_shuffled: bool) -> None:
    loader = DataLoader(range(10), batch_size=3, drop_last=True, collate_fn=sum, **options)
    found = training_data(loader, 1)
    assert (found.dataset, found.collate, found.shuffle) == (range(10), sum, is_shuffled)
    assert (found.drop_last, found.num_workers, found.samples) == (True, 0, 10)


def test_a_stream_has_no_order() -> None:
    found = training_data(DataLoader(Counting(), batch_size=3), 1)
    assert (found.samples, found.shuffle, type(found.dataset)) == (None, False, Counting)


def test_the_order_of_a_sampler_follows_seed_and_epoch_alone() -> None:
    first, again, other = (
        training_data(DataLoader(range(10), batch_size=3, sampler=Backwards(10)), seed) for seed in (1, 1, 2)
    )
    assert not first.shuffle, "the sampler has done it"
    expected = order_of(first.dataset, 5)
    assert sorted(expected) == list(range(10))
    assert order_of(first.dataset, 6) != expected
    order_of(again.dataset, 0)
    assert order_of(again.dataset, 5) == expected
    assert order_of(other.dataset, 5) != expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": 2, "sampler": RandomSampler(range(10), num_samples=4)},
            "some samples twice or not at all",
        ),
        (
            {"batch_sampler": type("Own", (BatchSampler,), {})(range(10), 2, False)},
            "batches are made by a Own",
        ),
    ],
)
def test_loaders_whose_place_cannot_be_counted_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training_data(DataLoader(range(10), **options), 1)


def test_a_sampler_that_leaves_samples_out_is_refused() -> None:
    found = training_data(DataLoader(range(10), batch_size=2, sampler=Backwards(7)), 1)
    with pytest.raises(ValueError, match="Backwards gives 7 of 10 samples"):
        found.dataset.set_epoch(0)

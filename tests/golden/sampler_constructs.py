"""Scripts with samplers of their own, and what becomes of them: their weights with one and three workers.

`docs/elastic-training.md` has them as a table, which `python -m tests.golden.sampler_constructs` prints.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.golden.constructs import Construct, adam, loop_of, run, table_of
from tests.golden.subjects import Samples, Stream, network


class Shuffled(Sampler[int]):
    """Draws from Python's random numbers, and another number of samples in each epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(self.size), self.size - 7 * (self.epoch % 3)))


class Groups(Sampler[list[int]]):
    """Batches of unlike size, as those of a number of tokens."""

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(torch.randperm(60).tolist())
        for size in (20, 5, 13, 1, 20):
            yield list(itertools.islice(order, size))


class OwnGenerator(Sampler[int]):
    def __init__(self) -> None:
        self.numbers = numpy.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.permutation(60).tolist())


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(60))


class OfRank(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(int(os.environ["RANK"]), 60))


def trained(**fields: Any) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, **fields), optimizer)
    return model


def weighted(folder: Path) -> nn.Module:
    return trained(sampler=WeightedRandomSampler([1.0, 2.0, 5.0] * 20, 50))


def with_generator(folder: Path) -> nn.Module:
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    return trained(sampler=RandomSampler(Samples(60), generator=generator))


def of_a_subset(folder: Path) -> nn.Module:
    return trained(sampler=SubsetRandomSampler(range(0, 60, 2)), drop_last=True)


def with_epochs(folder: Path) -> nn.Module:
    return trained(sampler=Shuffled(60))


def in_batches(folder: Path) -> nn.Module:
    sampler = BatchSampler(SubsetRandomSampler(range(50)), 20, drop_last=False)
    return trained(batch_sampler=sampler, global_batch=None)


def of_unlike_size(folder: Path) -> nn.Module:
    return trained(batch_sampler=Groups())


def read_ahead(folder: Path) -> nn.Module:
    return trained(sampler=Shuffled(60), num_workers=1, prefetch_factor=4)


def distributed(folder: Path) -> nn.Module:
    return trained(sampler=DistributedSampler(Samples(60), 3, int(os.environ["RANK"])))


def own_generator(folder: Path) -> nn.Module:
    return trained(sampler=OwnGenerator())


def endless(folder: Path) -> nn.Module:
    return trained(sampler=Endless())


def by_rank(folder: Path) -> nn.Module:
    return trained(sampler=OfRank())


def too_large(folder: Path) -> nn.Module:
    return trained(batch_sampler=Groups(), global_batch=13)


def of_a_stream(folder: Path) -> nn.Module:
    return trained(sampler=Shuffled(60), data=Stream(60))


def prefetched_by_none(folder: Path) -> nn.Module:
    return trained(prefetch_factor=2)


CONSTRUCTS = [
    Construct("`WeightedRandomSampler`", "exact", weighted),
    Construct("`RandomSampler` with a `generator`, seeded or not", "exact", with_generator),
    Construct("`SubsetRandomSampler`, with `drop_last`", "exact", of_a_subset),
    Construct("a sampler with `set_epoch` whose epochs have unlike lengths", "exact", with_epochs),
    Construct("`BatchSampler`, `batch_sampler=`: its batches are the global ones", "exact", in_batches),
    Construct("batches of unlike size, up to `global_batch`", "exact", of_unlike_size),
    Construct("a sampler with `num_workers` and `prefetch_factor`", "exact", read_ahead),
    Construct(
        "`DistributedSampler`", "refused", distributed, "a DistributedSampler divides the samples by rank",
    ),
    Construct(
        "a sampler with a generator of numpy of its own", "refused", own_generator,
        "OwnGenerator gave two different orders for epoch 0 from the same random numbers",
    ),
    Construct("a sampler without an end", "refused", endless, "Endless gives more than 1048576 samples in an epoch"),
    Construct(
        "a sampler that depends on the rank", "refused", by_rank, "rank 1 draws other samples than rank 0 in epoch 0",
    ),
    Construct(
        "a batch that is larger than `global_batch`", "refused", too_large,
        "Groups gave a batch of none or more than 13 samples",
    ),
    Construct(
        "a sampler of an iterable dataset", "refused", of_a_stream, "a sampler needs a dataset with a length",
    ),
    Construct(
        "`prefetch_factor` without `num_workers`", "refused", prefetched_by_none, "prefetch_factor needs num_workers",
    ),
]  # fmt: skip

#: Scripts that are run with every test run; the others are many of their kind.
ALWAYS = [weighted, of_unlike_size, own_generator, by_rank]


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "sampler")


if __name__ == "__main__":
    print(table())

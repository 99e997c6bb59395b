"""Scripts with streams of several kinds, and what becomes of them: their weights with one and three workers.

`docs/elastic-training.md` has them as a table, which `python -m tests.golden.stream_constructs` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from torch import nn
from torch.utils.data import DataLoader, get_worker_info

from remora.torch import ShardedStream
from tests.golden.constructs import Construct, table_of
from tests.golden.sampler_constructs import trained
from tests.golden.subjects import Parts, PlacedStream, Stream


class DividesItself(Stream):
    """As the documentation of `IterableDataset` shows it."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.samples[number] for number in range(first, len(self.samples), step))


class OwnNumbers(PlacedStream):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.generator = numpy.random.default_rng(3)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.generator}


class Large(PlacedStream):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held": b"0" * (5 << 20)}


class Files:
    """A dataset of four parts, which is called as one of Hugging Face."""

    num_shards = 4

    def shard(self, num_shards: int, index: int) -> PlacedStream:
        return PlacedStream(60, index, num_shards)


def placed(folder: Path) -> nn.Module:
    return trained(data=PlacedStream(60))


def placed_ahead(folder: Path) -> nn.Module:
    return trained(data=PlacedStream(60), num_workers=2, prefetch_factor=3)


def from_a_loader(folder: Path) -> nn.Module:
    return trained(data=DataLoader(Stream(60), batch_size=None))


def from_a_loader_with_processes(folder: Path) -> nn.Module:
    return trained(data=DataLoader(Stream(60), batch_size=None, num_workers=1), num_workers=1)


def divides_itself(folder: Path) -> nn.Module:
    return trained(data=DividesItself(60), num_workers=2)


def in_shards(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(Parts(60)))


def in_shards_ahead(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(Parts(60)), num_workers=1)


def shards_of_unlike_length(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(lambda index, count: PlacedStream(7 + 11 * index)))


def of_files(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(Files()), shards=4)


def of_too_few_files(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(Files()))


def in_epochs(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(Parts(60)), epochs=3, total_steps=None)


def own_numbers(folder: Path) -> nn.Module:
    return trained(data=OwnNumbers(60))


def too_large(folder: Path) -> nn.Module:
    return trained(data=Large(60))


def makes_batches(folder: Path) -> nn.Module:
    return trained(data=DataLoader(Stream(60), batch_size=4))


def shards_by_rank(folder: Path) -> nn.Module:
    return trained(data=ShardedStream(lambda index, count: PlacedStream(60, int(os.environ["RANK"]), count)))


CONSTRUCTS: list[Construct] = [
    Construct("one with `state_dict` and `load_state_dict`", "exact", placed),
    Construct("the same with `num_workers` and `prefetch_factor`", "exact", placed_ahead),
    Construct("a `DataLoader` with `batch_size=None`", "exact", from_a_loader),
    Construct(
        "one that divides itself among loader processes (`get_worker_info`), with `num_workers`", "exact",
        divides_itself, "each process reads all of it",
    ),
    Construct("`ShardedStream` of a function", "exact", in_shards),
    Construct("the same with `num_workers`", "exact", in_shards_ahead),
    Construct(
        "the same whose streams have unlike lengths", "exact", shards_of_unlike_length,
        "each begins again when it ends, so samples of short ones come more often",
    ),
    Construct("`ShardedStream` of a dataset with `shard` and `num_shards`", "exact", of_files),
    Construct(
        "the same with fewer parts than `shards`", "refused", of_too_few_files,
        "the dataset has 4 parts, and the loop 6 shards that need one each",
    ),
    Construct(
        "`ShardedStream` with `epochs`", "refused", in_epochs, "a ShardedStream has no epochs",
    ),
    Construct(
        "a state that holds an object, such as a generator of numpy", "refused", own_numbers,
        "the state of OwnNumbers holds a Generator, which no checkpoint keeps",
    ),
    Construct(
        "a state of more than 4 MiB", "refused", too_large, "and it is kept with every step: at most 4194304",
    ),
    Construct(
        "a `DataLoader` that makes batches", "refused", makes_batches,
        "a DataLoader that makes batches cannot be cut into shards",
    ),
    Construct(
        "a `DataLoader` with `num_workers` of its own, where the loop has some", "refused",
        from_a_loader_with_processes,
        "cannot be read in other processes, which may start none",
    ),
    Construct(
        "`ShardedStream` whose streams depend on the rank", "your responsibility", shards_by_rank,
        "no other worker reads this shard, so there is nothing to compare it with",
    ),
]  # fmt: skip

#: Scripts that are run with every test run; the others are many of their kind.
ALWAYS = [placed, in_shards]


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "iterable dataset")


if __name__ == "__main__":
    print(table())

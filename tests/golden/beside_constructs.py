"""Scripts that evaluate and whose workers check each other, and what becomes of that with one and three workers.

`docs/elastic-training.md` has them as a table, which `python -m tests.golden.beside_constructs` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from remora.torch import ShardedStream, Steps
from tests.golden.constructs import Construct, Weights, adam, loop_of, table_of
from tests.golden.sampler_constructs import Shuffled, trained
from tests.golden.subjects import Parts, PlacedStream, Samples, Stream, network

#: Steps from one evaluation or check to the next.
EVERY = 3


def right_of(model: nn.Module, batch: Any) -> Any:
    scores = model(batch[0])
    return functional.cross_entropy(scores, batch[1]), {
        "right": (scores.argmax(1) == batch[1]).float().mean()
    }


def evaluated(held: Any, num_workers: int = 0, **fields: Any) -> Weights:
    """What each evaluation of a run finds, and the weights at its end."""
    model = network("mlp")
    optimizer = adam(model)
    found = []
    loop = loop_of(model, optimizer, **fields)
    for step in loop:
        step.backward(lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        if step.number % EVERY == 0:
            means = loop.evaluate(held, right_of, batch_size=3, num_workers=num_workers)
            found.append([means["loss"], means["right"]])
    return Weights({"found": torch.tensor(found, dtype=torch.float64), **model.state_dict()})


class Elsewhere(PlacedStream):
    """Read by no process but those of a loader."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.made_by = os.getpid()

    def __iter__(self) -> Iterator[Any]:
        assert os.getpid() != self.made_by, "it is read by the worker itself"
        return super().__iter__()


class OfRank(Stream):
    """Other samples in each worker."""

    def __init__(self, size: int) -> None:
        super().__init__(size + 5 * int(os.environ["RANK"]))


def of_samples(folder: Path) -> Weights:
    return evaluated(Samples(29))


def of_a_stream(folder: Path) -> Weights:
    return evaluated(Stream(29))


def of_a_small_stream(folder: Path) -> Weights:
    return evaluated(PlacedStream(2))


def of_a_placed_stream(folder: Path) -> Weights:
    return evaluated(PlacedStream(29), data=PlacedStream(60))


def of_a_loader(folder: Path) -> Weights:
    return evaluated(DataLoader(Stream(29), batch_size=None))


def of_a_stream_read_ahead(folder: Path) -> Weights:
    return evaluated(Elsewhere(29), num_workers=2)


def of_a_loader_with_processes(folder: Path) -> Weights:
    return evaluated(DataLoader(Stream(29), batch_size=None, num_workers=1), num_workers=1)


def of_batches(folder: Path) -> Weights:
    return evaluated(DataLoader(Samples(29), batch_size=4))


def of_shards(folder: Path) -> Weights:
    return evaluated(ShardedStream(Parts(29)))


def of_what_is_trained(folder: Path) -> Weights:
    stream = PlacedStream(60)
    return evaluated(stream, data=stream)


def of_rank(folder: Path) -> Weights:
    return evaluated(OfRank(29))


def verified(folder: Path) -> nn.Module:
    return trained(verify_every=EVERY)


def verified_with_a_sampler(folder: Path) -> nn.Module:
    return trained(verify_every=EVERY, sampler=Shuffled(60))


def verified_while_read_ahead(folder: Path) -> nn.Module:
    return trained(verify_every=EVERY, num_workers=1)


def verified_stream(folder: Path) -> nn.Module:
    return trained(verify_every=EVERY, data=PlacedStream(60))


def verified_shards_of_a_stream(folder: Path) -> nn.Module:
    return trained(verify_every=EVERY, data=ShardedStream(Parts(60)))


def verified_by_the_job(folder: Path) -> nn.Module:
    os.environ["REMORA_VERIFY_EVERY"] = str(EVERY)
    return trained(data=Stream(60))


def verified_roughly(folder: Path) -> nn.Module:
    return trained(verify_every=EVERY, exactness="sample-exact")


def verified_steps(folder: Path) -> Any:
    model = network("mlp")
    return Steps(
        model, adam(model), data=Samples(60), global_batch=20, shards=6, total_steps=3, exactness="bitwise",
        verify_every=EVERY,
    )  # fmt: skip


_NO_STREAM = "verify_every needs a dataset with a length: a worker would read a stream from its start"

CONSTRUCTS: list[Construct] = [
    Construct("`evaluate` of a dataset with a length", "exact", of_samples),
    Construct("`evaluate` of an iterable dataset", "exact", of_a_stream),
    Construct("`evaluate` of a stream with fewer samples than workers", "exact", of_a_small_stream),
    Construct(
        "`evaluate` of a stream with `state_dict`, beside another one that is trained", "exact", of_a_placed_stream,
    ),
    Construct("`evaluate` of a `DataLoader` with `batch_size=None`", "exact", of_a_loader),
    Construct(
        "`evaluate` of a stream, with `num_workers`", "exact", of_a_stream_read_ahead, "each process reads all of it",
    ),
    Construct(
        "`evaluate` with `num_workers` of a `DataLoader` that has some of its own", "refused",
        of_a_loader_with_processes,
        "cannot be read in other processes, which may start none",
    ),
    Construct(
        "`evaluate` of a `DataLoader` that makes batches", "refused", of_batches, "a DataLoader that makes batches",
    ),
    Construct("`evaluate` of a `ShardedStream`", "refused", of_shards, "hand over the dataset, without ShardedStream"),
    Construct(
        "`evaluate` of the very iterable dataset that is trained, where that has `state_dict`", "refused",
        of_what_is_trained, "evaluate would move the stream that is trained to another place",
    ),
    Construct(
        "`evaluate` of an iterable dataset that is not the same in every worker", "your responsibility", of_rank,
        "nothing compares what workers read for an evaluation",
    ),
    Construct("`verify_every`, or `elastic.verify` of the job", "exact", verified),
    Construct("`verify_every` with a sampler", "exact", verified_with_a_sampler),
    Construct("`verify_every` with `num_workers`", "exact", verified_while_read_ahead),
    Construct("`verify_every` with an iterable dataset that knows its place", "refused", verified_stream, _NO_STREAM),
    Construct("`verify_every` with a `ShardedStream`", "refused", verified_shards_of_a_stream, _NO_STREAM),
    Construct("`elastic.verify` of the job, with an iterable dataset", "refused", verified_by_the_job, _NO_STREAM),
    Construct(
        "`verify_every` with `sample-exact`", "refused", verified_roughly, "verify_every compares bits",
    ),
    Construct("`verify_every` with `Steps`", "refused", verified_steps, "verify_every needs Loop"),
]  # fmt: skip

#: Scripts that are run with every test run; the others are many of their kind.
ALWAYS = [of_a_placed_stream, verified_by_the_job]


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "evaluation or check")


if __name__ == "__main__":
    print(table())

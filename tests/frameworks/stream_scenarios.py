"""Streams of Hugging Face and torchdata, read by one feed and gone on with by another; prints what was found.

Runs in the environment with these libraries: `python -m tests.frameworks.stream_scenarios`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from remora.torch import ShardedStream
from remora.torch.feed import Feed, FeedPlan, load_batches
from remora.torch.loading import Loading
from remora.torch.order import Position

SIZE, BATCH, SHARDS = 400, 12, 4
#: Numbers of the samples that a dataset of Hugging Face has read from its source.
READ: list[int] = []


def plan_of(**changed: Any) -> FeedPlan:
    fields: dict[str, Any] = {
        "global_batch": BATCH, "shards": SHARDS, "micro_batch": None, "seed": 3, "shuffle": True, "drop_last": False,
        "epochs": None, "steps": 50, "own": range(SHARDS), "start": Position(0, 0),
    }  # fmt: skip
    return FeedPlan(**{**fields, **changed})


def steps_of(feed: Feed, most: int) -> list[list[int]]:
    """The numbers that each step trains, up to a limit of steps."""
    found: list[list[int]] = []
    while len(found) < most and feed.peek() is not None:
        found.append([item["n"] for _, items in feed.step() for item in items])
    return found


def feed_of(data: Any, plan: FeedPlan, num_workers: int = 0) -> Feed:
    return Feed(load_batches(data, plan, Loading(collate=list, num_workers=num_workers)))


def rows(files: list[int]) -> Iterator[dict[str, int]]:
    for file in files:
        for row in range(SIZE // 8):
            READ.append(file)
            yield {"n": file * SIZE // 8 + row}


def hugging_face() -> Any:
    return IterableDataset.from_generator(rows, gen_kwargs={"files": list(range(8))})


def from_table() -> Any:
    return Dataset.from_dict({"n": list(range(SIZE))}).to_iterable_dataset(num_shards=8)


def shuffled() -> Any:
    return hugging_face().shuffle(seed=5, buffer_size=20)


def loader() -> Any:
    return StatefulDataLoader(
        [{"n": one} for one in range(SIZE)], batch_size=None, shuffle=True,
        generator=torch.Generator().manual_seed(7),
    )  # fmt: skip


def loader_without_generator() -> Any:
    return StatefulDataLoader([{"n": one} for one in range(SIZE)], batch_size=None, shuffle=True)


def loader_of_stream() -> Any:
    return StatefulDataLoader(hugging_face(), batch_size=None)


def in_shards() -> Any:
    return ShardedStream(hugging_face())


def facts_of(make: Any, num_workers: int) -> dict[str, Any]:
    """Whether a feed of a new dataset gives what the first one would have given, at several places."""
    expected = steps_of(feed_of(make(), plan_of()), 50)
    agree, reads = [], []
    for done in (4, 34, 40):
        feed = feed_of(make(), plan_of(), num_workers)
        steps_of(feed, done)
        # 34 steps are an epoch.
        epoch, place = divmod(done - 1, 34) if make is not in_shards else (0, done - 1)
        start = Position(epoch, place + 1)
        READ.clear()
        goes_on = feed_of(make(), plan_of(start=start, data_state=feed.data_state, steps=3), num_workers)
        agree.append(steps_of(goes_on, 3) == expected[done : done + 3])
        reads.append(len(READ))
    return {
        "agree": agree,
        "reads": reads,
        "samples": sorted({one for step in expected for one in step}) == list(range(SIZE)),
    }


if __name__ == "__main__":
    kinds = (
        hugging_face,
        from_table,
        shuffled,
        loader,
        loader_without_generator,
        loader_of_stream,
        in_shards,
    )
    print(
        json.dumps(
            {
                f"{one.__name__}-{n}": facts_of(one, n)
                for one in kinds
                for n in ((0, 2) if one is hugging_face else (0,))
            }
        )
    )

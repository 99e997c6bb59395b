"""Streams: random numbers of a batch, a place that is gone on from, and workers that read their own shards alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from remora.torch import CheckpointUnusable, Loop, ShardedStream
from remora.torch.feed import Feed, FeedPlan, load_batches
from remora.torch.loading import Loading
from remora.torch.order import Position, shards_of
from remora.torch.randomness import RandomStream, capture, derive, restore
from remora.torch.state import LoopState, Progress, read, write
from remora.torch.stream_state import MOST_BYTES, merged
from remora.torch.streams import Source, WholeStream

BATCH, SHARDS = 12, 4
PLAN = FeedPlan(
    global_batch=BATCH,
    shards=SHARDS,
    micro_batch=2,
    seed=3,
    shuffle=True,
    drop_last=False,
    epochs=None,
    steps=10,
    own=range(SHARDS),
    start=Position(0, 0),
)


class Plain(IterableDataset):  # type: ignore[misc]  # torch is not checked
    """Numbers with noise, read one after the other."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.size):
            yield self.one(number)

    def one(self, number: int) -> Any:
        self.reads += 1
        return number, random.random() + float(torch.rand(())) + float(numpy.random.rand())


class Placed(Plain):
    """The same with a place that its iterators share, as many datasets have it."""

    place = 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < self.size:
            self.place += 1
            yield self.one(self.place - 1)
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def steps_of(feed: Feed, most: int = 1000) -> list[list[Any]]:
    """What each step has: shard, numbers and items of its micro-batches."""
    found: list[list[Any]] = []
    while len(found) < most and feed.peek() is not None:
        found.append([(one.shard, one.samples, items) for one, items in feed.step()])
    return found


def feed_of(data: Any, plan: FeedPlan = PLAN, **loading: Any) -> Feed:
    return Feed(load_batches(data, plan, Loading(collate=list, **loading)))


def together(make: Any, plan: FeedPlan, workers: int) -> list[list[Any]]:
    """The steps of several workers as those of one."""
    plans = [replace(plan, own=shards_of(rank, workers, SHARDS)) for rank in range(workers)]
    each = [steps_of(feed_of(make(), one)) for one in plans]
    return [list(chain(*parts)) for parts in zip(*each, strict=True)]


def resumed(plan: FeedPlan, feed: Feed, done: int, **changed: Any) -> FeedPlan:
    """A plan that goes on behind what a feed has given."""
    start = Position(plan.start.epoch, plan.start.place + done)
    return replace(plan, start=start, data_state=feed.data_state, **changed)


@pytest.mark.parametrize("kind", [Plain, Placed])
def test_a_stream_has_the_same_random_numbers_for_any_number_of_workers(kind: Any) -> None:
    expected = steps_of(feed_of(kind()))
    for workers in (2, 3, 4):
        assert together(kind, PLAN, workers) == expected


def test_a_stream_without_a_place_draws_on_from_one_sample_to_the_next() -> None:
    """What a checkpoint of an earlier release goes on with."""
    numbers = RandomStream(derive(PLAN.seed, "stream", 0))
    with numbers.running():
        expected = list(Plain(10 * BATCH))
    outside = capture()
    items: dict[int, Any] = {}
    for step in steps_of(feed_of(Plain())):
        for _, samples, found in step:
            items.update(zip(samples, found, strict=True))
    assert [items[number] for number in range(10 * BATCH)] == expected
    restore(outside)


def test_reading_leaves_the_random_numbers_of_the_script_alone() -> None:
    for kind in (Plain, Placed):
        batches = WholeStream(Source(kind()), BATCH, SHARDS, 3, range(SHARDS), drop_last=False).batches(
            0, 0, None
        )
        torch.manual_seed(5)
        before = torch.get_rng_state()
        next(batches)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("steps", [4, 40])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_reads_one_batch_more_than_it_needs(steps: int, num_workers: int) -> None:
    plan = replace(PLAN, steps=steps + 3)
    expected = steps_of(feed_of(Placed(), plan))
    feed = feed_of(Placed(), plan, num_workers=num_workers)
    assert steps_of(feed, steps) == expected[:steps]
    again = Placed()
    goes_on = feed_of(again, resumed(plan, feed, steps, steps=3))
    assert steps_of(goes_on) == expected[steps:]
    assert again.reads <= (3 + 1) * BATCH
    assert (
        steps_of(feed_of(Placed(), resumed(plan, feed, steps, steps=3), num_workers=num_workers))
        == (expected[steps:])
    )


def test_a_resume_at_any_place_of_several_epochs_gives_the_same_samples() -> None:
    """31 samples in batches of 12: the last batch of an epoch is smaller, and so is what its state was taken before."""
    for size, drop_last in ((31, False), (31, True), (24, False)):
        plan = replace(PLAN, steps=None, epochs=3, drop_last=drop_last)
        expected = steps_of(feed_of(Placed(size), plan))
        per_epoch = len(expected) // 3
        for done in range(1, len(expected)):
            feed = feed_of(Placed(size), plan)
            steps_of(feed, done)
            epoch, place = divmod(done - 1, per_epoch)
            goes_on = replace(plan, start=Position(epoch, place + 1), data_state=feed.data_state)
            assert steps_of(feed_of(Placed(size), goes_on)) == expected[done:], (size, drop_last, done)


def test_a_feed_that_is_opened_again_in_the_same_process_is_not_behind_its_place() -> None:
    source = Source(Placed())
    expected = steps_of(feed_of(Placed()))
    feed = feed_of(source)
    for done in (0, 1, 5):
        steps_of(feed, 2)
        feed = feed_of(source, replace(PLAN, start=Position(0, 0), steps=10))
        assert steps_of(feed, done) == expected[:done]
        goes_on = feed_of(source, resumed(PLAN, feed, done, steps=10 - done))
        assert steps_of(goes_on) == expected[done:]
        feed = feed_of(source)


def test_samples_that_a_state_leaves_out_are_found() -> None:
    class HoldsBack(Placed):
        """It reads two samples ahead, and its state has not got them."""

        def __iter__(self) -> Iterator[Any]:
            held: list[Any] = []
            for one in super().__iter__():
                held.append(one)
                if len(held) > 2:
                    yield held.pop(0)
            yield from held

    feed = feed_of(HoldsBack())
    steps_of(feed, 3)
    with pytest.raises(ValueError, match="HoldsBack gives other samples after load_state_dict") as refused:
        steps_of(feed_of(HoldsBack(), resumed(PLAN, feed, 3)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (
            {"buffer": b"x" * (MOST_BYTES + 1)},
            "takes 4194313 bytes, and it is kept with every step: at most 4194304",
        ),
        ({"numbers": numpy.random.default_rng(1)}, "holds a Generator, which no checkpoint keeps"),
        ({"numbers": [numpy.zeros(2)]}, "holds a ndarray, which no checkpoint keeps"),
        ({(1, 2): 3}, "has a key of type tuple"),
    ],
)
def test_a_state_that_no_checkpoint_should_keep_is_refused(state: Any, says: str) -> None:
    class Odd(Placed):
        def state_dict(self) -> Any:
            return state

    with pytest.raises(ValueError, match=says):
        steps_of(feed_of(Odd()), 1)


def test_a_checkpoint_keeps_the_place_without_code(tmp_path: Path) -> None:
    class Rich(Placed):
        def state_dict(self) -> dict[str, Any]:
            rich = {"text": "ü", "bytes": b"\x00\xff", "numbers": torch.get_rng_state(), "big": 1 << 100}
            return {**super().state_dict(), **rich, "list": [1.5, None, (True, {0: "zero"})]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state["bytes"] == b"\x00\xff"
            assert state["big"] == 1 << 100
            assert state["list"] == [1.5, None, (True, {0: "zero"})]
            assert state["numbers"].dtype == torch.uint8
            super().load_state_dict(state)

    feed = feed_of(Rich())
    steps_of(feed, 3)
    parts = LoopState({"model": torch.nn.Linear(1, 1)}, {})
    write(parts.capture(Progress(3, 0, 3, feed.data_state)), tmp_path)
    progress = parts.restore(read(tmp_path))
    goes_on = replace(PLAN, start=Position(0, 3), steps=7, data_state=progress.data)
    assert steps_of(feed_of(Rich(), goes_on)) == steps_of(feed_of(Rich()))[3:]


def test_a_place_of_another_dataset_is_refused() -> None:
    feed = feed_of(Placed())
    steps_of(feed, 3)

    class Other(Placed):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.place = state["shard"]

    with pytest.raises(
        ValueError, match="the saved place in the dataset does not fit Other, so hand over the same"
    ):
        steps_of(feed_of(Other(), resumed(PLAN, feed, 3)))


def test_mosaics_call_gets_the_samples_of_the_epoch() -> None:
    """A double with the signature that `StreamingDataset` publishes."""

    class Mosaic(Plain):
        sample_in_epoch = 0

        def __iter__(self) -> Iterator[Any]:
            begin, self.sample_in_epoch = self.sample_in_epoch, 0
            for number in range(begin, self.size):
                yield self.one(number)

        def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
            assert from_beginning
            return {"epoch": 0, "sample_in_epoch": num_samples}

        def load_state_dict(self, obj: dict[str, Any]) -> None:
            self.sample_in_epoch = obj["sample_in_epoch"]

    feed = feed_of(Mosaic())
    expected = steps_of(feed_of(Mosaic()))
    steps_of(feed, 4)
    again = Mosaic()
    goes_on = feed_of(again, resumed(PLAN, feed, 4, steps=2))
    assert steps_of(goes_on, 1) == expected[4:5]
    assert again.reads == 2 * BATCH
    assert goes_on.data_state["state"]["sample_in_epoch"] == 4 * BATCH
    assert steps_of(goes_on) == expected[5:6]


def test_a_dataset_that_divides_itself_among_loader_processes_is_read_as_a_whole() -> None:
    class Divides(Plain):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            return (self.one(number) for number in range(first, self.size, step))

    assert steps_of(feed_of(Divides(), num_workers=2)) == steps_of(feed_of(Divides()))


# --- sharded streams --------------------------------------------------------------------------------------------------


class Part(Plain):
    """Every n-th number from one on, without a place."""

    def __init__(self, index: int, count: int, size: int) -> None:
        super().__init__(len(range(index, size, count)))
        self.index, self.count = index, count

    def one(self, number: int) -> Any:
        return super().one(self.index + self.count * number)


class PlacedPart(Part, Placed):
    """The same with a place."""


class Reads:
    """Makes streams, and knows how many samples each has given."""

    def __init__(self, kind: Any = PlacedPart, size: int = 100) -> None:
        self.kind, self.size = kind, size
        self.made: dict[int, list[Plain]] = {}

    def __call__(self, index: int, count: int) -> Plain:
        one: Plain = self.kind(index, count, self.size)
        self.made.setdefault(index, []).append(one)
        return one

    def counts(self) -> dict[int, int]:
        return {shard: sum(one.reads for one in made) for shard, made in self.made.items()}


@pytest.mark.parametrize("kind", [Part, PlacedPart])
def test_a_sharded_stream_is_the_same_for_any_number_of_workers(kind: Any) -> None:
    """25 samples of each shard in steps of three: streams begin again within a step."""
    plan = replace(PLAN, steps=30)
    expected = steps_of(feed_of(ShardedStream(Reads(kind)), plan))
    for workers in (2, 3, 4):
        assert together(lambda: ShardedStream(Reads(kind)), plan, workers) == expected
    read_by_shard = Counter(
        (shard, item[0]) for step in expected for shard, _, items in step for item in items
    )
    assert all(number % SHARDS == shard for shard, number in read_by_shard)
    assert set(read_by_shard.values()) == {3, 4}, (
        "30 * 12 samples of 100, each as often as the others of its shard"
    )


def test_a_worker_reads_only_the_streams_of_its_shards() -> None:
    reads = Reads()
    steps_of(feed_of(ShardedStream(reads), replace(PLAN, own=range(1, 3))))
    assert reads.counts() == {1: 30, 2: 30}


@pytest.mark.parametrize("steps", [4, 40])
def test_streams_move_with_their_states(steps: int) -> None:
    """Three workers become two; what was shared before, the new owners go on from."""
    plan = replace(PLAN, steps=steps + 3)
    expected = steps_of(feed_of(ShardedStream(Reads()), plan))
    known: Any = None
    for rank in range(3):
        feed = feed_of(ShardedStream(Reads()), replace(plan, own=shards_of(rank, 3, SHARDS)))
        steps_of(feed, steps)
        known = merged(known, feed.data_state)
    assert set(known["shards"]) == set(range(SHARDS))
    parts = []
    for rank in range(2):
        reads = Reads()
        start = Position(0, steps)
        own = shards_of(rank, 2, SHARDS)
        goes_on = replace(plan, own=own, start=start, steps=3, data_state=known)
        parts.append(steps_of(feed_of(ShardedStream(reads), goes_on)))
        assert reads.counts() == dict.fromkeys(own, (3 + 1) * BATCH // SHARDS)
    assert [one + other for one, other in zip(*parts, strict=True)] == expected[steps:]


def test_a_stream_whose_newest_place_was_lost_goes_on_from_what_is_known() -> None:
    plan = replace(PLAN, steps=20)
    expected = steps_of(feed_of(ShardedStream(Reads()), plan))
    feed = feed_of(ShardedStream(Reads()), plan)
    steps_of(feed, 5)
    known = feed.data_state
    own = feed_of(ShardedStream(Reads()), replace(plan, own=range(2)))
    steps_of(own, 15)
    known = merged(known, own.data_state)
    reads = Reads()
    goes_on = replace(plan, start=Position(0, 15), steps=5, data_state=known)
    assert steps_of(feed_of(ShardedStream(reads), goes_on)) == expected[15:]
    assert reads.counts() == {0: 18, 1: 18, 2: 48, 3: 48}, "six steps, and all since the fifth"
    assert steps_of(feed_of(ShardedStream(Reads()), replace(goes_on, data_state=None))) == expected[15:]


def test_the_later_of_two_places_is_known() -> None:
    early, late = ({"shards": {0: {"place": place}}} for place in (3, 7))
    assert merged(early, late) == merged(late, early) == late
    assert merged(late, None) == merged(None, late) == late


class OfParts:
    """As a dataset of Hugging Face is called."""

    num_shards = 3

    def shard(self, num_shards: int, index: int) -> Plain:
        return PlacedPart(index, num_shards, 100)


def test_a_dataset_of_fewer_parts_than_shards_is_refused() -> None:
    with pytest.raises(ValueError, match="the dataset has 3 parts, and the loop 4 shards") as refused:
        steps_of(feed_of(ShardedStream(OfParts())))
    assert "\n" not in str(refused.value)
    data = OfParts()
    data.num_shards = 4
    assert steps_of(feed_of(ShardedStream(data))) == steps_of(feed_of(ShardedStream(Reads())))


def test_a_stream_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="the stream of shard 3 gives no sample"):
        steps_of(feed_of(ShardedStream(Reads(size=3))))
    with pytest.raises(TypeError, match="a function of index and count"):
        ShardedStream([1, 2])


def loop_of(data: Any, **changed: Any) -> Loop:
    model = torch.nn.Linear(1, 1)
    sizes: dict[str, Any] = {"global_batch": 4, "shards": 2, "total_steps": 3, **changed}
    return Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), data=data, **sizes)


def test_what_has_no_epochs_and_what_makes_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="a ShardedStream has no epochs"):
        loop_of(ShardedStream(Reads()), epochs=2)
    with pytest.raises(ValueError, match=r"a DataLoader that makes batches .* give it batch_size=None"):
        loop_of(DataLoader(Plain(), batch_size=4))


def test_a_checkpoint_of_a_sharded_stream_is_not_one_of_the_whole(tmp_path: Path) -> None:
    loop_of(ShardedStream(Reads())).save(tmp_path)
    with pytest.raises(CheckpointUnusable, match="sampler='ShardedStream'"):
        loop_of(Plain()).load(tmp_path)

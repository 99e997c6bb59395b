"""Datasets without a length, read batch by batch: as a whole by every worker, or only the own shards.

A stream as a whole: every worker reads the same one; sample i belongs to global batch i // global_batch, and there to
shard (i % global_batch) % shards.  A `ShardedStream` is as many streams as there are shards, of which a worker reads
those that it carries.

A dataset that knows its own place (`stream_state.py`) goes on there: what is kept is its state before the newest batch,
and a mark of the first sample of that.  So one batch is read again, and shows whether the state is right.  Without such
a state it is read from the start of its epoch.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch.utils.data import _utils as loader_parts

from remora.torch.agreement import gathered
from remora.torch.group import Group
from remora.torch.order import shard_size
from remora.torch.randomness import RandomStream, derive
from remora.torch.sharded_stream import ShardedStream
from remora.torch.stream_state import (
    can_resume,
    check_mark,
    load,
    mark_of,
    merged,
    seed_generators,
    state_of,
)

_END = object()


class Source:
    """The dataset of a loop, with what this process knows of how its epochs begin."""

    def __init__(self, data: Any) -> None:
        self.data = data
        #: The newest epoch that was begun in this process, and the dataset's state then.
        self.begun: tuple[int, Any] | None = None
        #: A sample that was read in this process.
        self.sample: Any = None


@dataclass(frozen=True)
class StreamBatch:
    """What a worker has read of a global batch."""

    #: Of the batch in its epoch.
    place: int
    #: Own samples by shard and number.
    kept: dict[int, dict[int, Any]]
    #: Samples of the whole global batch.
    total: int
    #: Its first sample, where every worker reads that; None otherwise.
    first: Any
    #: Where the dataset is behind it; None where that is not known.
    data_state: Any


@contextmanager
def by_one_process() -> Iterator[None]:
    """A dataset sees no loader processes inside, among which it would divide its samples: each reads all of them."""
    info = loader_parts.worker._worker_info
    loader_parts.worker._worker_info = None
    try:
        yield
    finally:
        loader_parts.worker._worker_info = info


class _Reading:
    """One dataset that is read some samples at a time."""

    def __init__(self, data: Any, seed: int) -> None:
        self.data, self._seed = data, seed
        self.knows_its_place = can_resume(data)
        self._stream: Iterator[Any] = iter(())
        self._random = RandomStream(seed)
        #: Samples of the epoch that were read.
        self.samples = 0

    def begin(self, epoch: int, path: tuple[int, ...], state: Any = None, samples: int = 0) -> None:
        """Go to the start of an epoch, or to where the dataset was in it; random numbers follow from `path`."""
        self._random, self.samples = RandomStream(derive(self._seed, "stream", *path)), samples
        # A StatefulDataLoader does not pass it on, and its dataset would begin where it was once sent to.
        inside: Any = getattr(self.data, "dataset", None) if self.knows_its_place else None
        for one in (self.data, inside):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
        if self.knows_its_place:
            seed_generators(self.data, derive(self._seed, "stream", *path))
        with self._random.running(), by_one_process():
            if state is not None:
                load(self.data, state)
            self._stream = iter(self.data)

    def seed(self, *path: int) -> None:
        """Let what comes next draw numbers that follow from `path` alone: a resume does not know what was before."""
        if self.knows_its_place:
            self._random = RandomStream(derive(self._seed, "stream", *path))

    def state(self) -> Any:
        """Where the dataset is; None where it does not know."""
        if not self.knows_its_place:
            return None
        with by_one_process():
            return state_of(self.data, self.samples)

    def items(self, most: int) -> Iterator[Any]:
        """The next samples; read to the end before anything else draws random numbers.  Fewer at the end."""
        with self._random.running(), by_one_process():
            for _ in range(most):
                item = next(self._stream, _END)
                if item is _END:
                    return
                self.samples += 1
                yield item


class WholeStream:
    """A stream that every worker reads, of which it keeps the samples of its own shards."""

    def __init__(
        self, source: Source, global_batch: int, shards: int, seed: int, own: range, *, drop_last: bool
    ) -> None:
        self._source = source
        self._reading = _Reading(source.data, seed)
        self._global_batch, self._shards, self._own = global_batch, shards, frozenset(own)
        self._drop_last = drop_last

    def batches(self, epoch: int, start: int, known: Any) -> Iterator[StreamBatch]:
        """The batches of an epoch from place `start` on or before; `known`: what was kept of an earlier one."""
        reading, size, source = self._reading, self._global_batch, self._source
        state, first_place, mark = None, 0, None
        if reading.knows_its_place and _is_before(known, epoch, start):
            state, first_place, mark = known["state"], known["place"], known["mark"]
        elif source.begun is not None and source.begun[0] == epoch:
            # It was read in this process, and may go on from there by itself.
            state = source.begun[1]
        reading.begin(epoch, (epoch,), state, first_place * size)
        for place in count(first_place):
            before = reading.state()
            if place == 0:
                source.begun = (epoch, before)
            reading.seed(epoch, place)
            kept, total, first = self._read(place)
            if mark is not None:
                check_mark(mark, first, type(source.data).__name__)
                mark = None
            if total == 0 or (total < size and self._drop_last):
                return
            data_state = None
            if before is not None:
                data_state = {"epoch": epoch, "place": place, "state": before, "mark": mark_of(first)}
            yield StreamBatch(place, kept, total, first, data_state)
            if total < size:
                return

    def _read(self, place: int) -> tuple[dict[int, dict[int, Any]], int, Any]:
        """The own samples of the next batch, its size, and its first sample."""
        kept: dict[int, dict[int, Any]] = {}
        total, first = 0, None
        for item in self._reading.items(self._global_batch):
            if total == 0:
                first = self._source.sample = item
            if (shard := total % self._shards) in self._own:
                kept.setdefault(shard, {})[place * self._global_batch + total] = item
            total += 1
        return kept, total, first


def _is_before(known: Any, epoch: int, start: int) -> bool:
    return known is not None and known.get("epoch") == epoch and known.get("place", start + 1) <= start


class OwnStreams:
    """The streams of a worker's own shards, each with its state."""

    def __init__(self, stream: ShardedStream, global_batch: int, shards: int, seed: int, own: range) -> None:
        self._global_batch, self._shards, self._own = global_batch, shards, own
        self._readings = {shard: _Reading(stream.shard(shard, shards), seed) for shard in own}
        self._passes: dict[int, int] = {}

    def batches(self, epoch: int, start: int, known: Any) -> Iterator[StreamBatch]:
        """The batches from place `start` on, without an end.  Raises ValueError for a stream without samples."""
        shards = {} if known is None else known.get("shards", {})
        for shard in self._own:
            self._go_to(shard, start, shards.get(shard))
        for place in count(start):
            kept, places = {}, {}
            for shard in self._own:
                kept[shard], places[shard] = self._read(shard, place)
            known_now = {shard: one for shard, one in places.items() if one is not None}
            yield StreamBatch(
                place,
                kept,
                self._global_batch,
                None,
                {"epoch": epoch, "shards": known_now} if known_now else None,
            )

    def _go_to(self, shard: int, start: int, known: Any) -> None:
        """Read a stream up to the batch at `start`, from what is known of it on."""
        reading = self._readings[shard]
        place, mark, state, samples = 0, None, None, 0
        self._passes[shard] = 0
        if reading.knows_its_place and known is not None and known["place"] <= start:
            place, mark, state, samples = known["place"], known["mark"], known["state"], known["samples"]
            self._passes[shard] = known["pass"]
        reading.begin(self._passes[shard], (shard, self._passes[shard]), state, samples)
        for one in range(place, start):
            kept, _ = self._read(shard, one)
            if mark is not None:
                check_mark(mark, next(iter(kept.values())), type(reading.data).__name__)
                mark = None

    def _read(self, shard: int, place: int) -> tuple[dict[int, Any], Any]:
        """A shard's samples of one batch by number, and what is kept of where its stream was before them."""
        reading, size = self._readings[shard], self._global_batch
        known = {"place": place, "pass": self._passes[shard], "samples": reading.samples}
        state = reading.state()
        reading.seed(shard, place, 1)
        needed = shard_size(size, shard, self._shards)
        items: list[Any] = []
        was_empty = False
        while len(items) < needed:
            found = list(reading.items(needed - len(items)))
            items.extend(found)
            if len(items) == needed:
                break
            if was_empty and not found:
                raise ValueError(
                    f"the stream of shard {shard} gives no sample: let each of the {self._shards} shards have some"
                )
            was_empty = True
            self._passes[shard] += 1
            reading.begin(self._passes[shard], (shard, self._passes[shard]))
        kept = {place * size + shard + nth * self._shards: item for nth, item in enumerate(items)}
        return kept, None if state is None else {**known, "state": state, "mark": mark_of(items[0])}


def sample_of(source: Source, shards: int) -> Any:
    """Some sample of a stream, for what needs the shape of one; a stream that is being read stays where it is."""
    if isinstance(source.data, ShardedStream):
        return next(iter(source.data.shard(0, shards)))
    return next(iter(source.data)) if source.sample is None else source.sample


def shared_places(group: Group, device: torch.device, known: Any, own_shards: range) -> Any:
    """What all workers know of where the streams of their shards are; raises PeerLost.  All workers call it alike."""
    mine = known
    if isinstance(known, Mapping) and "shards" in known:
        # Of its own shards alone: each worker has what the others knew before.
        mine = {**known, "shards": {one: at for one, at in known["shards"].items() if one in own_shards}}
    # What comes from a worker of the same job is code of the same user.
    own = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8).to(device)
    lengths = gathered(group, torch.tensor([len(own)], device=device)).view(-1).tolist()
    rows = gathered(group, torch.nn.functional.pad(own, (0, max(lengths) - len(own)))).cpu()
    for row, length in zip(rows, lengths, strict=True):
        known = merged(known, pickle.loads(row[:length].numpy().tobytes()))  # noqa: S301
    return known

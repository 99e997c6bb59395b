"""A stream that is evaluated: read from one place each time, also after a reading that a lost worker has broken off."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from remora.torch.loading import Collate, every_nth
from remora.torch.randomness import RandomStream, derive, seed_everything
from remora.torch.sharded_stream import ShardedStream, check_stream
from remora.torch.stream_state import can_resume, raw_state, seed_generators
from remora.torch.streams import by_one_process

_END: Any = object()


class HeldStream:
    """A stream for one evaluation.

    Most begin again with each `iter`.  One that knows its place may go on where a reading has ended, and is sent back.
    What a `StatefulDataLoader` draws its order from is seeded, so that the order is the same on all workers.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self._data = data
        self._seed = seed
        self._knows_its_place = can_resume(data)
        #: Where it was before its first sample.
        self._begun: Any = None
        self._is_partly_read = False
        #: The first sample alone, once the stream was read; empty where it has none.
        self.first: tuple[Any, ...] = ()

    def read(self) -> Iterator[Any]:
        """All samples from the beginning."""
        self.rewind()
        if self._knows_its_place:
            seed_generators(self._data, self._seed)
        with by_one_process():
            stream = iter(self._data)
            if self._knows_its_place and self._begun is None:
                self._begun = copy.deepcopy(raw_state(self._data, 0))
        self._is_partly_read = True
        while True:
            with by_one_process():
                item = next(stream, _END)
            if item is _END:
                break
            if not self.first:
                self.first = (item,)
            yield item
        self._is_partly_read = False

    def rewind(self) -> None:
        """Let the next reading begin at the beginning, where the last one has not come to the end."""
        if self._is_partly_read and self._begun is not None:
            self._data.load_state_dict(copy.deepcopy(self._begun))
        self._is_partly_read = False


@dataclass(frozen=True)
class StreamEnd:
    """What comes behind the last batch of a stream."""

    #: Of the whole stream.
    samples: int
    #: The first one, alone; empty where there is none.
    first: tuple[Any, ...]


#: A part, a batch of it, and its samples.
PartBatch = tuple[int, Any, int]


class StreamBatches(IterableDataset):  # type: ignore[misc]  # torch is not checked
    """The batches of a stream's own parts, all at once, because a stream is read once.

    With several loader processes each reads all of it and makes every n-th batch, as in training.
    """

    def __init__(
        self, stream: HeldStream, own: list[int], parts: int, batch_size: int, collate: Collate, seed: int
    ) -> None:
        self._stream, self._own, self._parts = stream, own, parts
        self._batch_size, self._collate, self._seed = batch_size, collate, seed

    def __iter__(self) -> Iterator[PartBatch | StreamEnd]:
        loader, loaders = every_nth()
        of_part: Counter[int] = Counter()
        number = 0
        for one in self._read():
            if isinstance(one, StreamEnd):
                yield one
                continue
            part, items = one
            if number % loaders == loader:
                seed_everything(derive(self._seed, "data", part, of_part[part]), devices=False)
                yield part, self._collate(items), len(items)
            of_part[part] += 1
            number += 1

    def _read(self) -> Iterator[tuple[int, list[Any]] | StreamEnd]:
        """Samples of each batch, with its part."""
        waiting: dict[int, list[Any]] = {part: [] for part in self._own}
        random = RandomStream(derive(self._seed, "stream"))
        numbered = enumerate(self._stream.read())
        samples = 0
        full: int | None = 0
        while full is not None:
            full = None
            # States of random numbers take longer than most samples: they change once for each batch.
            with random.running():
                for number, item in numbered:
                    samples = number + 1
                    if (part := number % self._parts) in waiting:
                        waiting[part].append(item)
                        if len(waiting[part]) == self._batch_size:
                            full = part
                            break
            if full is not None:
                items, waiting[full] = waiting[full], []
                yield full, items
        yield from ((part, items) for part, items in waiting.items() if items)
        yield StreamEnd(samples, self._stream.first)


def check_held(data: Any, trained: Any, num_workers: int) -> None:
    """Raise ValueError for a dataset that cannot be evaluated beside the one that is `trained`."""
    check_stream(data, None, num_workers)
    is_cut = isinstance(data, ShardedStream)
    if is_cut:
        raise ValueError(
            "evaluate lets each worker read all of a stream: hand over the dataset, without ShardedStream"
        )
    if data is trained and can_resume(data):
        raise ValueError(
            "evaluate would move the stream that is trained to another place: hand over a stream of its own"
        )

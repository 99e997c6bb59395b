"""A stream that is evaluated: read from one place each time, also after a reading that a lost worker has broken off."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from remora.torch.sharded_stream import ShardedStream, check_stream
from remora.torch.stream_state import can_resume, raw_state, seed_generators

#: In place of a sample that is not there.
NOTHING: Any = object()


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
        #: The first sample, once it was read.
        self.first = NOTHING

    def read(self) -> Iterator[Any]:
        """All samples from the beginning."""
        self.rewind()
        if self._knows_its_place:
            seed_generators(self._data, self._seed)
        stream = iter(self._data)
        if self._knows_its_place and self._begun is None:
            self._begun = copy.deepcopy(raw_state(self._data, 0))
        self._is_partly_read = True
        for item in stream:
            if self.first is NOTHING:
                self.first = item
            yield item
        self._is_partly_read = False

    def rewind(self) -> None:
        """Let the next reading begin at the beginning, where the last one has not come to the end."""
        if self._is_partly_read and self._begun is not None:
            self._data.load_state_dict(copy.deepcopy(self._begun))
        self._is_partly_read = False


def check_held(data: Any, trained: Any) -> None:
    """Raise ValueError for a dataset that cannot be evaluated beside the one that is `trained`."""
    check_stream(data, None)
    is_cut = isinstance(data, ShardedStream)
    if is_cut:
        raise ValueError(
            "evaluate lets each worker read all of a stream: hand over the dataset, without ShardedStream"
        )
    if data is trained and can_resume(data):
        raise ValueError(
            "evaluate would move the stream that is trained to another place: hand over a stream of its own"
        )

"""Which worker is slower than the others, by the time that each needs for its own part of a step (pure).

All workers of a synchronous step end it together, so the time of a step says nothing about one of them.  Scripts report
now and then how long their own part took: from the begin of the step until their gradients were there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

#: A worker straggles that needs more than this many times what the others need.
RATIO = 2.0
#: Seconds by which it has to be slower at least: what is less is noise.
LEAST_S = 0.02
#: Looks in a row, a second or more apart, at which it has to be slower before it is reported.
LOOKS = 10
#: Seconds until the same worker is reported again.
AGAIN_S = 600.0
#: Values of a worker of which the median counts.
_KEPT = 9


@dataclass(frozen=True)
class Straggler:
    """A worker that the others wait for."""

    rank: int
    #: Seconds that its own part of a step takes.
    own_s: float
    #: Seconds that the same takes the others, the median of them.
    others_s: float


class Stragglers:
    """What the workers of one group reported about their own part of steps."""

    def __init__(self, world_size: int) -> None:
        self._ranks = range(world_size)
        self._own: dict[int, deque[float]] = {rank: deque(maxlen=_KEPT) for rank in self._ranks}
        self._per_shard: dict[int, deque[float]] = {rank: deque(maxlen=_KEPT) for rank in self._ranks}
        #: Ranks that reported something since the last look.
        self._fresh: set[int] = set()
        self._slow_looks: dict[int, int] = dict.fromkeys(self._ranks, 0)
        self._reported_at: dict[int, float] = {}

    def measure(self, rank: int, own_s: float, shards: int, now: float) -> Iterator[Straggler]:
        """A rank needs `own_s` seconds for its own part of a step, with `shards` shards; yields the stragglers.

        Raises ValueError for numbers that no worker can report.
        """
        if rank not in self._own or shards < 1 or not 0.0 <= own_s < float("inf"):
            raise ValueError(f"rank {rank} cannot need {own_s} s for {shards} shards")
        self._own[rank].append(own_s)
        self._per_shard[rank].append(own_s / shards)
        self._fresh.add(rank)
        if len(self._fresh) == len(self._ranks) > 1:
            self._fresh.clear()
            yield from self._look(now)

    def _look(self, now: float) -> Iterator[Straggler]:
        own = [median(self._own[rank]) for rank in self._ranks]
        # A worker with more shards than others needs more time; one with fewer has less to divide what a step costs by.
        per_shard = [median(self._per_shard[rank]) for rank in self._ranks]
        others, others_per_shard = _Others(own), _Others(per_shard)
        for rank in self._ranks:
            own_s, others_s = own[rank], others.median_without(own[rank])
            is_slow = (
                own_s > RATIO * others_s
                and own_s - others_s > LEAST_S
                and per_shard[rank] > RATIO * others_per_shard.median_without(per_shard[rank])
            )
            self._slow_looks[rank] = self._slow_looks[rank] + 1 if is_slow else 0
            was_reported = rank in self._reported_at and now - self._reported_at[rank] < AGAIN_S
            if self._slow_looks[rank] >= LOOKS and not was_reported:
                self._reported_at[rank] = now
                yield Straggler(rank, own_s, others_s)


class _Others:
    """Medians of all values but one, for each of at least two, from one sort."""

    def __init__(self, values: Sequence[float]) -> None:
        self._ordered = sorted(values)

    def median_without(self, value: float) -> float:
        """Median of the others; `value` is one of the values."""
        place, count = bisect_left(self._ordered, value), len(self._ordered) - 1
        low, high = (self._ordered[at + (at >= place)] for at in ((count - 1) // 2, count // 2))
        return (low + high) / 2

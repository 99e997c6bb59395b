"""How long a contestant's steps take beside a peer's, from blocks that both trained alternately (pure).

A ratio is taken of each pair of blocks that ran right after one another, and the figure is the median of these ratios:
what the machine does besides for a while meets both blocks of a pair, and a pair that it met unequally is one of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

#: Seconds of the steps of one block.
Block = Sequence[float]


class Ratio(NamedTuple):
    """The median of the pairs' ratios, and the quartiles below and above it."""

    median: float
    low: float
    high: float

    @property
    def figure(self) -> float:
        """As it stands in a document."""
        return round(self.median, 3)

    @property
    def quartiles(self) -> list[float]:
        """As they stand beside it."""
        return [round(self.low, 3), round(self.high, 3)]


def ratio(ours: Iterable[Block], peers: Iterable[Block]) -> Ratio:
    """Of each of our blocks over the peer's of the same round; raises ValueError when one has more blocks."""
    pairs = [step_time(mine) / step_time(other) for mine, other in zip(ours, peers, strict=True)]
    low, middle, high = quantiles(pairs, n=4, method="inclusive")
    return Ratio(middle, low, high)


def steady(**backends: Ratio) -> dict[str, Any]:
    """The part of a document that says what Remora's steps take beside a peer's, by backend."""
    return {
        "steady_ratio": {name: one.figure for name, one in backends.items()},
        "steady_quartiles": {name: one.quartiles for name, one in backends.items()},
    }


def step_time(block: Block) -> float:
    """Median seconds of a block's steps but its first, which comes back to cold caches."""
    return median(block[1:])

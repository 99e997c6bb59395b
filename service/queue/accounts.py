"""Sums of what nodes were paid for, in seconds, GPU-seconds and money, whose parts are exactly the whole (pure).

A sum is kept in units in which nothing is rounded: nanoseconds of a whole node, of a GPU, and these times a price in
millionths of a USD for an hour.  Only what is shown is rounded, to milliseconds and millionths of a USD, all lines at
once, so that the lines shown sum to the total shown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.queue.cost_causes import Span, micro_usd
from service.queue.rows import NodeRow

#: Units of money in a millionth of a USD: nanoseconds in an hour.
_MONEY = 3_600_000_000_000
#: Nanoseconds in a millisecond.
_TIME = 1_000_000

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class Amount:
    """Some paid time, exactly."""

    node_ns: int = 0
    gpu_ns: int = 0
    #: Nanoseconds times millionths of a USD for an hour.
    money: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.node_ns + other.node_ns, self.gpu_ns + other.gpu_ns, self.money + other.money)

    @property
    def node_s(self) -> float:
        """Seconds of whole nodes."""
        return self.node_ns / 1e9

    @property
    def gpu_s(self) -> float:
        """Seconds of GPUs."""
        return self.gpu_ns / 1e9

    @property
    def usd(self) -> float:
        """USD."""
        return self.money / _MONEY / 1e6


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The same as people read it."""

    node_ms: int
    gpu_ms: int
    micro_usd: int


def amount_of(span: Span, node: NodeRow) -> Amount:
    """What a span of this node is."""
    gpus = round(node.resources.get("GPU", 0.0))
    return Amount(span.node_ns, span.node_ns * gpus, span.node_ns * micro_usd(node.price_per_hour))


def sums(
    spans: Iterable[Span], nodes: Mapping[str, NodeRow], key: Callable[[Span, NodeRow], KeyT]
) -> dict[KeyT, Amount]:
    """The sum of each key; `nodes` are those of the spans, by id."""
    found: dict[KeyT, list[int]] = {}
    for span in spans:
        node = nodes[span.node_id]
        one = amount_of(span, node)
        total = found.setdefault(key(span, node), [0, 0, 0])
        total[0] += one.node_ns
        total[1] += one.gpu_ns
        total[2] += one.money
    return {name: Amount(*total) for name, total in found.items()}


def total_of(amounts: Iterable[Amount]) -> Amount:
    """Their sum."""
    found = Amount()
    for one in amounts:
        found += one
    return found


def shown(amounts: Sequence[Amount]) -> list[Shown]:
    """The amounts, rounded so that they sum to their rounded sum."""
    times = rounded([one.node_ns for one in amounts], _TIME)
    gpus = rounded([one.gpu_ns for one in amounts], _TIME)
    money = rounded([one.money for one in amounts], _MONEY)
    return [
        Shown(node_ms=node_ms, gpu_ms=gpu_ms, micro_usd=usd)
        for node_ms, gpu_ms, usd in zip(times, gpus, money, strict=True)
    ]


def rounded(values: Sequence[int], unit: int) -> list[int]:
    """Values, none of them negative, in whole units that sum to their sum in whole units, rounded half up.

    Each is rounded down, and those with the largest remainders get one more (Hamilton's method).
    """
    found = [value // unit for value in values]
    missing = (2 * sum(values) + unit) // (2 * unit) - sum(found)
    by_remainder = sorted(range(len(values)), key=lambda at: (-(values[at] % unit), at))
    for at in by_remainder[:missing]:
        found[at] += 1
    return found

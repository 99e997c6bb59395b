"""How many workers a job may have (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

#: Sizes that are tried one by one at most: that many workers no job may have.
_MOST_TRIED = 4096


class NoSizePossible(ValueError):
    """No number of workers in a range may train; the message is one sentence that names the nearest that may."""


@dataclass(frozen=True)
class WorkerSizes:
    """The sizes that a worker group of a job may have; queue, planner, replay and driver ask no one else.

    `min` and `max` are sizes that are possible: what is given is the range, and the ends of it that no group may have
    are left out.  Raises NoSizePossible when nothing is left.
    """

    min: int
    max: int
    #: Workers that hold the model once, together: stages of a pipeline times parts of a tensor, for example.
    multiple_of: int = 1
    #: What has to be divided equally among the copies of the model, e.g. samples of a global batch; None: nothing.
    divided: int | None = None

    def __post_init__(self) -> None:
        """Leave out what is not possible at both ends."""
        if self.multiple_of == 1 and self.divided is None and self.min <= self.max:
            return
        least, most = _ends(self.min, self.max, self.multiple_of, self.divided)
        object.__setattr__(self, "min", least)
        object.__setattr__(self, "max", most)

    def fit(self, count: int) -> int:
        """The largest possible size of a group when `count` workers could be had; 0 when there is none."""
        if count < self.min:
            return 0
        if count >= self.max:
            return self.max
        if self.divided is None:
            return count - count % self.multiple_of
        sizes = _dividing(self.min, self.max, self.multiple_of, self.divided)
        return sizes[bisect_right(sizes, count) - 1]

    def allows(self, size: int) -> bool:
        """True when a group of exactly this size may train."""
        return size > 0 and self.fit(size) == size

    def in_words(self) -> str:
        """The sizes for people, e.g. `2, 4 or 5`; a long list is cut."""
        if self.divided is None:
            step = f" in steps of {self.multiple_of}" if self.multiple_of > 1 and self.min < self.max else ""
            return f"{self.min}{step}" if self.min == self.max else f"{self.min} to {self.max}{step}"
        sizes = [str(size) for size in _dividing(self.min, self.max, self.multiple_of, self.divided)]
        if len(sizes) > 8:
            sizes = [*sizes[:6], "...", sizes[-1]]
        return " or ".join(filter(None, (", ".join(sizes[:-1]), sizes[-1])))


def sizes_of(spec: Mapping[str, Any], least: int, most: int) -> WorkerSizes:
    """The sizes of a job whose specification, as accepted and as plain data, says `least` to `most` workers.

    Raises NoSizePossible.
    """
    workers, elastic = spec.get("workers"), spec.get("elastic")
    multiple_of = workers.get("multiple_of", 1) if isinstance(workers, Mapping) else 1
    # DeepSpeed divides a batch into equal parts only.
    is_divided = spec.get("backend") == "deepspeed" and isinstance(elastic, Mapping)
    return _known(least, most, multiple_of, elastic.get("global_batch") if is_divided and elastic else None)


def spec_of(sizes: WorkerSizes) -> dict[str, Any]:
    """Parts of a specification, as plain data, of which `sizes_of` makes these sizes."""
    parts: dict[str, Any] = {}
    if sizes.multiple_of > 1:
        parts["workers"] = {"multiple_of": sizes.multiple_of}
    if sizes.divided is not None:
        parts |= {"backend": "deepspeed", "elastic": {"global_batch": sizes.divided}}
    return parts


@lru_cache(4096)
def _known(least: int, most: int, multiple_of: int, divided: int | None) -> WorkerSizes:
    return WorkerSizes(least, most, multiple_of, divided)


@lru_cache(4096)
def _dividing(least: int, most: int, multiple_of: int, divided: int) -> tuple[int, ...]:
    """All possible sizes in order, which are few: that number has few divisors."""
    copies = range(-(-least // multiple_of), most // multiple_of + 1)
    return tuple(number * multiple_of for number in copies if divided % number == 0)


@lru_cache(4096)
def _ends(least: int, most: int, multiple_of: int, divided: int | None) -> tuple[int, int]:
    """The smallest and the largest possible size of a range."""
    if divided is None:
        low, high = -(-least // multiple_of) * multiple_of, most // multiple_of * multiple_of
        if least <= most and low <= high:
            return low, high
    elif sizes := _dividing(least, most, multiple_of, divided):
        return sizes[0], sizes[-1]
    raise NoSizePossible(_why_none(least, most, multiple_of, divided))


def _why_none(least: int, most: int, multiple_of: int, divided: int | None) -> str:
    if least > most:
        return f"there is no number of workers from {least} to {most}"
    shape = f"in whole copies of the model, of {multiple_of} workers each" if multiple_of > 1 else ""
    is_divided = f"divide {divided} into equal parts" if divided is not None else ""
    which = f"{least} workers cannot" if least == most else f"no number of workers from {least} to {most} can"
    near = [str(size) for size in _near(least, most, multiple_of, divided)]
    nearest = f"the nearest that can {'are' if len(near) > 1 else 'is'} {' and '.join(near)}"
    return f"{which} {' '.join(filter(None, (is_divided or 'train', shape)))}; {nearest}"


def _near(least: int, most: int, multiple_of: int, divided: int | None) -> Iterator[int]:
    """The nearest possible sizes below and above a range that has none."""

    def possible(copies: int) -> bool:
        return divided is None or divided % copies == 0

    below = range((least - 1) // multiple_of, 0, -1)
    above = range(most // multiple_of + 1, min(divided or _MOST_TRIED, _MOST_TRIED // multiple_of) + 1)
    for copies in (below, above):
        if (found := next((one for one in copies if possible(one)), None)) is not None:
            yield found * multiple_of

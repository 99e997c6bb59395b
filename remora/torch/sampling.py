"""The order that a script's own sampler or batch sampler gives an epoch, the same on all workers.

Each worker draws the numbers of an epoch once, with random numbers that follow from the job's seed and the epoch: from
torch, `random` and `numpy.random`, and from a `torch.Generator` in the attribute `generator` of the sampler or of one
that it holds.  `set_epoch(epoch)` is called where there is one.  So the place in an epoch is all that a checkpoint
needs.
"""

from __future__ import annotations

import hashlib
import operator
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from remora.torch.order import Position, shard_of
from remora.torch.randomness import capture, derive, restore, seed_everything

#: Samples that an epoch may have, for each one of the dataset, and at least; a sampler that gives more does not end.
_MOST_PER_SAMPLE, _MOST_AT_LEAST = 16, 1 << 20
#: Samplers within samplers that are seeded.
_DEPTH = 4


@dataclass(frozen=True)
class _Epoch:
    """The samples of one epoch."""

    numbers: array[int]
    #: Where each global batch begins, and the end of the last one.
    bounds: array[int]
    #: Differs where two workers have drawn other numbers.
    digest: int

    def batch(self, place: int) -> list[int]:
        return self.numbers[self.bounds[place] : self.bounds[place + 1]].tolist()


class Sampling:
    """A script's sampler or batch sampler, and what it has drawn for the newest two epochs."""

    def __init__(self, samples: int, sampler: Any, batch_sampler: Any) -> None:
        """For a dataset of `samples` samples; one of the two is given.  Raises ValueError for what cannot be exact."""
        if sampler is not None and batch_sampler is not None:
            raise ValueError(
                "hand over sampler=... or batch_sampler=..., not both: each gives the order of an epoch"
            )
        self._samples = samples
        self._most = max(samples * _MOST_PER_SAMPLE, _MOST_AT_LEAST)
        self._own = batch_sampler if sampler is None else sampler
        self._makes_batches = sampler is None
        self._drawn: dict[int, _Epoch] = {}
        self._repeats = False
        for one in self._seeded():
            if isinstance(one, DistributedSampler):
                raise ValueError(  # noqa: TRY004 - as for all other arguments
                    "a DistributedSampler divides the samples by rank, and Loop divides them itself: leave it out, or"
                    " hand over a sampler of the whole dataset"
                )

    @property
    def name(self) -> str:
        """Its kind, which stays the same within a job."""
        return type(self._own).__qualname__

    def epoch(self, epoch: int, seed: int, global_batch: int, *, drop_last: bool) -> _Epoch:
        """The samples of an epoch.  Raises ValueError where it has no end, or is not the same twice."""
        if (known := self._drawn.get(epoch)) is not None:
            return known
        drawn = self._draw(epoch, seed, global_batch, drop_last=drop_last)
        if not self._repeats:
            again = self._draw(epoch, seed, global_batch, drop_last=drop_last)
            if again.digest != drawn.digest:
                raise ValueError(
                    f"{self.name} gave two different orders for epoch {epoch} from the same random numbers, so workers"
                    " would not have the same: draw from torch, random, numpy.random or a torch.Generator in its"
                    " attribute generator, which Loop seeds, and let set_epoch(epoch) change the order"
                )
            self._repeats = True
        self._drawn = {**dict(list(self._drawn.items())[-1:]), epoch: drawn}
        return drawn

    def _seeded(self) -> Iterator[Any]:
        """The sampler, and those that it holds."""
        one = self._own
        for _ in range(_DEPTH):
            if one is None:
                return
            yield one
            one = getattr(one, "batch_sampler", None) or getattr(one, "sampler", None)

    def _draw(self, epoch: int, seed: int, global_batch: int, *, drop_last: bool) -> _Epoch:
        outside = capture()
        try:
            seed = derive(seed, "sampler", epoch)
            seed_everything(seed, devices=False)
            for one in self._seeded():
                if hasattr(one, "set_epoch"):
                    one.set_epoch(epoch)
                if isinstance(generator := getattr(one, "generator", None), torch.Generator):
                    generator.manual_seed(seed)
            drawn = self._batches(global_batch) if self._makes_batches else self._cut(global_batch, drop_last)
        finally:
            restore(outside)
        numbers, bounds = drawn
        if len(bounds) < 2:
            raise ValueError(
                f"{self.name} makes no step of epoch {epoch}: let it give samples, or a whole global batch with"
                " drop_last"
            )
        digest = hashlib.blake2b(numbers.tobytes(), digest_size=8)
        digest.update(bounds.tobytes())
        return _Epoch(numbers, bounds, int.from_bytes(digest.digest(), "big") >> 1)

    def _cut(self, global_batch: int, drop_last: bool) -> tuple[array[int], array[int]]:
        """The numbers of a sampler, cut into global batches."""
        numbers = self._numbers(list(islice(self._own, self._most + 1)))
        self._check_end(len(numbers))
        bounds = array("q", range(0, len(numbers) + 1, global_batch))
        if len(numbers) % global_batch and not drop_last:
            bounds.append(len(numbers))
        return numbers, bounds

    def _batches(self, global_batch: int) -> tuple[array[int], array[int]]:
        """The numbers of a batch sampler, whose batches are the global ones."""
        numbers, bounds = array("q"), array("q", [0])
        for batch in self._own:
            found = self._numbers(list(islice(batch, global_batch + 1)))
            if not 1 <= len(found) <= global_batch:
                raise ValueError(
                    f"{self.name} gave a batch of none or more than {global_batch} samples: make global_batch the size"
                    " of its largest batch"
                )
            numbers.extend(found)
            bounds.append(len(numbers))
            self._check_end(len(numbers))
        return numbers, bounds

    def _check_end(self, count: int) -> None:
        if count > self._most:
            raise ValueError(
                f"{self.name} gives more than {self._most} samples in an epoch, and the order of an epoch is drawn as a"
                " whole: let it end, and training go on for several epochs"
            )

    def _numbers(self, given: list[Any]) -> array[int]:
        """What a sampler gave, as whole numbers.  Raises ValueError; millions are looked at one by one only then."""
        try:
            numbers = array("q", given)
        except (TypeError, ValueError, OverflowError):
            numbers = None
        if numbers is not None and (not numbers or (min(numbers) >= 0 and max(numbers) < self._samples)):
            return numbers
        wrong = next(one for one in given if not self._is_number(one))
        raise ValueError(
            f"{self.name} gave {wrong!r:.100}, which is no number of a sample from 0 to {self._samples - 1}"
        )

    def _is_number(self, given: Any) -> bool:
        try:
            return 0 <= operator.index(given) < self._samples
        except (TypeError, ValueError):
            return False


@dataclass(frozen=True)
class SampledOrder:
    """The order of a dataset of known length that a sampler gives; see `order.Order`."""

    sampling: Sampling
    global_batch: int
    shards: int
    seed: int
    drop_last: bool

    def steps_in(self, epoch: int) -> int:
        """Global batches of an epoch.  Raises ValueError for a sampler that cannot be exact."""
        return len(self._epoch(epoch).bounds) - 1

    def batch(self, position: Position) -> list[int]:
        """Sample numbers of the global batch at `position`, in order."""
        return self._epoch(position.epoch).batch(position.place)

    def shard(self, position: Position, shard: int) -> Sequence[int]:
        """Sample numbers that `shard` carries of the global batch at `position`."""
        return shard_of(self.batch(position), shard, self.shards)

    def digest(self, epoch: int) -> int:
        """A number that differs where two workers have drawn other samples for an epoch."""
        return self._epoch(epoch).digest

    def _epoch(self, epoch: int) -> _Epoch:
        return self.sampling.epoch(epoch, self.seed, self.global_batch, drop_last=self.drop_last)


def sampling_of(data: Any, sampler: Any, batch_sampler: Any, *, is_stream: bool) -> Sampling | None:
    """The script's own sampling of its dataset; None where it has none.  Raises ValueError."""
    if sampler is None and batch_sampler is None:
        return None
    if is_stream:
        raise ValueError(
            "a sampler needs a dataset with a length: a stream has its own order, so let it give the samples in that"
        )
    return Sampling(len(data), sampler, batch_sampler)


def batch_size_of(batch_sampler: Any, global_batch: int | None) -> int | None:
    """`global_batch`, which a batch sampler may say itself.  Raises ValueError where the two differ."""
    own = getattr(batch_sampler, "batch_size", None)
    if not isinstance(own, int):
        return global_batch
    if global_batch not in (None, own):
        raise ValueError(
            f"batch_sampler has batches of {own} samples and global_batch is {global_batch}: its batches are those of"
            " all workers together, so leave global_batch out"
        )
    return own


def check_prefetch(num_workers: int, prefetch_factor: int | None) -> None:
    """Raise ValueError for a number of batches to read ahead that makes no sense."""
    if prefetch_factor is None:
        return
    if prefetch_factor < 1:
        raise ValueError(f"prefetch_factor is a number of batches, at least 1, not {prefetch_factor}")
    if num_workers == 0:
        raise ValueError("prefetch_factor needs num_workers: without processes nothing is read ahead")

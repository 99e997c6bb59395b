"""From a dataset to the micro-batches of this worker's shards, step by step, from any position on.

A dataset with a length is read by sample number (`order.py`).  One without is a stream, and the rule for it is: every
worker reads the same stream from the start of the epoch; sample i belongs to global batch i // global_batch, and there
to shard (i % global_batch) % shards; what belongs to others or was trained before is read and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from remora.torch.agreement import copy_of, differs
from remora.torch.marks import Mark, mark_of
from remora.torch.order import Order, Position, cut
from remora.torch.randomness import RandomStream, capture, derive, restore, seed_everything


@dataclass(frozen=True)
class Parcel:
    """One micro-batch of one shard, or the news that a shard has no samples in this step."""

    position: Position
    shard: int
    #: Number of the micro-batch within its shard.
    micro: int
    #: Numbers of its samples.
    samples: tuple[int, ...]
    #: Samples of the whole global batch.
    total: int
    ends_shard: bool
    #: Nothing else of this step comes on this worker.
    ends_step: bool
    #: It is read twice, to see whether it is the same, and says what one sample is.
    is_probed: bool = False
    #: What one sample is, for workers to compare, where it is probed.
    mark: Mark | None = None


@dataclass(frozen=True)
class Plan:
    """What a feed brings to one worker."""

    global_batch: int
    shards: int
    micro_batch: int | None
    seed: int
    shuffle: bool
    drop_last: bool
    #: Last epoch, from 0; None where the number of steps ends training.
    epochs: int | None
    #: Steps from the position on; None where the number of epochs ends training.
    steps: int | None
    own: range
    start: Position
    #: Steps between two looks whether a sample is the same when it is read again; 0: none.
    probe_every: int = 0
    #: Steps that are left out, by epoch and place.
    left_out: frozenset[tuple[int, int]] = frozenset()


Delivery = tuple[Parcel, Any]
Collate = Callable[[list[Any]], Any]


def deliveries(data: Any, plan: Plan, collate: Collate | None, num_workers: int) -> Iterator[Delivery]:
    """This worker's parcels with their batches (None for an empty one), in order, until training ends.

    Raises ValueError for a dataset that makes no step.
    """
    collate = collate or default_collate
    if is_stream(data):
        stream = _Stream(data, plan, collate)
        return iter(stream if num_workers == 0 else _loader(stream, None, num_workers))
    fetch = _Fetch(data, plan.seed, collate)
    order = Order(len(data), plan.global_batch, plan.shards, plan.seed, plan.shuffle, plan.drop_last)
    parcels = _Parcels(order, plan, data)
    return map(fetch.__getitem__, parcels) if num_workers == 0 else iter(_loader(fetch, parcels, num_workers))


def is_stream(data: Any) -> bool:
    """True for a dataset that is read from its start, because it has no length or says so."""
    return isinstance(data, IterableDataset) or not (
        hasattr(data, "__len__") and hasattr(data, "__getitem__")
    )


def _loader(dataset: Any, parcels: Iterable[Parcel] | None, num_workers: int) -> Any:
    # A generator of its own: the loader must not draw from the random numbers of the script.
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=parcels,
        num_workers=num_workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),
        pin_memory=torch.cuda.is_available(),
    )


def _as_it_is(delivery: Delivery) -> Delivery:
    return delivery


def _parcels_of(
    position: Position, shares: Sequence[tuple[int, Sequence[int]]], total: int, plan: Plan
) -> list[Parcel]:
    """Parcels of one step from the samples of each own shard."""
    parcels: list[Parcel] = []
    for shard, samples in shares:
        micros = cut(samples, plan.micro_batch) or [()]
        for number, micro in enumerate(micros):
            ends_shard = number == len(micros) - 1
            ends_step = ends_shard and shard == plan.own.stop - 1
            parcels.append(Parcel(position, shard, number, tuple(micro), total, ends_shard, ends_step))
    return parcels


class _Parcels:
    """Parcels of a dataset of known length, in order."""

    def __init__(self, order: Order, plan: Plan, data: Any) -> None:
        self._order = order
        self._plan = plan
        self._data = data

    def __iter__(self) -> Iterator[Parcel]:
        order, plan = self._order, self._plan
        size = len(self._data)
        first = plan.start.epoch * order.steps_per_epoch + plan.start.place
        last = None if plan.epochs is None else plan.epochs * order.steps_per_epoch
        done = 0
        for step in count(first):
            if (last is not None and step >= last) or done == plan.steps:
                return
            if len(self._data) != size:
                raise ValueError(
                    f"the dataset had {size} samples and has {len(self._data)} now, and the place in it would be"
                    " another one: keep its length, and let set_epoch(epoch) decide what its samples are, or use"
                    " an iterable dataset"
                )
            position = order.position_after(step)
            if (position.epoch, position.place) in plan.left_out:
                continue
            done += 1
            shares = [(shard, order.shard(position, shard)) for shard in plan.own]
            parcels = _parcels_of(position, shares, len(order.batch(position)), plan)
            if plan.probe_every and step % plan.probe_every == 0:
                parcels[0] = replace(parcels[0], is_probed=True)
            yield from parcels


class _Fetch:
    """A dataset of known length as the parcels see it; the random numbers of augmentations follow the shard."""

    def __init__(self, data: Any, seed: int, collate: Collate) -> None:
        self._data = data
        self._seed = seed
        self._collate = collate
        self._epoch: int | None = None

    def __getitem__(self, parcel: Parcel) -> Delivery:
        epoch = parcel.position.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            if hasattr(self._data, "set_epoch"):
                self._data.set_epoch(epoch)
        if not parcel.is_probed:
            return parcel, self._collate(self._read(parcel)) if parcel.samples else None
        parcel = replace(parcel, mark=self._mark(parcel))
        if not parcel.samples:
            return parcel, None
        items, again = self._read(parcel), self._read(parcel)
        if differs(items[0], again[0]):
            raise ValueError(
                f"the dataset gave two different samples for number {parcel.samples[0]} from the same random numbers,"
                " so the result would depend on which worker reads it: draw from torch, random or numpy.random, which"
                " Loop seeds for every shard, and not from a generator of your own"
            )
        return parcel, _collated_twice(self._collate, items, again)

    def _read(self, parcel: Parcel) -> list[Any]:
        _seed_for(self._seed, parcel)
        return self._items(parcel.samples)

    def _items(self, samples: Sequence[int]) -> list[Any]:
        if hasattr(self._data, "__getitems__"):
            return list(self._data.__getitems__(list(samples)))
        return [self._data[sample] for sample in samples]

    def _mark(self, parcel: Parcel) -> Mark:
        """Of one sample that is the same for all workers in this step."""
        where = parcel.position.epoch, parcel.position.place
        sample = derive(self._seed, "mark", *where) % len(self._data)
        seed_everything(derive(self._seed, "marked", *where), devices=False)
        return mark_of(sample, parcel.position.epoch, self._items([sample])[0])


def _collated_twice(collate: Collate, items: list[Any], again: list[Any]) -> Any:
    """The batch of some items, which were read twice; raises ValueError where their batch is not the same twice."""
    numbers = capture()
    batch = collate(items)
    restore(numbers)
    if differs(batch, collate(again)):
        raise ValueError(
            "collate_fn made two different batches of the same samples from the same random numbers, so the result"
            " would depend on which worker calls it: draw from torch, random or numpy.random, which Loop seeds for"
            " every shard, and keep nothing from one call to the next"
        )
    return batch


class _Stream(IterableDataset):  # type: ignore[misc]  # torch is not checked
    """A dataset without a length; with several loader processes each makes every n-th parcel."""

    def __init__(self, data: Any, plan: Plan, collate: Collate) -> None:
        self._data = data
        self._plan = plan
        self._collate = collate

    def __iter__(self) -> Iterator[Delivery]:
        worker = get_worker_info()
        turn, turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, (parcel, items) in enumerate(self._parcels()):
            if number % turns != turn:
                continue
            if not items:
                yield parcel, None
                continue
            again = copy_of(items) if parcel.is_probed else None
            _seed_for(self._plan.seed, parcel)
            yield parcel, _collated_twice(self._collate, items, again) if again else self._collate(items)

    def _parcels(self) -> Iterator[tuple[Parcel, list[Any]]]:
        plan = self._plan
        left = plan.steps
        done = 0
        for epoch in count(plan.start.epoch):
            if plan.epochs is not None and epoch >= plan.epochs:
                return
            place = -1
            for place, (kept, total, first) in enumerate(self._batches(epoch)):
                if (epoch, place) < (plan.start.epoch, plan.start.place):
                    continue
                if left == 0:
                    return
                if (epoch, place) in plan.left_out:
                    continue
                left = None if left is None else left - 1
                shares = [(shard, list(kept.get(shard, {}))) for shard in plan.own]
                parcels = _parcels_of(Position(epoch, place), shares, total, plan)
                if plan.probe_every and done % plan.probe_every == 0:
                    mark = mark_of(place * plan.global_batch, epoch, first)
                    parcels[0] = replace(parcels[0], is_probed=True, mark=mark)
                done += 1
                for parcel in parcels:
                    yield parcel, [kept[parcel.shard][sample] for sample in parcel.samples]
            if place < 0:
                raise ValueError(
                    f"epoch {epoch} of the dataset makes no step of {plan.global_batch} samples: "
                    "use more data, a smaller global_batch, or drop_last=False"
                )

    def _batches(self, epoch: int) -> Iterator[tuple[dict[int, dict[int, Any]], int, Any]]:
        """Own samples by shard and number, the size, and the first sample of each global batch of an epoch."""
        plan = self._plan
        random = RandomStream(derive(plan.seed, "stream", epoch))
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        with random.running():
            stream = iter(self._data)
        own = frozenset(plan.own)
        kept: dict[int, dict[int, Any]] = {}
        total = 0
        first: Any = None
        for number in count():
            with random.running():
                item = next(stream, _END)
            if item is _END:
                break
            shard = total % plan.shards
            if total == 0:
                first = item
            if shard in own:
                kept.setdefault(shard, {})[number] = item
            total += 1
            if total == plan.global_batch:
                yield kept, total, first
                kept, total = {}, 0
        if total and not plan.drop_last:
            yield kept, total, first


_END = object()


class Feed:
    """Deliveries one after the other, with a look at the next one."""

    def __init__(self, source: Iterator[Delivery]) -> None:
        self._source = source
        self._next: Delivery | None = None

    def peek(self) -> Parcel | None:
        """What comes next, or None at the end."""
        if self._next is None:
            self._next = next(self._source, None)
        return None if self._next is None else self._next[0]

    def step(self) -> Iterator[Delivery]:
        """The deliveries of the step that comes next."""
        while self.peek() is not None:
            delivery, self._next = self._next, None
            assert delivery is not None
            yield delivery
            if delivery[0].ends_step:
                return


def _seed_for(seed: int, parcel: Parcel) -> None:
    where = (parcel.position.epoch, parcel.position.place, parcel.shard, parcel.micro)
    seed_everything(derive(seed, "data", *where), devices=False)

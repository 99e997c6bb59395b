"""From a dataset to the micro-batches of this worker's shards, step by step, from any position on.

A dataset with a length is read by sample number (`order.py`), one without as `streams.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from remora.torch.agreement import copy_of, differs
from remora.torch.loading import Collate, Loading, every_nth, loader_of
from remora.torch.order import Order, Position, split_shard
from remora.torch.randomness import capture, derive, restore, seed_everything
from remora.torch.sample_fingerprints import SampleFingerprint, sample_fingerprint
from remora.torch.sampling import SampledOrder
from remora.torch.sharded_stream import ShardedStream
from remora.torch.streams import OwnStreams, Source, StreamBatch, WholeStream


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of one shard, or an empty one for a shard that has no samples in this step."""

    position: Position
    shard: int
    #: Number of the micro-batch within its shard.
    index: int
    #: Numbers of its samples.
    samples: tuple[int, ...]
    #: Samples of the whole global batch.
    total: int
    ends_shard: bool
    #: Nothing else of this step comes on this worker.
    ends_step: bool
    #: It is read twice, to see whether it is the same, and carries the fingerprint of one sample.
    is_probed: bool = False
    #: Of one sample, for workers to compare, where the micro-batch is probed.
    fingerprint: SampleFingerprint | None = None
    #: Of the order of its epoch, where that is a sampler's and the micro-batch is probed.
    order_digest: int = 0
    #: Where the dataset is behind this step, on its last micro-batch; None where that follows from the position.
    data_state: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class FeedPlan:
    """What a feed loads for one worker."""

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
    #: Steps between two checks that a sample is the same when it is read again; 0: none.
    probe_every: int = 0
    #: Steps that are left out, by epoch and place.
    left_out: frozenset[tuple[int, int]] = frozenset()
    #: What is known of where the dataset is, of `start` or an earlier position.
    data_state: Any = None


LoadedBatch = tuple[MicroBatch, Any]


def load_batches(data: Any, plan: FeedPlan, loading: Loading) -> Iterator[LoadedBatch]:
    """This worker's micro-batches with their batches (None for an empty one), in order, until training ends.

    `data` may be a dataset or its `Source`, which is the same one whenever the dataset is read in this process.
    Raises ValueError for a dataset that makes no step.
    """
    collate, num_workers = loading.collate or default_collate, loading.num_workers
    if isinstance(data, Source) or is_stream(data):
        source = data if isinstance(data, Source) else Source(data)
        stream = _Stream(source, plan, collate)
        return iter(stream if num_workers == 0 else loader_of(stream, None, loading))
    fetch = _Fetch(data, plan.seed, collate)
    sizes = (plan.global_batch, plan.shards, plan.seed)
    order: Order | SampledOrder
    if loading.sampling is None:
        order = Order(len(data), *sizes, plan.shuffle, plan.drop_last)
    else:
        order = SampledOrder(loading.sampling, *sizes, plan.drop_last)
    micro_batches = _MicroBatches(order, plan, data)
    return (
        map(fetch.__getitem__, micro_batches)
        if num_workers == 0
        else iter(loader_of(fetch, micro_batches, loading))
    )


def is_stream(data: Any) -> bool:
    """True for a dataset that is read from its start, because it has no length or says so."""
    return isinstance(data, IterableDataset) or not (
        hasattr(data, "__len__") and hasattr(data, "__getitem__")
    )


def _micro_batches_of(
    position: Position, shares: Sequence[tuple[int, Sequence[int]]], total: int, plan: FeedPlan
) -> list[MicroBatch]:
    """Micro-batches of one step from the samples of each own shard."""
    micro_batches: list[MicroBatch] = []
    for shard, samples in shares:
        micros = split_shard(samples, plan.micro_batch) or [()]
        for number, micro in enumerate(micros):
            ends_shard = number == len(micros) - 1
            ends_step = ends_shard and shard == plan.own.stop - 1
            micro_batches.append(
                MicroBatch(position, shard, number, tuple(micro), total, ends_shard, ends_step)
            )
    return micro_batches


class _MicroBatches:
    """Micro-batches of a dataset of known length, in order."""

    def __init__(self, order: Order | SampledOrder, plan: FeedPlan, data: Any) -> None:
        self._order = order
        self._plan = plan
        self._data = data

    def __iter__(self) -> Iterator[MicroBatch]:
        order, plan = self._order, self._plan
        size = len(self._data)
        epoch, place = plan.start.epoch, plan.start.place
        done = 0
        while (plan.epochs is None or epoch < plan.epochs) and done != plan.steps:
            if place >= (steps := order.steps_in(epoch)):
                epoch, place = epoch + 1, place - steps
                continue
            if len(self._data) != size:
                raise ValueError(
                    f"the dataset had {size} samples and has {len(self._data)} now, and the place in it would be"
                    " another one: keep its length, and let set_epoch(epoch) decide what its samples are, or use"
                    " an iterable dataset"
                )
            position = Position(epoch, place)
            place += 1
            if (position.epoch, position.place) in plan.left_out:
                continue
            # Steps of a sampler are counted from where all workers begin together: epochs may differ in length.
            number = order.number(position) if isinstance(order, Order) else done
            done += 1
            shares = [(shard, order.shard(position, shard)) for shard in plan.own]
            micro_batches = _micro_batches_of(position, shares, len(order.batch(position)), plan)
            if plan.probe_every and number % plan.probe_every == 0:
                digest = order.digest(epoch)
                micro_batches[0] = replace(micro_batches[0], is_probed=True, order_digest=digest)
            yield from micro_batches


class _Fetch:
    """Loads micro-batches of a dataset of known length; the random numbers of augmentations follow the shard."""

    def __init__(self, data: Any, seed: int, collate: Collate) -> None:
        self._data = data
        self._seed = seed
        self._collate = collate
        self._epoch: int | None = None

    def __getitem__(self, micro_batch: MicroBatch) -> LoadedBatch:
        epoch = micro_batch.position.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            if hasattr(self._data, "set_epoch"):
                self._data.set_epoch(epoch)
        if not micro_batch.is_probed:
            return micro_batch, self._collate(self._read(micro_batch)) if micro_batch.samples else None
        micro_batch = replace(micro_batch, fingerprint=self._fingerprint(micro_batch))
        if not micro_batch.samples:
            return micro_batch, None
        items, again = self._read(micro_batch), self._read(micro_batch)
        if differs(items[0], again[0]):
            raise ValueError(
                f"the dataset gave two different samples for number {micro_batch.samples[0]} from the same random"
                " numbers, so the result would depend on which worker reads it: draw from torch, random or"
                " numpy.random, which Loop seeds for every shard, and not from a generator of your own"
            )
        return micro_batch, _collated_twice(self._collate, items, again)

    def _read(self, micro_batch: MicroBatch) -> list[Any]:
        _seed_for(self._seed, micro_batch)
        return self._items(micro_batch.samples)

    def _items(self, samples: Sequence[int]) -> list[Any]:
        if hasattr(self._data, "__getitems__"):
            return list(self._data.__getitems__(list(samples)))
        return [self._data[sample] for sample in samples]

    def _fingerprint(self, micro_batch: MicroBatch) -> SampleFingerprint:
        """The fingerprint of one sample that is the same for all workers in this step."""
        where = micro_batch.position.epoch, micro_batch.position.place
        sample = derive(self._seed, "mark", *where) % len(self._data)
        seed_everything(derive(self._seed, "marked", *where), devices=False)
        found = sample_fingerprint(sample, micro_batch.position.epoch, self._items([sample])[0])
        return replace(found, words=found.words ^ micro_batch.order_digest)


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
    """A dataset without a length; with several loader processes each makes every n-th micro-batch."""

    def __init__(self, source: Source, plan: FeedPlan, collate: Collate) -> None:
        self._source = source
        self._plan = plan
        self._collate = collate

    def __iter__(self) -> Iterator[LoadedBatch]:
        loader, loaders = every_nth()
        for number, (micro_batch, items) in enumerate(self._micro_batches()):
            if number % loaders != loader:
                continue
            if not items:
                yield micro_batch, None
                continue
            again = copy_of(items) if micro_batch.is_probed else None
            _seed_for(self._plan.seed, micro_batch)
            yield micro_batch, _collated_twice(self._collate, items, again) if again else self._collate(items)

    def _micro_batches(self) -> Iterator[tuple[MicroBatch, list[Any]]]:
        plan, reader = self._plan, self._reader()
        left = plan.steps
        done = 0
        for epoch in count(plan.start.epoch):
            if left == 0 or (plan.epochs is not None and epoch >= plan.epochs):
                return
            start = plan.start.place if epoch == plan.start.epoch else 0
            place = -1
            for batch in reader.batches(epoch, start, plan.data_state):
                place = batch.place
                if place < start or (epoch, place) in plan.left_out:
                    continue
                left = None if left is None else left - 1
                is_probed = bool(plan.probe_every) and done % plan.probe_every == 0
                done += 1
                for micro_batch in self._cut(epoch, batch, is_probed=is_probed):
                    kept = batch.kept.get(micro_batch.shard, {})
                    yield micro_batch, [kept[sample] for sample in micro_batch.samples]
                if left == 0:
                    return
            if place < 0:
                raise ValueError(
                    f"epoch {epoch} of the dataset makes no step of {plan.global_batch} samples: "
                    "use more data, a smaller global_batch, or drop_last=False"
                )

    def _reader(self) -> WholeStream | OwnStreams:
        plan = self._plan
        sizes = (plan.global_batch, plan.shards, plan.seed, plan.own)
        if isinstance(self._source.data, ShardedStream):
            return OwnStreams(self._source.data, *sizes)
        return WholeStream(self._source, *sizes, drop_last=plan.drop_last)

    def _cut(self, epoch: int, batch: StreamBatch, *, is_probed: bool) -> list[MicroBatch]:
        """The micro-batches of what was read of a global batch."""
        plan, place = self._plan, batch.place
        shares = [(shard, list(batch.kept.get(shard, {}))) for shard in plan.own]
        micro_batches = _micro_batches_of(Position(epoch, place), shares, batch.total, plan)
        if is_probed:
            micro_batches[0] = replace(micro_batches[0], is_probed=True)
            if batch.first is not None:
                fingerprint = sample_fingerprint(place * plan.global_batch, epoch, batch.first)
                micro_batches[0] = replace(micro_batches[0], fingerprint=fingerprint)
        micro_batches[-1] = replace(micro_batches[-1], data_state=batch.data_state)
        return micro_batches


class Feed:
    """Loaded micro-batches one after the other, with a look at the next one."""

    def __init__(self, source: Iterator[LoadedBatch]) -> None:
        self._source = source
        self._next: LoadedBatch | None = None
        #: Where the dataset is behind the step that was read last.
        self.data_state: Any = None

    def peek(self) -> MicroBatch | None:
        """What comes next, or None at the end."""
        if self._next is None:
            self._next = next(self._source, None)
        return None if self._next is None else self._next[0]

    def step(self) -> Iterator[LoadedBatch]:
        """The loaded micro-batches of the step that comes next."""
        while self.peek() is not None:
            loaded, self._next = self._next, None
            assert loaded is not None
            if loaded[0].ends_step:
                self.data_state = loaded[0].data_state
            yield loaded
            if loaded[0].ends_step:
                return


def _seed_for(seed: int, micro_batch: MicroBatch) -> None:
    where = (micro_batch.position.epoch, micro_batch.position.place, micro_batch.shard, micro_batch.index)
    seed_everything(derive(seed, "data", *where), devices=False)

"""A stream that is cut into shards before it is read, and which streams a loop refuses."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from remora.torch.sampling import Sampling


class ShardedStream:
    """As many streams as the loop has shards; each worker reads those of the shards that it carries, and no other.

        data = ShardedStream(dataset)

    with a dataset that has `shard(num_shards=..., index=...)`, such as an `IterableDataset` of Hugging Face, or

        data = ShardedStream(lambda index, count: MyDataset(files[index::count]))

    Which samples a shard has follows from the number of shards alone, and so does the result.  Each stream begins again
    when it is at its end, so streams need not be of one length, and `total_steps` ends training.  `set_epoch(n)` of a
    stream is called before its n-th pass, where it has that.  Raises TypeError for what cannot be sharded.
    """

    def __init__(self, source: Any) -> None:
        if not (hasattr(source, "shard") or callable(source)):
            raise TypeError(
                "ShardedStream takes a dataset with shard(num_shards=..., index=...), or a function of index and count"
            )
        self._source = source

    def shard(self, index: int, shards: int) -> Any:
        """The stream of one shard, made new.  Raises ValueError for a dataset of fewer parts than shards."""
        if not hasattr(self._source, "shard"):
            return self._source(index, shards)
        parts = getattr(self._source, "num_shards", getattr(self._source, "n_shards", None))
        if isinstance(parts, int) and parts < shards:
            raise ValueError(
                f"the dataset has {parts} parts, and the loop {shards} shards that need one each: use at most {parts}"
                " shards, cut the dataset into more files, or hand it over as a whole, without ShardedStream"
            )
        return self._source.shard(num_shards=shards, index=index)


def order_name(data: Any, sampling: Sampling | None) -> str:
    """What a checkpoint calls the order of the data; empty where that is Loop's own."""
    if isinstance(data, ShardedStream):
        return ShardedStream.__name__
    return "" if sampling is None else sampling.name


def check_stream(data: Any, epochs: int | None, num_workers: int) -> None:
    """Raise ValueError for a stream that a loop cannot read, in that number of processes of its own."""
    if isinstance(data, ShardedStream) and epochs is not None:
        raise ValueError(
            "a ShardedStream has no epochs, because its streams end at different steps: leave out epochs, and say"
            " total_steps"
        )
    makes_batches = isinstance(data, DataLoader) and (
        data.batch_size is not None or data.batch_sampler is not None
    )
    if makes_batches:
        raise ValueError(
            f"a {type(data).__name__} that makes batches cannot be cut into shards: give it batch_size=None, so that it"
            " gives samples, and Loop makes the batches"
        )
    if num_workers and isinstance(data, DataLoader) and data.num_workers:
        raise ValueError(
            f"a {type(data).__name__} that has num_workers cannot be read in other processes, which may start none:"
            " leave num_workers out of one of the two"
        )

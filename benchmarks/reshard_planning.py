"""How long a rank plans which blocks travel after the loss of a worker, beside torch.distributed.checkpoint's planner.

    python -m benchmarks.reshard_planning

The state is that of a transformer of 70 billion parameters with Adam, sharded over all workers.  Nothing is allocated
and nothing travels.  The peer gets what a rank wants and what is saved, and lists what it reads; unlike us it has
not to find what the rank sends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.reshard import Plans
from remora.torch.sharded.reshard_plan import Split, boxes_of
from remora.torch.sharded.state_shards import TensorSpec

#: Workers before one of them is lost.
WORKERS = (256, 1024)
#: Of a transformer with 80 layers, grouped-query attention and a gated feed-forward network.
LAYERS, HIDDEN, INNER, KEYS, WORDS = 80, 8192, 28672, 1024, 128256


def run() -> dict[str, Any]:
    """Seconds of one rank by the number of workers, and the ratio to the peer's."""
    return {"reshard_planning": {str(count): measured(count) for count in WORKERS}}


def measured(workers: int) -> dict[str, float]:
    """Seconds to plan the whole state, in the middle of the workers."""
    ours, theirs = _ours(workers), _theirs(workers)
    return {"remora_s": round(ours, 4), "dcp_s": round(theirs, 4), "ratio": round(ours / theirs, 4)}


def sizes() -> Iterator[tuple[int, ...]]:
    """Of all tensors: the weights, and both of Adam's moments of each."""
    layer: list[tuple[int, ...]] = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN)]
    layer += [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER), (HIDDEN,), (HIDDEN,)]
    for _ in range(3):
        yield from ((WORDS, HIDDEN), *layer * LAYERS, (HIDDEN,), (WORDS, HIDDEN))


def _ours(workers: int) -> float:
    left = workers - 1
    grid = Parallel().arrange(left)
    before, after = (Split(0, workers, 1),), (Split(0, left, 1),)
    began = time.perf_counter()
    plans = Plans(left // 2, left, grid, {shard: shard % left for shard in range(workers)})
    for size in sizes():
        spec = TensorSpec(size, torch.float32, before)
        plans.of(spec, TensorSpec(size, torch.float32, after))
    return time.perf_counter() - began


def _theirs(workers: int) -> float:
    left, spent = workers - 1, 0.0
    for size in sizes():
        saved = _chunks(boxes_of(size, [Split(0, workers, 1)], torch.arange(workers)))
        wanted = _chunks(boxes_of(size, [Split(0, left, 1)], torch.tensor([left // 2])))
        stored = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(size), saved)
        began = time.perf_counter()
        create_read_items_for_chunk_list("weight", stored, wanted)
        spent += time.perf_counter() - began
    return spent


def _chunks(boxes: torch.Tensor) -> list[ChunkStorageMetadata]:
    return [
        ChunkStorageMetadata(
            torch.Size(start for start, _ in box), torch.Size(stop - start for start, stop in box)
        )
        for box in boxes.tolist()
        if all(start < stop for start, stop in box)
    ]


if __name__ == "__main__":
    print(json.dumps(run()))

"""How long a rank plans which blocks travel to one worker less, beside torch.distributed.checkpoint's planner.

    python -m benchmarks.reshard_planning

The state is that of a transformer of 70 billion parameters with Adam, sharded over all workers.  Nothing is allocated
and nothing travels.  After a loss the blocks lie in the memory of workers; at a resume in the files of a checkpoint, of
which each worker reads one, and what a worker says of its own and unpacks of what all others say is counted as well.
The peer gets what a rank wants and what is saved, and lists what it reads; unlike us it has not to find what the rank
sends.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from remora.torch.sharded.checkpoint_io import SavedTensor
from remora.torch.sharded.checkpoint_parts import plans_of
from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.reshard import Plans, TargetPlans
from remora.torch.sharded.reshard_plan import Split, boxes_of
from remora.torch.sharded.saved_blocks import Listing, Places, listed, together
from remora.torch.sharded.state_shards import TensorSpec

#: Workers before one of them is lost.
WORKERS = (256, 1024)
#: Of a transformer with 80 layers, grouped-query attention and a gated feed-forward network.
LAYERS, HIDDEN, INNER, KEYS, WORDS = 80, 8192, 28672, 1024, 128256


def run() -> dict[str, Any]:
    """Seconds of one rank by the number of workers, and the ratio to the peer's; after a loss, and at a resume."""
    lost, resumed = {}, {}
    for count in WORKERS:
        theirs = _theirs(count)
        lost[str(count)] = beside(_after_a_loss(count), theirs)
        resumed[str(count)] = beside(_at_a_resume(count), theirs)
    return {"reshard_planning": lost, "resume_planning": resumed}


def beside(ours: float, theirs: float) -> dict[str, float]:
    """Seconds to plan the whole state, in the middle of the workers."""
    return {"remora_s": round(ours, 4), "dcp_s": round(theirs, 4), "ratio": round(ours / theirs, 4)}


def sizes() -> Iterator[tuple[int, ...]]:
    """Of all tensors: the weights, and both of Adam's moments of each."""
    layer: list[tuple[int, ...]] = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN)]
    layer += [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER), (HIDDEN,), (HIDDEN,)]
    for _ in range(3):
        yield from ((WORDS, HIDDEN), *layer * LAYERS, (HIDDEN,), (WORDS, HIDDEN))


def _after_a_loss(workers: int) -> float:
    left = workers - 1
    grid = Parallel().arrange(left)
    before, after = (Split(0, workers, 1),), (Split(0, left, 1),)
    began = time.perf_counter()
    plans = Plans(left // 2, left, grid, {shard: shard % left for shard in range(workers)})
    for size in sizes():
        spec = TensorSpec(size, torch.float32, before)
        plans.of(spec, TensorSpec(size, torch.float32, after))
    return time.perf_counter() - began


def _at_a_resume(workers: int) -> float:
    left = workers - 1
    names = {f"model/{number:04}": size for number, size in enumerate(sizes())}
    # The first worker reads the file that would be left over.
    files = [[rank] if rank else [0, left] for rank in range(left)]
    said, listings = [], {}
    mine: dict[str, SavedTensor] = {}
    for rank, own in enumerate(_files_of(names, files, workers)):
        listing, places = listed(own)
        said.append(pickle.dumps((listing.digest, places)))
        listings[listing.digest] = pickle.dumps(listing)
        mine = own if rank == left // 2 else mine
    model: Any = SimpleNamespace(as_split_here=lambda _, spec: replace(spec, splits=(Split(0, left, 1),)))
    began = time.perf_counter()
    pickle.dumps(listed(mine))
    heard: list[tuple[int, Places]] = [pickle.loads(one) for one in said]  # noqa: S301
    known: dict[int, Listing] = {digest: pickle.loads(one) for digest, one in listings.items()}  # noqa: S301
    targets = TargetPlans(left // 2, left, Parallel().arrange(left))
    planned = 0
    for alike in together(known, [digest for digest, _ in heard], [places for _, places in heard]):
        assert alike.is_whole
        planned += len(list(plans_of(alike, model, targets)))
    took_s = time.perf_counter() - began
    assert planned == len(names)
    return took_s


def _files_of(
    names: dict[str, tuple[int, ...]], files: list[list[int]], workers: int
) -> Iterator[dict[str, SavedTensor]]:
    """What each rank finds in the files that it reads, of which that many workers have written one each."""
    boxes = {
        size: boxes_of(size, [Split(0, workers, 1)], torch.arange(workers)).tolist()
        for size in set(names.values())
    }
    for read in files:
        blocks = {
            size: [
                (tuple(start for start, _ in box), tuple(stop - start for start, stop in box), None)
                for box in (of_all[one] for one in read)
                if all(start < stop for start, stop in box)
            ]
            for size, of_all in boxes.items()
        }
        yield {
            name: SavedTensor(size, torch.float32, blocks[size], name)  # type: ignore[arg-type]
            for name, size in names.items()
            if blocks[size]
        }


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

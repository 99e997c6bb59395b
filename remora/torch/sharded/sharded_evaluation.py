"""Evaluates a dataset with a sharded model: every layer has collectives, so all workers make equally many passes.

Parts and batches are those of `remora.torch.evaluation`.  How many batches each worker has follows from the number of
samples, so no worker asks another one; behind its own come passes that count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from remora.torch.evaluation import (
    Held,
    PartSums,
    as_it_was,
    batches_of,
    computed,
    filler_of,
    most_batches,
    rows_of,
    total,
)
from remora.torch.group import Group
from remora.torch.order import shards_of
from remora.torch.sharded.building import BuiltModel
from remora.torch.sharded.step_runner import full


class Interrupted(dict[str, float]):
    """The result where a worker was lost meanwhile: every mean is not a number, and the step is done again."""

    def __missing__(self, name: str) -> float:
        return float("nan")


def evaluated_together(held: Held, built: BuiltModel, group: Group, found: PartSums) -> dict[str, float]:
    """The means over all workers of `group`, all of which call it alike.

    Raises PeerLost, or any error of a collective in a layer, where a worker is lost; ValueError where nothing counted.
    """
    grid, model = built.grid, built.sharded.model
    readers = [shards_of(reader, grid.readers, held.parts) for reader in range(grid.readers)]
    own = readers[grid.reader_of(group.rank)]
    _reshard(model)
    try:
        with as_it_was(model):
            done = 0
            for part, batch, samples in batches_of(held, own, found):
                group.check()
                computed(held, model, batch, samples, part, found, _number)
                done += 1
            names = PartSums()
            missing = most_batches(held, found.samples, readers) - done
            filler = filler_of(held) if missing else None
            for _ in range(missing):
                group.check()
                # What it makes is thrown away, but for the names of what it makes.
                computed(held, model, filler, 1, 0, names, _number)
    finally:
        # The backward pass that lets go of whole layers does not come.
        _reshard(model)
        # Where a worker was lost meanwhile the step is done again, and with it the evaluation.
        held.stream.rewind()
    counted = own if grid.counts_batch(group.rank) else ()
    rows = rows_of(found, counted, held.parts).to(held.device)
    # Each row is of one worker and zero on all others, so that the sum has its very bits.
    group.wait(group.sum(rows))
    found.names = found.names or names.names
    return total(rows.tolist(), found.names or ())


def _number(value: Any) -> float:
    return float(full(value))


def _reshard(model: torch.nn.Module) -> None:
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: torch.nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))

"""Workers of a sharded model with fewer batches than others compute one that counts for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset

from remora.torch.sharded import ShardedLoop
from tests.unit.torch.gpu_double import Gpu, install, train_with, uninstall


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    yield install(monkeypatch)
    uninstall()


class Stream(IterableDataset):  # type: ignore[misc]  # torch is not checked
    """Counts how often it is read from its start."""

    def __init__(self) -> None:
        self.readings = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.readings += 1
        yield from torch.arange(16.0).view(4, 4) / 16


def build(mesh: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def test_the_batch_that_counts_for_nothing_is_made_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its four samples belong to the first four parts, so to the other worker.
    train_with(monkeypatch, gpu, on_cuda=False, rank=1)
    loop = ShardedLoop(build, data=torch.ones(16, 4), global_batch=8, shards=8, total_steps=1, check_every=0)
    stream, passes = Stream(), []

    def compute(model: nn.Module, batch: torch.Tensor) -> tuple[Any, Any]:
        passes.append(len(batch))
        return squared(model, batch), {"one": 1.0}

    for step in loop:
        step.backward(squared)
        loop.optimizer.step()
        # The double adds nothing of the other worker, and so nothing counts.
        with pytest.raises(ValueError, match="nothing was counted"):
            loop.evaluate(stream, compute)
    assert passes == [1, 1, 1, 1]
    assert stream.readings == 1, "for the samples, of which the batch has the first one"

"""One contestant of `benchmarks.backends.fsdp`: the byte-level GPT with DDP, with FSDP2, or with `ShardedLoop`.

Trains in alternating blocks as `steady_train.py` does, which lies beside it with the examples that it takes the model
from.

usage: fsdp_train.py NAME ddp|fsdp|sharded FOLDER BLOCKS STEPS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from steady_train import WORKERS, Alternation, gpt, loss_of, plain, wait_for
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def shard(model: nn.Module, **mesh: object) -> nn.Module:
    """Each block by itself, and what is left with the whole."""
    for block in model.blocks:
        fully_shard(block, **mesh)
    return fully_shard(model, **mesh)


def fsdp(model: nn.Module, data: Dataset, batch: int, alternation: Alternation) -> None:
    """As PyTorch's own tutorial writes it."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=batch // WORKERS, sampler=sampler)

    def batches() -> Iterator[list[torch.Tensor]]:
        for epoch in range(1_000_000):
            sampler.set_epoch(epoch)
            yield from loader

    source = batches()
    for _ in range(alternation.total):
        alternation.before()
        inputs = next(source)
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        loss.item()
        alternation.after(rank)


def sharded(model: nn.Module, data: Dataset, batch: int, alternation: Alternation) -> None:
    """The same with `ShardedLoop`, one shard per worker, and the loss reported in every step."""
    from remora.torch.sharded import ShardedLoop

    def build(mesh: object) -> tuple[nn.Module, torch.optim.Optimizer]:
        shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    loop = ShardedLoop(
        build, data=data, global_batch=batch, shards=WORKERS, total_steps=alternation.total, seed=3
    )  # fmt: skip
    steps = iter(loop)
    for _ in range(alternation.total):
        alternation.before()
        step = next(steps)
        loss = step.backward(loss_of)
        loop.optimizer.step()
        step.report(loss=loss)
        alternation.after(loop.world.rank)


def main() -> None:
    """Train one contestant."""
    name, loop, folder, blocks, steps = sys.argv[1:6]
    torch.manual_seed(3)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model, data, batch = gpt()
    alternation = Alternation(name, Path(folder), int(blocks), int(steps))
    {"ddp": plain, "fsdp": fsdp, "sharded": sharded}[loop](model, data, batch, alternation)
    wait_for(Path(folder) / "end")


if __name__ == "__main__":
    main()

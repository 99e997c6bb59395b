"""Handwritten digits with a model that FSDP shards over all workers; it survives the loss of one of them from memory.

Runs as it is in three ways: `python train.py`, `torchrun --nproc-per-node 2 train.py`, and `remora submit -f job.yaml`.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from remora.torch.sharded import ShardedLoop


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()

    digits = load_digits()
    images, labels = torch.as_tensor(digits.data / 16.0).float(), torch.as_tensor(digits.target)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def build(mesh):
        model = Net().to(device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)

    loop = ShardedLoop(
        build,
        data=TensorDataset(images, labels),
        global_batch=96,
        shards=6,
        total_steps=arguments.steps,
        seed=7,
    )
    for step in loop:
        loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()
        loop.scheduler.step()
        step.report(loss=loss)
    if loop.world.rank == 0:
        print(f"{loop.steps_done} steps, loss {loss:.4f}")


if __name__ == "__main__":
    main()

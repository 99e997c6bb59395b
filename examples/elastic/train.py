"""Handwritten digits with `remora.torch`: workers come and go, and the result stays the same.

Runs as it is in three ways: `python train.py`, `torchrun --nproc-per-node 2 train.py`, and `remora submit job.yaml`.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

from remora import training
from remora.torch import Loop


def load_data() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Training set, and test images [n, 1, 8, 8] scaled to 0..1 with their labels."""
    digits = load_digits()
    parts = train_test_split(
        digits.images / 16.0, digits.target, test_size=0.2, random_state=7, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)
    return TensorDataset(train_x.float()[:, None], train_y), test_x.float()[:, None], test_y


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 16, 10),
    )


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of the images that the model reads right."""
    model.eval()
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    model.train()
    return right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--exactness", choices=["sample-exact", "bitwise"], default="sample-exact")
    parser.add_argument("--least-step-s", type=float, default=0.0, help="for rehearsals that need their time")
    arguments = parser.parse_args()

    torch.manual_seed(7)
    data, test_x, test_y = load_data()
    world = training.world()
    device = f"cuda:{world.local_rank}" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=arguments.steps)

    loop = Loop(
        model, optimizer, data=data, global_batch=96, shards=6, total_steps=arguments.steps, seed=7,
        scheduler=scheduler, exactness=arguments.exactness,
    )  # fmt: skip
    for step in loop:
        began = time.monotonic()
        loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        metrics = {"loss": loss, "lr": scheduler.get_last_lr()[0]}
        if step.number == arguments.steps:
            metrics["test_accuracy"] = accuracy(model, test_x.to(device), test_y.to(device))
        step.report(**metrics)
        time.sleep(max(0.0, began + arguments.least_step_s - time.monotonic()))

    if loop.world.rank == 0:
        reached = accuracy(model, test_x.to(device), test_y.to(device))
        print(f"{loop.steps_done} steps, test accuracy {reached:.4f}")


if __name__ == "__main__":
    main()

"""A trainer class with a training step of its own, as torchtitan's is, made elastic by `remora.torch.Steps`.

Runs as it is in three ways: `python train.py`, `torchrun --nproc-per-node 2 train.py`, and `remora submit job.yaml`.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from remora import training
from remora.torch import OpenStep, Steps


class MetricsProcessor:
    """Logs loss, norm and speed every few steps, on the worker that has rank 0 now."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.samples = 0
        self.began = time.monotonic()

    def log(self, step: OpenStep, loss: float, grad_norm: float) -> None:
        if step.number % self.every == 0 and training.world().rank == 0:
            speed = self.samples / (time.monotonic() - self.began)
            print(f"step {step.number}: loss {loss:.4f}, grad norm {grad_norm:.2f}, {speed:.0f} samples/s")
            self.samples, self.began = 0, time.monotonic()


class Trainer:
    """Everything that training needs, and one method for each part of a step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        data: Dataset,
        *,
        global_batch: int,
        local_batch: int | None,
        shards: int,
        total_steps: int,
        seed: int = 0,
        log_every: int = 100,
        exactness: str | None = None,
    ) -> None:
        self.model, self.optimizer, self.lr_scheduler = model, optimizer, lr_scheduler
        self.metrics = MetricsProcessor(log_every)
        self.samples_seen = 0
        # In place of a data loader, DistributedDataParallel and a checkpointer.
        self.steps = Steps(
            model, optimizer, data=data, global_batch=global_batch, micro_batch=local_batch, shards=shards,
            total_steps=total_steps, seed=seed, scheduler=lr_scheduler, state={"trainer": self}, exactness=exactness,
        )  # fmt: skip

    def state_dict(self) -> dict[str, int]:
        return {"samples_seen": self.samples_seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.samples_seen = state["samples_seen"]

    def forward_backward(self, step: OpenStep, batch: tuple[torch.Tensor, ...]) -> None:
        features, labels, *_ = batch
        scores = self.model(features)
        right = (scores.argmax(1) == labels).float().mean()
        step.backward(F.cross_entropy(scores, labels), {"accuracy": right})

    def clip_gradients(self) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def train_step(self, step: OpenStep) -> bool:
        """One step; False where a worker was lost meanwhile, and it is to be computed again."""
        self.optimizer.zero_grad()
        # Gradient accumulation: local batches follow one another until this worker's share of the step is done.
        for batch in step.batches():
            self.forward_backward(step, batch)
        if not step.reduce():
            return False
        grad_norm = self.clip_gradients()
        self.optimizer.step()
        self.lr_scheduler.step()
        self.samples_seen += step.total
        step.report(loss=step.loss, grad_norm=grad_norm, lr=self.lr_scheduler.get_last_lr()[0])
        self.metrics.samples += step.total
        self.metrics.log(step, float(step.loss), float(grad_norm))
        return True

    def train(self) -> None:
        while (step := self.steps.begin()) is not None:
            if self.train_step(step):
                step.commit()


def main() -> None:
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()

    digits = load_digits()
    data = TensorDataset(torch.as_tensor(digits.data / 16.0).float(), torch.as_tensor(digits.target))
    torch.manual_seed(7)
    world = training.world()
    device = f"cuda:{world.local_rank}" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    trainer = Trainer(
        model, optimizer, lr_scheduler, data,
        global_batch=96, local_batch=8, shards=6, total_steps=arguments.steps, seed=7,
    )  # fmt: skip
    trainer.train()
    if trainer.steps.world.rank == 0:
        print(f"{trainer.steps.steps_done} steps, {trainer.samples_seen} samples")


if __name__ == "__main__":
    main()

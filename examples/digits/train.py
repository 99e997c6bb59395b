"""Handwritten digits by PyTorch DDP: real scans (UCI optical digits, bundled with scikit-learn), a real test split.

Runs as it is in four ways: `python train.py`, `torchrun --nproc-per-node 2 train.py`, `remora submit job.yaml`, and
under Remora with workers coming and going.  Whatever the number of workers, step `s` uses the same samples with the
same augmentation: each step's global batch follows from the seed and the step alone, and every rank takes its share.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from remora import training

GLOBAL_BATCH = 96  # divides evenly among 1, 2, 3, 4, 6, 8 ... workers
SEED = 7


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and test images [n, 1, 8, 8] scaled to 0..1, with their labels."""
    digits = load_digits()
    parts = train_test_split(
        digits.images / 16.0, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)
    return train_x.float()[:, None], train_y.long(), test_x.float()[:, None], test_y.long()


class Net(nn.Module):
    """Two convolutions and two linear layers; about 50,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48 * 16, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def batch_of(step: int, count: int) -> tuple[torch.Tensor, torch.Generator]:
    """Sample numbers of a step's global batch, and the generator for its augmentation."""
    per_epoch = count // GLOBAL_BATCH
    epoch, place = divmod(step - 1, per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED * 1_000_003 + epoch))
    chosen = order[place * GLOBAL_BATCH : (place + 1) * GLOBAL_BATCH]
    return chosen, torch.Generator().manual_seed(SEED * 7_000_003 + step)


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Small random rotations, scalings and shifts."""
    n = len(images)
    angle = (torch.rand(n, generator=generator) - 0.5) * 0.5
    scale = 1 + (torch.rand(n, generator=generator) - 0.5) * 0.3
    shift = (torch.rand(n, 2, generator=generator) - 0.5) * 0.3
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    theta = torch.stack(
        [torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1
    )
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of images whose digit is recognised."""
    model.eval()
    share = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("digits.pt"))
    arguments = parser.parse_args()

    torch.manual_seed(SEED)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    world = training.world()
    is_distributed = "MASTER_ADDR" in os.environ
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{world.local_rank}" if on_gpu else "cpu")
    if is_distributed:
        dist.init_process_group("nccl" if on_gpu else "gloo")

    train_x, train_y, test_x, test_y = (part.to(device) for part in load_data())
    model = Net().to(device)
    wrapped = DistributedDataParallel(model) if is_distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=arguments.steps)

    done = 0
    saved = training.resume_from()
    if saved is not None:
        state = torch.load(saved / "state.pt", map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        done = state["step"]
        print(f"rank {world.rank} of {world.world_size} resumes after step {done}")

    for step in range(done + 1, arguments.steps + 1):
        chosen, generator = batch_of(step, len(train_x))
        images = augment(train_x[chosen].cpu(), generator)[world.rank :: world.world_size].to(device)
        labels = train_y[chosen][world.rank :: world.world_size]
        loss = F.cross_entropy(wrapped(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

        is_last = step == arguments.steps
        metrics = {"loss": loss.item(), "lr": schedule.get_last_lr()[0]}
        if world.rank == 0 and (is_last or step % 100 == 0):
            metrics["test_accuracy"] = accuracy(model, test_x, test_y)
            print(f"step {step}: loss {metrics['loss']:.4f}, test accuracy {metrics['test_accuracy']:.4f}")
        training.report(step, metrics, total_steps=arguments.steps)
        if training.should_checkpoint() or is_last:
            with training.checkpoint(step) as folder:
                if world.rank == 0:
                    state = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "schedule": schedule.state_dict(),
                        "step": step,
                    }
                    torch.save(state, folder / "state.pt")

    if world.rank == 0 and not is_distributed:
        torch.save(model.state_dict(), arguments.out)
    if is_distributed:
        # Before the group: if DDP is the last to hold it, PyTorch may wait for itself at the end (gloo).
        del wrapped
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The peer: the digits loop under stock Ray Train 2.60, elastic, every setting as it comes.

Run as a driver by `benchmarks.elastic`; appends one line `time step world_size` per step to a file.
usage: stock_train.py STEPS LINES_FILE STORAGE [CHECKPOINT_EVERY]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config: dict[str, Any]) -> None:
    """One worker's loop, with a checkpoint after a number of steps and one in time before a preemption."""
    sys.path.insert(0, config["example"])
    from train import SEED, Net, augment, batch_of, load_data

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    images, labels, _, _ = load_data()
    model = Net()
    done = 0
    saved = ray.train.get_checkpoint()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if saved is not None:
        with saved.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    for step in range(done + 1, config["steps"] + 1):
        chosen, generator = batch_of(step, len(images))
        mine = augment(images[chosen], generator)[rank::world]
        loss = torch.nn.functional.cross_entropy(wrapped(mine), labels[chosen][rank::world])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with Path(config["lines"]).open("a") as lines:
                lines.write(f"{time.time()} {step} {world}\n")
        if step % config["every"] == 0:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, Path(folder) / "state.pt")
                    checkpoint = Checkpoint.from_directory(folder)
                ray.train.report({"loss": loss.item()}, checkpoint=checkpoint)


def main() -> None:
    """Fit, as the manual shows it."""
    steps, lines, storage = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    every = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    example = str(Path(__file__).resolve().parents[1] / "examples" / "digits")
    TorchTrainer(
        train,
        train_loop_config={"steps": steps, "lines": lines, "every": every, "example": example},
        scaling_config=ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="stock", storage_path=storage, failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()


if __name__ == "__main__":
    main()

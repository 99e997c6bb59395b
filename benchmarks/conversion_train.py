"""Workers of DeepSpeed save a checkpoint of one step: `conversion_train.py FOLDER WORKERS STAGE PORT`.

The state of the optimizer and the weights have `PARAMETERS` x 16 bytes.  Workers are forked, so that DeepSpeed is
imported once.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import deepspeed
import torch
from torch import nn

LAYERS, WIDTH = 24, 1000
PARAMETERS = LAYERS * WIDTH * (WIDTH + 1)


def train(rank: int, folder: str, workers: int, stage: int, port: str) -> None:
    """One worker."""
    os.environ |= {
        "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers), "RANK": str(rank), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    config = {
        "train_batch_size": workers,
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.ones(1, WIDTH)).sum())
    engine.step()
    engine.save_checkpoint(folder, tag="step1")


def main() -> None:
    """All workers."""
    folder, workers, stage, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    forking = multiprocessing.get_context("fork")
    started = [
        forking.Process(target=train, args=(rank, folder, workers, stage, port)) for rank in range(workers)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join()
    sys.exit(max(abs(one.exitcode or 0) for one in started))


if __name__ == "__main__":
    main()

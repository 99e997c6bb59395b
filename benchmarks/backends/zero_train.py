"""What `benchmarks.backends.zero` runs: scripts of DeepSpeed that know nothing of Remora.

usage: zero_train.py steady NAME FOLDER BLOCKS STEPS     (alternating blocks as `steady_train.py` does)
       zero_train.py resize OUT save|resume STAGE       (50 million parameters; writes OUT/MODE-STAGE-SIZE.json)
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

#: Width and depth of the model that is resharded: 48 x (1024 x 1024 + 1024) parameters.
WIDTH, DEPTH = 1024, 48
BATCH, SAVED, STEPS = 12, 2, 4


def configuration(batch: int, stage: int) -> dict[str, Any]:
    """As a user would write it into ds_config.json."""
    return {
        "train_batch_size": batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "steps_per_print": 1_000_000,
    }


def steady(name: str, folder: str, blocks: str, steps: str) -> None:
    """The byte-level GPT with stage 2."""
    from steady_train import Alternation, gpt, loss_of, wait_for
    from torch.utils.data import DataLoader, DistributedSampler

    deepspeed.init_distributed(dist_backend="gloo")
    model, data, batch = gpt()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(batch, 2)
    )
    alternation = Alternation(name, Path(folder), int(blocks), int(steps))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=batch // dist.get_world_size(), sampler=sampler)
    source = iter(loader)
    for _ in range(alternation.total):
        alternation.before()
        if (inputs := next(source, None)) is None:
            source = iter(loader)
            inputs = next(source)
        loss = loss_of(engine, inputs)
        engine.backward(loss)
        engine.step()
        loss.item()
        alternation.after(dist.get_rank())
    wait_for(Path(folder) / "end")


def resize(out: str, mode: str, stage: str) -> None:
    """Train, and save after two steps; or load, and train what comes after them."""
    torch.manual_seed(0)
    layers = [one for _ in range(DEPTH) for one in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(BATCH, int(stage))
    )
    folder = str(Path(out) / f"saved-{stage}")
    dist.barrier()
    began = time.perf_counter()
    _, client = engine.load_checkpoint(folder)
    dist.barrier()
    seconds = time.perf_counter() - began
    losses = []
    for step in range(client["step"] if client else 0, STEPS):
        losses.append(train_one(engine, step))
        if step + 1 == SAVED and mode == "save":
            engine.save_checkpoint(folder, client_state={"step": SAVED})
    if dist.get_rank() == 0:
        result = {"seconds": seconds, "losses": losses[-(STEPS - SAVED) :]}
        (Path(out) / f"{mode}-{stage}-{dist.get_world_size()}.json").write_text(json.dumps(result))
    dist.barrier()
    # Gloo's threads may still be at work when Python takes its modules apart, and would abort the process.
    os._exit(0)


def train_one(engine: Any, step: int) -> float:
    """One step on samples that follow from its number; returns the mean loss of all workers."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    mine = x.chunk(dist.get_world_size())[dist.get_rank()]
    loss = F.mse_loss(engine(mine), mine)
    engine.backward(loss)
    engine.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


if __name__ == "__main__":
    {"steady": steady, "resize": resize}[sys.argv[1]](*sys.argv[2:])

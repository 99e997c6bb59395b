"""A script of DeepSpeed as users write it, in a process of its own for each stage of ZeRO; nothing of Remora in it.

usage: deepspeed_worker.py OUT save|resume; STAGES names the stages, and MASTER_PORTS a port for each.  Rank 0 writes
the loss of every step into OUT/losses-MODE-WORLD_SIZE-STAGE.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STEPS, SAVED, BATCH = 6, 3, 12


def configuration(stage: int) -> dict:
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 1e-2}},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
    }


def train(stage: int, folder: Path) -> dict[int, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(stage)
    )
    _, client = engine.load_checkpoint(str(folder))
    begin = client["step"] if client else 0
    losses = {}
    for step in range(begin + 1, STEPS + 1):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, 16, generator=generator)
        y = torch.randint(0, 4, (BATCH,), generator=generator)
        mine = torch.arange(BATCH).chunk(dist.get_world_size())[dist.get_rank()]
        total = torch.zeros(())
        for part in mine.split(engine.train_micro_batch_size_per_gpu()):
            loss = F.cross_entropy(engine(x[part]), y[part])
            engine.backward(loss)
            engine.step()
            total += loss.detach() * len(part)
        dist.all_reduce(total)
        losses[step] = total.item() / BATCH
        if step == SAVED and not begin:
            engine.save_checkpoint(str(folder), client_state={"step": step})
    return losses


def run(out: Path, mode: str, stage: int, port: str) -> None:
    os.environ["MASTER_PORT"] = port
    if mode == "resume":
        # What a supervisor sends a script that goes on.
        scratch = out / f"scratch-{os.environ['WORLD_SIZE']}-{os.environ['RANK']}-{stage}"
        scratch.mkdir()
        os.environ["REMORA_RESUME_DIR"] = str(out / f"saved-{stage}")
        os.environ["REMORA_SCRATCH_DIR"] = str(scratch)
    losses = train(stage, out / f"saved-{stage}")
    if dist.get_rank() == 0:
        file = out / f"losses-{mode}-{dist.get_world_size()}-{stage}.json"
        file.write_text(json.dumps(losses))
    dist.destroy_process_group()


def main() -> None:
    out, mode = Path(sys.argv[1]), sys.argv[2]
    stages, ports = os.environ["STAGES"].split(), os.environ["MASTER_PORTS"].split()
    # Forked, so that DeepSpeed is imported once.
    for stage, port in zip(stages, ports, strict=True):
        script = multiprocessing.get_context("fork").Process(target=run, args=(out, mode, int(stage), port))
        script.start()
        script.join()
        if script.exitcode:
            sys.exit(1)


if __name__ == "__main__":
    main()

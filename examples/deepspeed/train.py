"""Handwritten digits with DeepSpeed, as its manual writes a script: nothing here knows of Remora.

Runs as it is in two ways: `deepspeed train.py --deepspeed --deepspeed_config ds_config.json` (with numbers instead of
"auto" in the configuration), and `remora submit -f job.yaml`, with workers coming and going.
"""

from __future__ import annotations

import argparse
import time

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument(
        "--step-seconds", type=float, default=0.0, help="make every step last longer, to watch"
    )
    return deepspeed.add_config_arguments(parser).parse_args()


def main() -> None:
    args = parse()
    torch.manual_seed(7)
    digits = load_digits()
    images, labels = torch.as_tensor(digits.data / 16.0).float(), torch.as_tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    _, client = engine.load_checkpoint("checkpoints")
    begin = client["step"] if client else 0
    rank, workers, batch = dist.get_rank(), dist.get_world_size(), engine.train_batch_size()
    if rank == 0:
        print(f"{workers} workers begin after step {begin}, {batch} samples a step", flush=True)
    for step in range(begin + 1, args.steps + 1):
        # The samples of a step follow from its number alone, whatever the number of workers.
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:batch]
        mine = chosen.chunk(workers)[rank]
        total = torch.zeros((), device=engine.device)
        for part in mine.split(engine.train_micro_batch_size_per_gpu()):
            x, y = images[part].to(engine.device), labels[part].to(engine.device)
            loss = F.cross_entropy(engine(x), y)
            engine.backward(loss)
            engine.step()
            total += loss.detach() * len(part)
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / batch:.6f}", flush=True)
        if step % args.save_every == 0 or step == args.steps:
            engine.save_checkpoint("checkpoints", client_state={"step": step})
        time.sleep(args.step_seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

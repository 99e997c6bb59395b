"""The job of `benchmarks.elastic`: the loop of `examples/elastic`, which writes down the samples of every step.

usage: elastic_train.py FOLDER STEPS; every worker appends lines `step epoch sample,sample,...` to a file of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from elastic_example import load_data, network

from remora.torch import Loop

GLOBAL_BATCH = 96


def main() -> None:
    """Train."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(7)
    data, _, _ = load_data()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loop = Loop(model, optimizer, data=data, global_batch=GLOBAL_BATCH, shards=6, total_steps=steps, seed=7)
    with (folder / f"{os.getpid()}.samples").open("a", buffering=1) as lines:
        for step in loop:
            loss = step.backward(
                lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
            )
            optimizer.step()
            samples = ",".join(str(sample) for one in step.samples.values() for sample in one)
            lines.write(f"{step.number} {step.epoch} {samples}\n")
            step.report(loss=loss)


if __name__ == "__main__":
    main()

"""One worker's process whose training loop is its own, on `Steps`: as a plain script, or as a trainer class."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from examples.steps.train import Trainer
from remora.script import channel
from remora.torch import OpenStep, Steps
from tests.golden.forks import begin_as_a_script
from tests.golden.gate import Gate
from tests.golden.subjects import Samples, network
from tests.golden.worker import Job, Mishap


@dataclass(frozen=True)
class StepsJob(Job):
    """What to train, as `Job` says; `style` is the kind of loop."""

    style: str = "plain"


#: Called with every micro-batch that a model is about to see, and after every step.
Seen = Callable[[int, Any], None]
Stood = Callable[[int], None]


def work(
    job: StepsJob,
    slot: int,
    out: str,
    variables: dict[str, str],
    end: socket.socket | None,
    mishap: Mishap | None,
) -> None:
    """Body of a process."""
    begin_as_a_script()
    os.setpgid(0, 0)
    os.environ.update(variables)
    if end is not None:
        os.environ[channel.FD_VARIABLE] = str(end.detach())
    torch.set_num_threads(1)
    folder = Path(out)
    gate = Gate(folder)
    record = (folder / f"samples-{slot}.jsonl").open("a")

    def saw(step: int, batch: Any) -> None:
        record.write(json.dumps([step, batch[2].tolist()]) + "\n")
        record.flush()

    model = network(job.network)
    {"plain": plain, "trainer": trainer}[job.style](job, model, saw, gate.stand)
    torch.save(model.state_dict(), folder / f"weights-{slot}.pt")
    assert mishap is None


def plain(job: Job, model: torch.nn.Module, saw: Seen, stood: Stood) -> None:
    """What a script with DistributedDataParallel does, line by line."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps)
    data = Samples(job.samples)
    if job.damaged is not None:
        data.features[job.damaged] = float("nan")
    steps = Steps(
        model, optimizer, data=data, global_batch=job.global_batch, shards=job.shards, micro_batch=job.micro_batch,
        epochs=job.epochs, seed=job.seed, scheduler=scheduler, exactness=job.exactness, num_workers=job.num_workers,
        nonfinite=None if job.damaged is None else "rollback",
    )  # fmt: skip
    for step in steps:
        for batch in step.batches():
            saw(step.number, batch)
            step.backward(functional.cross_entropy(model(batch[0]), batch[1]))
        if not step.reduce():
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step.report(loss=step.loss)
        step.commit()
        stood(step.number)


def trainer(job: Job, model: torch.nn.Module, saw: Seen, stood: Stood) -> None:
    """The trainer class of examples/steps."""

    class Recording(Trainer):
        def forward_backward(self, step: OpenStep, batch: tuple[torch.Tensor, ...]) -> None:
            saw(step.number, batch)
            super().forward_backward(step, batch)

        def train_step(self, step: OpenStep) -> bool:
            is_done = super().train_step(step)
            stood(step.number - 1)
            return is_done

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    made = Recording(
        model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps), Samples(job.samples),
        global_batch=job.global_batch, local_batch=job.micro_batch, shards=job.shards, total_steps=job.steps,
        seed=job.seed, exactness=job.exactness,
    )  # fmt: skip
    made.train()
    assert made.samples_seen == job.epochs * job.samples, "each sample counted once, also by who joined"

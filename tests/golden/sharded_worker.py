"""One worker's process that trains with ShardedLoop, and writes down which samples it trained."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from remora.script import channel
from remora.torch.sharded import ShardedLoop
from tests.golden.gate import Gate
from tests.golden.subjects import Samples, Stream, network

#: Step whose gradients are infinite when losses are scaled.
TOO_LARGE_AT = 9


@dataclass(frozen=True)
class ShardedJob:
    """What to train: an MLP, or one with BatchNorm, with AdamW."""

    network: str = "mlp"
    samples: int = 95
    global_batch: int = 20
    shards: int = 6
    micro_batch: int | None = None
    epochs: int = 6
    seed: int = 7
    snapshot_every: int = 1
    is_stream: bool = False
    shard: int | None = None
    tensor: int | None = None
    #: Losses are scaled, and some gradients of one step are infinite.
    is_scaled: bool = False
    #: A sample that is not a number, whose batch is left out after a rollback.
    damaged: int | None = None
    #: Often, so that every test compares what copies hold.
    check_every: int = 3

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.samples // self.global_batch)


def work(
    job: ShardedJob, slot: int, out: str, variables: dict[str, str], end: socket.socket | None, _: object
) -> None:
    """Body of a process."""
    os.setpgid(0, 0)
    os.environ.update(variables)
    if end is not None:
        os.environ[channel.FD_VARIABLE] = str(end.detach())
    torch.set_num_threads(1)
    train(job, slot, Path(out))


#: How the layers of the network "plain" are cut over a tensor-parallel group.
TENSOR_PLAN = {
    "0": ColwiseParallel(),
    "2": RowwiseParallel(),
    "4": ColwiseParallel(output_layouts=Replicate()),
}


def train(job: ShardedJob, slot: int, out: Path) -> None:
    def build(mesh: Any) -> Any:
        model = network(job.network)
        if job.tensor:
            parallelize_module(model, mesh["tensor"], TENSOR_PLAN)
            mesh = mesh["replicate", "shard"] if job.shard else mesh["shard"]
        for layer in model:
            if sum(1 for _ in layer.parameters()) and layer is not model[-1]:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps)

    scaler = torch.amp.GradScaler("cpu") if job.is_scaled else None
    data = (Stream if job.is_stream else Samples)(job.samples)
    if job.damaged is not None:
        data.features[job.damaged] = float("nan")
    loop = ShardedLoop(
        build,
        data=data,
        nonfinite=None if job.damaged is None else "rollback",
        check_every=job.check_every,
        global_batch=job.global_batch,
        shards=job.shards,
        micro_batch=job.micro_batch,
        epochs=job.epochs,
        seed=job.seed,
        snapshot_every=job.snapshot_every,
        shard=job.shard,
        tensor=job.tensor,
        scaler=scaler,
    )
    gate = Gate(out)
    with (out / f"samples-{slot}.jsonl").open("a") as record:

        def compute(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
            features, labels, numbers = batch
            trained = {number for samples in step.samples.values() for number in samples}
            # A worker without work of its own computes on a batch that counts for nothing.
            if trained.issuperset(numbers.tolist()):
                record.write(json.dumps([step.number, numbers.tolist()]) + "\n")
                record.flush()
            scores = model(features)
            if scaler is not None and step.number == TOO_LARGE_AT:
                scores = scores * 1e37
            right = (scores.argmax(1) == labels).float().mean()
            return functional.cross_entropy(scores, labels), {"accuracy": right}

        for step in loop:
            loss = step.backward(compute)
            if scaler is None:
                norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
                loop.optimizer.step()
            else:
                norm = scaler.get_scale()
                scaler.step(loop.optimizer)
                scaler.update()
            loop.scheduler.step()
            step.report(loss=loss, norm=norm)
            gate.stand(step.number)
    weights = {name: one.full_tensor() for name, one in loop.model.named_parameters()}
    torch.save(weights | dict(loop.model.named_buffers()), out / f"weights-{slot}.pt")

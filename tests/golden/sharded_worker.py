"""One worker's process that trains with ShardedLoop, and writes down which samples it trained."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from examples.steps.train import MetricsProcessor, Trainer
from remora.script import channel
from remora.torch import OpenStep, ShardedStream
from remora.torch.sharded import ShardedLoop, ShardedSteps, checkpoint_io
from tests.golden.forks import begin_as_a_script
from tests.golden.gate import Gate
from tests.golden.subjects import Parts, PlacedStream, Samples, Stream, network
from tests.golden.worker import evaluate

#: Step whose gradients are infinite when losses are scaled.
TOO_LARGE_AT = 9


@dataclass(frozen=True)
class ShardedJob:
    """What to train: an MLP, or one with BatchNorm, with AdamW."""

    network: str = "mlp"
    #: Who makes the calls of a step: ShardedLoop, a plain script ("plain"), or a trainer class ("trainer").
    style: str = "loop"
    samples: int = 95
    global_batch: int = 20
    shards: int = 6
    micro_batch: int | None = None
    epochs: int = 6
    seed: int = 7
    snapshot_every: int = 1
    is_stream: bool = False
    #: A stream that knows its place ("placed"), or one for each shard ("sharded").
    stream: str = ""
    shard: int | None = None
    tensor: int | None = None
    #: Losses are scaled, and some gradients of one step are infinite.
    is_scaled: bool = False
    #: A sample that is not a number, whose batch is left out after a rollback.
    damaged: int | None = None
    #: Often, so that every test compares what copies hold.
    check_every: int = 3
    #: After every this many steps they evaluate; in the first evaluation the worker of this slot dies.
    evaluates: int | None = None
    dies_evaluating: int | None = None
    #: No worker writes its part of a checkpoint before `let_write` was called.
    writes_wait: bool = False

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.samples // self.global_batch)


def work(
    job: ShardedJob, slot: int, out: str, variables: dict[str, str], end: socket.socket | None, _: object
) -> None:
    """Body of a process."""
    begin_as_a_script()
    os.setpgid(0, 0)
    os.environ.update(variables)
    if (nodes := variables.get("RESUME_ON_NODES")) is not None:
        # The folder of its node: workers are on two nodes alternately.
        os.environ["REMORA_RESUME_DIR"] = str(Path(nodes) / str(slot % 2))
    if end is not None:
        os.environ[channel.FD_VARIABLE] = str(end.detach())
    torch.set_num_threads(1)
    if job.writes_wait:
        hold_writes(Path(out))
    if job.style == "loop":
        train(job, slot, Path(out))
    else:
        train_steps(job, slot, Path(out))


def hold_writes(out: Path) -> None:
    """Let the thread that writes stand, as before a slow disk, until `let_write` was called."""
    save = checkpoint_io.save

    def save_later(*arguments: Any) -> None:
        while not (out / "may-write").exists():
            time.sleep(0.001)  # a worker that has nothing to do, not a test that waits
        save(*arguments)

    checkpoint_io.save = save_later


def let_write(out: Path) -> None:
    """Called by the test."""
    (out / "may-write").touch()


#: How the layers of the network "plain" are cut over a tensor-parallel group.
TENSOR_PLAN = {
    "0": ColwiseParallel(),
    "2": RowwiseParallel(),
    "4": ColwiseParallel(output_layouts=Replicate()),
}


def build_for(job: ShardedJob, mesh: Any) -> Any:
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


def data_of(job: ShardedJob) -> Any:
    if job.stream == "sharded":
        return ShardedStream(Parts(job.samples))
    data = (PlacedStream if job.stream else Stream if job.is_stream else Samples)(job.samples)
    if job.damaged is not None:
        data.features[job.damaged] = float("nan")
    return data


def save_weights(model: torch.nn.Module, file: Path) -> None:
    weights = {name: one.full_tensor() for name, one in model.named_parameters()}
    torch.save(weights | dict(model.named_buffers()), file)


def train(job: ShardedJob, slot: int, out: Path) -> None:

    scaler = torch.amp.GradScaler("cpu") if job.is_scaled else None
    loop = ShardedLoop(
        partial(build_for, job),
        data=data_of(job),
        nonfinite=None if job.damaged is None else "rollback",
        check_every=job.check_every,
        global_batch=job.global_batch,
        shards=job.shards,
        micro_batch=job.micro_batch,
        epochs=job.epochs if job.stream != "sharded" else None,
        total_steps=job.steps if job.stream == "sharded" else None,
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
            loss = functional.cross_entropy(scores, labels)
            if job.tensor is None:
                return loss, {"accuracy": right, "again": loss.detach()}
            # A metric that only all of a tensor-parallel group know.
            mesh = model[0].weight.device_mesh["tensor"]
            part = DTensor.from_local(loss.detach() / job.tensor, mesh, [Partial()])
            return loss, {"accuracy": right, "again": part}

        for step in loop:
            loss = step.backward(compute)
            if scaler is None:
                assert math.isclose(step.metrics["again"], loss, rel_tol=1e-5)
                norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
                loop.optimizer.step()
            else:
                norm = scaler.get_scale()
                scaler.step(loop.optimizer)
                scaler.update()
            loop.scheduler.step()
            step.report(loss=loss, norm=norm)
            if job.evaluates is not None and step.number % job.evaluates == 0:
                evaluate(loop, job, step.number, slot, out)
            gate.stand(step.number)
    save_weights(loop.model, out / f"weights-{slot}.pt")


class Record:
    """Notes the samples that count, and that no step which is committed comes again."""

    def __init__(self, slot: int, out: Path) -> None:
        self.slot, self.out = slot, out
        self._gate = Gate(out)
        self._file = (out / f"samples-{slot}.jsonl").open("a")
        self._committed = 0

    def saw(self, step: OpenStep, numbers: torch.Tensor) -> None:
        assert step.number > self._committed, f"step {step.number} is repeated after {self._committed}"
        if {number for samples in step.samples.values() for number in samples}.issuperset(numbers.tolist()):
            self._file.write(json.dumps([step.number, numbers.tolist()]) + "\n")
            self._file.flush()

    def committed(self, step: OpenStep, counts: bool) -> None:
        if counts:
            self._committed = step.number
            self._gate.stand(step.number)


def train_steps(job: ShardedJob, slot: int, out: Path) -> None:
    record = Record(slot, out)
    asked: dict[str, Any] = {
        "data": data_of(job), "global_batch": job.global_batch, "shards": job.shards, "micro_batch": job.micro_batch,
        "epochs": job.epochs, "seed": job.seed, "shard": job.shard, "tensor": job.tensor,
        "check_every": job.check_every, "nonfinite": None if job.damaged is None else "rollback",
    }  # fmt: skip
    model = {"plain": plain, "trainer": trainer}[job.style](job, record, asked)
    save_weights(model, out / f"weights-{slot}.pt")


def plain(job: ShardedJob, record: Record, asked: dict[str, Any]) -> torch.nn.Module:
    """A script that makes the calls of a step itself."""
    steps = ShardedSteps(partial(build_for, job), **asked)
    while (step := steps.begin()) is not None:
        for features, labels, numbers in step.batches():
            record.saw(step, numbers)
            step.backward(functional.cross_entropy(steps.model(features), labels))
        if not step.reduce():
            continue
        norm = torch.nn.utils.clip_grad_norm_(steps.model.parameters(), 1.0)
        steps.optimizer.step()
        steps.scheduler.step()
        step.report(loss=step.loss, norm=norm)
        if job.evaluates is not None and step.number % job.evaluates == 0:
            evaluate(steps, job, step.number, record.slot, record.out)
        record.committed(step, step.commit())
    return steps.model


def trainer(job: ShardedJob, record: Record, asked: dict[str, Any]) -> torch.nn.Module:
    """The trainer class of examples/steps, which holds model and optimizer in attributes."""

    class Sharded(Trainer):
        def __init__(self) -> None:
            self.metrics, self.samples_seen = MetricsProcessor(10**9), 0
            self.steps = ShardedSteps(self.build, state={"trainer": self}, **asked)

        def build(self, mesh: Any) -> Any:
            self.model, self.optimizer, self.lr_scheduler = build_for(job, mesh)
            return self.model, self.optimizer, self.lr_scheduler

        def forward_backward(self, step: OpenStep, batch: tuple[torch.Tensor, ...]) -> None:
            record.saw(step, batch[2])
            super().forward_backward(step, batch)

        def clip_gradients(self) -> torch.Tensor:
            return super().clip_gradients().full_tensor()

        def train(self) -> None:
            while (step := self.steps.begin()) is not None:
                if self.train_step(step):
                    record.committed(step, step.commit())

    made = Sharded()
    made.train()
    assert made.samples_seen == job.epochs * job.samples, "each sample counted once, also by who joined"
    return made.model

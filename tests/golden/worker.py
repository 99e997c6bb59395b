"""One worker's process: a training script as users write it, that also writes down which samples it trained."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from torch.nn import functional
from torch.utils.data import WeightedRandomSampler

from remora.script import channel
from remora.torch import Loop, ShardedStream
from remora.torch.group import PeerLost
from tests.golden.forks import begin_as_a_script
from tests.golden.gate import Gate
from tests.golden.subjects import Parts, PlacedStream, Samples, Stream, network


@dataclass(frozen=True)
class Job:
    """What to train."""

    network: str = "mlp"
    exactness: str = "bitwise"
    #: 95 samples in batches of 20: the last step of every epoch is uneven.
    samples: int = 95
    global_batch: int = 20
    shards: int = 6
    micro_batch: int | None = None
    epochs: int = 8
    seed: int = 7
    is_stream: bool = False
    #: A stream that knows its place ("placed"), or one for each shard ("sharded").
    stream: str = ""
    num_workers: int = 0
    #: After this step its first layer, frozen until then, is trained too.
    thaws_after: int | None = None
    #: A sample that is not a number, whose batch is left out after a rollback.
    damaged: int | None = None
    #: The script asks for a checkpoint of this step.
    keeps: int | None = None
    #: It asks for no step after this one.
    stops_after: int | None = None
    #: Steps from one check of each other's shards to the next.
    verify_every: int | None = None
    #: Samples are drawn by weight, some several times in an epoch.
    is_weighted: bool = False
    #: Steps from one evaluation to the next.
    evaluates: int | None = None
    #: The worker in this slot is killed in its first evaluation.
    dies_evaluating: int | None = None

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.samples // self.global_batch)


@dataclass(frozen=True)
class BitFlip:
    """From this step on the machine of the workers in these slots computes one bit of a gradient wrongly."""

    slots: tuple[int, ...]
    step: int
    #: It does so in the first computation only.
    is_once: bool = False
    #: Which one: rounding may hide the lowest one in the weights.
    bit: int = 0


@dataclass(frozen=True)
class Mishap:
    """At this step the worker in this slot does not hear the result that all others hear."""

    slot: int
    step: int


def work(
    job: Job,
    slot: int,
    out: str,
    variables: dict[str, str],
    end: socket.socket | None,
    mishap: Mishap | BitFlip | None,
) -> None:
    """Body of a process."""
    begin_as_a_script()
    os.setpgid(0, 0)
    os.environ.update(variables)
    if end is not None:
        os.environ[channel.FD_VARIABLE] = str(end.detach())
    torch.set_num_threads(1)
    train(job, slot, Path(out), mishap)


def train(job: Job, slot: int, out: Path, mishap: Mishap | BitFlip | None) -> None:
    model = network(job.network)
    if job.thaws_after is not None:
        model[0].requires_grad_(False)
    if job.exactness == "bitwise":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    else:
        # Adam divides by the size of the gradient, so where the true gradient is zero (the bias of attention's keys) it
        # turns a rounding error into a full step: a bound of 1e-5 can hold for optimizers without that only.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps)
    parts = Parts(job.samples)
    data = (Stream if job.is_stream else Samples)(job.samples)
    if job.stream:
        data = PlacedStream(job.samples) if job.stream == "placed" else ShardedStream(parts)
    if job.damaged is not None:
        data.features[job.damaged] = float("nan")
    loop = Loop(
        model,
        optimizer,
        data=data,
        nonfinite=None if job.damaged is None else "rollback",
        global_batch=job.global_batch,
        shards=job.shards,
        micro_batch=job.micro_batch,
        epochs=job.epochs if job.stream != "sharded" else None,
        total_steps=job.steps if job.stream == "sharded" else None,
        seed=job.seed,
        scheduler=scheduler,
        exactness=job.exactness,  # type: ignore[arg-type]
        num_workers=job.num_workers,
        verify_every=job.verify_every,
        sampler=WeightedRandomSampler([1.0, 3.0, *[2.0] * (job.samples - 2)], job.samples)
        if job.is_weighted
        else None,
    )
    if isinstance(mishap, BitFlip) and slot in mishap.slots:
        _flip(loop, model, mishap)
    elif isinstance(mishap, Mishap) and slot == mishap.slot:
        _miss(loop, mishap.step)
    gate = Gate(out)
    with (out / f"samples-{slot}.jsonl").open("a") as record:
        for step in loop:
            loss = step.backward(watched(record, step.number))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step.report(loss=loss)
            if job.evaluates is not None and step.number % job.evaluates == 0:
                evaluate(loop, job, step.number, slot, out)
            if step.number == job.thaws_after:
                model[0].requires_grad_(True)
            if step.number == job.keeps:
                loop.checkpoint()
            if step.number == job.stops_after:
                loop.stop()
            gate.stand(step.number)
    if job.stream:
        reads = [data.reads] if job.stream == "placed" else [one.reads for _, one in parts.made]
        (out / f"reads-{slot}").write_text(str(sum(reads)))
    torch.save(model.state_dict(), out / f"weights-{slot}.pt")


class Evaluating(Protocol):
    """A job whose workers evaluate."""

    @property
    def dies_evaluating(self) -> int | None: ...


def evaluate(loop: Any, job: Evaluating, step: int, slot: int, out: Path) -> None:
    """Evaluate twice, the second time a stream, and write down what comes out where it is a number."""

    def compute(model: torch.nn.Module, batch: Any) -> Any:
        (out / f"evaluates-{slot}").touch()
        if job.dies_evaluating == slot:
            # The others have the result of the step then.
            while len(list(out.glob("evaluates-*"))) < loop.world.world_size:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        features, labels, _ = batch
        scores = model(features)
        right = (scores.argmax(1) == labels).sum()
        return functional.cross_entropy(scores, labels), {"accuracy": (right, len(labels))}

    for data in (Samples(29), Stream(19)):
        found = loop.evaluate(data, compute, batch_size=3)
        if math.isnan(found["accuracy"]):
            continue
        with (out / f"evaluations-{slot}.jsonl").open("a") as record:
            record.write(json.dumps([step, type(data).__name__, found]) + "\n")


def watched(record: TextIO, step: int) -> Any:
    """The function for `backward`; it writes down what the model is about to see."""

    def compute(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        features, labels, numbers = batch
        record.write(json.dumps([step, numbers.tolist()]) + "\n")
        record.flush()
        scores = model(features)
        return functional.cross_entropy(scores, labels), {
            "accuracy": (scores.argmax(1) == labels).float().mean()
        }

    return compute


def _flip(loop: Loop, model: torch.nn.Module, flip: BitFlip) -> None:
    """Change a bit of one number of a gradient, as a faulty machine does."""
    flipped: list[int] = []

    def wrong(gradient: torch.Tensor) -> torch.Tensor:
        step = loop.steps_done + 1
        if step < flip.step or (flip.is_once and flipped):
            return gradient
        flipped.append(step)
        bits = gradient.detach().clone()
        bits.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << flip.bit)
        return bits

    next(iter(model.parameters())).register_hook(wrong)


def _miss(loop: Loop, step: int) -> None:
    """Let this worker lose a result after it gave its own share, once."""
    reduction = loop._reduction
    finish = reduction.finish

    def missing() -> torch.Tensor:
        notes = finish()
        if loop.steps_done == step - 1 and not missed:
            missed.append(step)
            reduction._flats = None
            reduction.group.break_off("the result was missed on purpose")
            raise PeerLost("the result was missed on purpose")
        return notes

    missed: list[int] = []
    reduction.finish = missing  # type: ignore[method-assign]


def _warm_up() -> None:
    """What torch imports when it is first used: workers are forked from a process that has done it."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    for optimizer in (torch.optim.AdamW([parameter]), torch.optim.SGD([parameter])):
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
        optimizer.step()
    for _ in torch.utils.data.DataLoader([1, 2], num_workers=1):
        pass


torch.set_num_threads(1)
_warm_up()

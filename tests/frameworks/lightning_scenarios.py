"""What a Trainer of Lightning does alone and with workers that are lost, join and resume, each as facts for tests.

usage: python -m tests.frameworks.lightning_scenarios FOLDER DESCRIPTOR

Runs under the interpreter that has lightning, and is asked as `trainer_scenarios.py` is.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from remora.script import channel
from tests.frameworks.lightning_worker import LightningJob, error_of, work
from tests.frameworks.trainer_scenarios import digest_of, serve
from tests.golden.driver import Driver, Worker


class LightningDriver(Driver):
    body: Callable[..., None] = staticmethod(work)

    def __init__(self, job: LightningJob, out: Path, **variables: str) -> None:
        super().__init__(job, out, **variables)
        #: What was reported, by step.
        self.reported: dict[int, dict[str, float]] = {}

    def _take(self, worker: Worker, message: channel.Message) -> None:
        if message["type"] == "report":
            self.reported[message["step"]] = message["metrics"]
        super()._take(worker, message)

    def lose_node(self, slot: int) -> None:
        """A worker dies with the files that it wrote."""
        self.kill(slot)
        shutil.rmtree(self.out / f"best-{slot}", ignore_errors=True)

    def facts(self) -> dict[str, Any]:
        """What the worker of rank 0 holds at the end, and the messages that the supervisor received."""
        found = [json.loads((self.out / f"found-{one.slot}.json").read_text()) for one in self.living]
        (first,) = [one for one in found if one["is_first"]]
        # Of one node alone: the files, and what it has seen since it joined.
        own = {name: first[name] for name in ("is_first", "epoch_metrics", "files", "has_best_file")}
        weights = self.weights()
        return {
            **first,
            "same_on_all": all({**one, **own} == first for one in found)
            and all(_ends_with(first["epoch_metrics"], one["epoch_metrics"]) for one in found),
            "weights": {name: one.double().sum().item() for name, one in weights.items()},
            "digest": digest_of(weights),
            "reported": {str(step): metrics for step, metrics in sorted(self.reported.items())},
            "record": {str(step): samples for step, samples in self.record().items()},
            "world_sizes": self.world_sizes,
        }


def _ends_with(whole: list[float], end: list[float]) -> bool:
    return whole[len(whole) - len(end) :] == end


def alone(job: LightningJob, out: Path) -> dict[str, Any]:
    with LightningDriver(job, out) as driver:
        driver.start(1)
        driver.finish()
        return driver.facts()


def losing_rank_0(job: LightningJob, out: Path, at: int = 7) -> dict[str, Any]:
    """Three workers; that of rank 0 dies, and another one joins."""
    with LightningDriver(job, out) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(at)
        driver.lose_node(0)
        driver.recover()
        driver.reach(at + 5)
        driver.admit(joiner)
        driver.finish()
        return driver.facts()


def resuming(job: LightningJob, out: Path) -> dict[str, Any]:
    """A checkpoint of three workers, from which two go on, on a node without the files of ModelCheckpoint."""
    out.mkdir()
    with LightningDriver(job, out / "first") as first:
        first.start(3)
        first.reach(8)
        saved = first.checkpoint()
        for worker in first.living:
            first.lose_node(worker.slot)
    folder = out / "first" / f"checkpoint-{saved}"
    with LightningDriver(job, out / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(2)
        second.finish()
        return {**second.facts(), "saved": saved}


def losing_rank_0_while_it_validates(job: LightningJob, out: Path) -> dict[str, Any]:
    """And a worker that waits to join gets into the next group."""
    job = replace(job, is_slow_to_validate=True)
    with LightningDriver(job, out) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(3)
        driver.wait(
            lambda: (out / "validates-1").exists() and (out / "validates-2").exists(), "they validate"
        )
        driver.lose_node(0)
        joiner.waits = False
        driver.part()
        has_validated = bool(list(out.glob("validated-*")))
        (out / "go").touch()
        driver.regroup()
        driver.finish()
        return {**driver.facts(), "has_validated": has_validated}


def compared(job: LightningJob, out: Path, **others: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return {name: run(job, out / name) for name, run in {"alone": alone, **others}.items()}


def same_as_trainer(out: Path) -> dict[str, Any]:
    job = LightningJob({"val_check_interval": 3}, samples=100, shuffle=False, is_still=True)
    arguments = {"accumulate_grad_batches": 4, "val_check_interval": 12}
    plain = replace(job, strategy=None, arguments={**job.arguments, **arguments})
    return {"plain": alone(plain, out / "plain"), **compared(job, out)}


def lost(out: Path) -> dict[str, Any]:
    return compared(LightningJob({"val_check_interval": 3}), out, lost=losing_rank_0, resumed=resuming)


def by_epoch(out: Path) -> dict[str, Any]:
    job = LightningJob({"precision": "bf16-mixed", "accumulate_grad_batches": 2}, by_epoch=True, batch_size=3)
    return compared(job, out, lost=losing_rank_0, resumed=resuming)


def stopped(out: Path) -> dict[str, Any]:
    job = LightningJob({"max_epochs": 40, "val_check_interval": 2}, patience=3, learning_rate=0.1)
    return compared(job, out, lost=losing_rank_0)


def validating(out: Path) -> dict[str, Any]:
    job = LightningJob({"max_epochs": 3, "val_check_interval": 4})
    return compared(job, out, lost=losing_rank_0_while_it_validates)


#: In a script that is alone.
REFUSED: dict[str, LightningJob] = {
    "manual": LightningJob({"gradient_clip_val": None}, fault="manual"),
    "own backward": LightningJob(fault="own backward"),
    "two loaders": LightningJob(fault="two loaders"),
    "no loader": LightningJob(fault="no loader"),
    "metric": LightningJob(fault="metric"),
    "sum": LightningJob(fault="sum"),
    "now and then": LightningJob(fault="now and then"),
    "no loss": LightningJob(fault="no loss"),
    "ends an epoch": LightningJob(fault="ends an epoch"),
    "part of an epoch": LightningJob({"limit_train_batches": 2}),
    "by the clock": LightningJob({"max_time": "00:01:00:00"}),
    "fits twice": LightningJob({"max_epochs": 1}, fault="fits twice"),
    "own checkpoint": LightningJob({"max_epochs": 1}, fault="own checkpoint"),
    "no end": LightningJob({"max_epochs": -1}, by_epoch=True),
}
#: In a group of two workers.
REFUSED_TOGETHER = {
    "no shards": LightningJob(strategy={}),
    "sizes": LightningJob(strategy={"shards": 4, "global_batch": 24}),
}


def refused(out: Path) -> dict[str, Any]:
    """What is said to scripts that cannot be elastic."""
    out.mkdir(exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    process = context.Process(target=_refused, args=(out, queue))
    process.start()
    found: dict[str, Any] = queue.get()
    process.join()
    return found


def _refused(out: Path, queue: Any) -> None:
    found = {name: error_of(job, out) for name, job in REFUSED.items()}
    os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    found.update({name: error_of(job, out) for name, job in REFUSED_TOGETHER.items()})
    queue.put(found)


SCENARIOS = {one.__name__: one for one in (same_as_trainer, lost, by_epoch, stopped, validating, refused)}

if __name__ == "__main__":
    serve(SCENARIOS, ["tests.frameworks.lightning_worker", "remora.integrations.lightning"])

"""What the Trainer does alone and with workers that are lost, join and resume, each as facts for tests.

usage: python -m tests.frameworks.trainer_scenarios FOLDER DESCRIPTOR

Runs under the interpreter that has transformers.  It reads names of scenarios, a line each, writes `FOLDER/NAME.json`,
and then the name to the file descriptor.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.frameworks.exported_model import exported
from tests.frameworks.trainer_worker import TrainerJob, error_of, trainer_of, work
from tests.golden.driver import Driver

#: Losses are averaged over all tokens of 20 samples: 4 shards, or 4 batches that one process adds up.
PLAIN = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 4}
EVALUATES = {"eval_strategy": "steps", "eval_steps": 5}
BEST = {
    **EVALUATES, "save_strategy": "steps", "save_steps": 5, "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss", "learning_rate": 0.3, "lr_scheduler_type": "constant",
}  # fmt: skip


class TrainerDriver(Driver):
    body: Callable[..., None] = staticmethod(work)

    def facts(self) -> dict[str, Any]:
        """What the worker of rank 0 holds at the end, and the messages that the supervisor received."""
        found = [json.loads((self.out / f"found-{one.slot}.json").read_text()) for one in self.living]
        (first,) = [one for one in found if one["is_first"]]
        others = [{**one, "is_first": True} for one in found]
        weights = self.weights()
        return {
            **first,
            "same_on_all": all(_without_times(one) == _without_times(first) for one in others),
            "weights": {name: one.double().sum().item() for name, one in weights.items()},
            "digest": digest_of(weights),
            "losses": {str(step): loss for step, loss in sorted(self.losses.items())},
            "record": {str(step): samples for step, samples in self.record().items()},
            "world_sizes": self.world_sizes,
        }


def digest_of(weights: dict[str, Any]) -> str:
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in weights.values())).hexdigest()


def _without_times(found: dict[str, Any]) -> dict[str, Any]:
    log = [
        {name: value for name, value in one.items() if not name.endswith(("_runtime", "_per_second"))}
        for one in found["log"]
    ]
    return {**found, "log": log}


def alone(job: TrainerJob, out: Path) -> dict[str, Any]:
    with TrainerDriver(job, out) as driver:
        driver.start(1)
        driver.finish()
        return driver.facts()


def losing_rank_0(job: TrainerJob, out: Path, at: int = 7) -> dict[str, Any]:
    """Three workers; that of rank 0 dies, and another one joins."""
    with TrainerDriver(job, out) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(at)
        driver.kill(0)
        driver.recover()
        driver.reach(at + 5)
        driver.admit(joiner)
        driver.finish()
        return driver.facts()


def resuming(job: TrainerJob, out: Path) -> dict[str, Any]:
    """A checkpoint of three workers, from which two go on."""
    out.mkdir()
    with TrainerDriver(job, out / "first") as first:
        first.start(3)
        first.reach(8)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    folder = out / "first" / f"checkpoint-{saved}"
    with TrainerDriver(job, out / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(2)
        second.finish()
        return {**second.facts(), "saved": saved}


def losing_rank_0_while_it_evaluates(job: TrainerJob, out: Path) -> dict[str, Any]:
    """And a worker that waits to join gets into the next group."""
    job = replace(job, is_slow_to_evaluate=True)
    with TrainerDriver(job, out) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(4)
        driver.wait(
            lambda: (out / "evaluates-1").exists() and (out / "evaluates-2").exists(), "they evaluate"
        )
        driver.kill(0)
        joiner.waits = False
        driver.part()
        has_evaluated = bool(list(out.glob("evaluated-*")))
        (out / "go").touch()
        driver.regroup()
        driver.finish()
        return {**driver.facts(), "has_evaluated": has_evaluated}


def compared(job: TrainerJob, out: Path, **others: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return {name: run(job, out / name) for name, run in {"alone": alone, **others}.items()}


def same_as_trainer(out: Path) -> dict[str, Any]:
    job = TrainerJob(
        {"train_sampling_strategy": "sequential", "include_num_input_tokens_seen": "all", **EVALUATES},
        {"shards": 4}, samples=100, dropout=0.0,
    )  # fmt: skip
    plain = replace(job, callback=None, arguments={**job.arguments, **PLAIN})
    return {"plain": alone(plain, out / "plain"), **compared(job, out)}


def streamed(out: Path) -> dict[str, Any]:
    return compared(
        TrainerJob({"max_steps": 24}, is_stream=True, fault="trains twice"), out, lost=losing_rank_0
    )


def scaled(out: Path) -> dict[str, Any]:
    return compared(TrainerJob(is_scaled=True), out, lost=losing_rank_0)


def lost(out: Path) -> dict[str, Any]:
    return compared(TrainerJob({**EVALUATES}), out, lost=losing_rank_0, resumed=resuming)


def grouped(out: Path) -> dict[str, Any]:
    job = TrainerJob({"train_sampling_strategy": "group_by_length", "bf16": True, "num_train_epochs": 4})
    return compared(job, out, lost=losing_rank_0)


def evaluating(out: Path) -> dict[str, Any]:
    job = TrainerJob({**EVALUATES, "per_device_eval_batch_size": 1, "num_train_epochs": 3}, patience=9)
    best = {"save_strategy": "steps", "save_steps": 5, "metric_for_best_model": "eval_loss"}
    job = replace(job, arguments={**job.arguments, **best, "load_best_model_at_end": True})
    return compared(job, out, lost=losing_rank_0_while_it_evaluates)


def best(out: Path) -> dict[str, Any]:
    return compared(TrainerJob(dict(BEST), patience=1), out, lost=losing_rank_0)


def sft(out: Path) -> dict[str, Any]:
    return compared(
        TrainerJob(callback={"shards": 4}, library="sft"), out, lost=losing_rank_0, resumed=resuming
    )


def dpo(out: Path) -> dict[str, Any]:
    return compared(
        TrainerJob(callback={"shards": 4}, library="dpo"), out, lost=losing_rank_0, resumed=resuming
    )


#: In a group of two workers.
REFUSED: dict[str, TrainerJob] = {
    "no shards": TrainerJob(callback={}),
    "sizes": TrainerJob(callback={"shards": 4, "global_batch": 24}),
    "auto_find_batch_size": TrainerJob({"auto_find_batch_size": True}),
    "batch_rebalance": TrainerJob({"train_sampling_strategy": "batch_rebalance"}),
    "enable_jit_checkpoint": TrainerJob({"enable_jit_checkpoint": True}),
    "no callback": TrainerJob(callback=None),
    "too little": TrainerJob({"dataloader_drop_last": True}, samples=15),
    "own loop": TrainerJob(fault="own loop"),
    "resume": TrainerJob(fault="resume"),
}
#: In a script that is alone.
REFUSED_ALONE = {"ends an epoch": TrainerJob(fault="ends an epoch")}


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
    found = {name: _error(job, out) for name, job in REFUSED_ALONE.items()}
    os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    found.update({name: _error(job, out) for name, job in REFUSED.items()})
    queue.put(found)


def _error(job: TrainerJob, out: Path) -> str:
    saved = _own_checkpoint(out) if job.fault == "resume" else None
    return error_of(trainer_of(job, out), resume_from_checkpoint=saved)


def _own_checkpoint(out: Path) -> str:
    """A folder that a Trainer has written."""
    folder = out / "checkpoint-5"
    trainer = trainer_of(TrainerJob(), out)
    trainer.save_model(str(folder))
    trainer.model.save_pretrained(folder)
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    return str(folder)


SCENARIOS = {
    one.__name__: one
    for one in (
        same_as_trainer,
        streamed,
        scaled,
        lost,
        grouped,
        evaluating,
        best,
        sft,
        dpo,
        refused,
        exported,
    )
}


def serve(scenarios: dict[str, Callable[[Path], dict[str, Any]]], preloaded: list[str]) -> None:
    """Run those that are asked for, in processes that have these modules."""
    folder, done = Path(sys.argv[1]), int(sys.argv[2])
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded)
    for line in sys.stdin:
        name = line.strip()
        (folder / name).mkdir()
        try:
            facts = scenarios[name](folder / name)
        except Exception:
            facts = {"error": traceback.format_exc()}
        (folder / f"{name}.json").write_text(json.dumps(facts))
        os.write(done, line.encode())


if __name__ == "__main__":
    serve(SCENARIOS, ["tests.frameworks.trainer_worker", "remora.integrations.transformers"])

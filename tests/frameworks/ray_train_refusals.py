"""Asks the shim for Ray Train for what it refuses, and writes what it says; in a process of its own, as Ray is changed.

usage: python -m remora.integrations.ray_train ray_train_refusals.py
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import ray.tune
from ray.train import Checkpoint, CheckpointUploadMode, RunConfig, ScalingConfig, ValidationConfig
from ray.train.v2.jax import JaxTrainer


class Callback(ray.train.UserCallback):
    """One that Ray's controller would call."""


def train(loop: Callable[[], Any] = lambda: None, **options: Any) -> Any:
    """A trainer that has these options, fitted."""
    return ray.train.torch.TorchTrainer(loop, **options).fit()


@ray.remote
def task() -> None:
    """What a worker of Ray would run."""


def in_loop() -> dict[str, str]:
    """What calls in the training loop say; the last one empties the folder of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.from_directory(folder)
        tries: dict[str, Callable[[], Any]] = {
            "upload_fn": lambda: ray.train.report({}, checkpoint, checkpoint_upload_fn=lambda *_: checkpoint),
            "no_upload": lambda: ray.train.report(
                {}, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
            ),
            "validation": lambda: ray.train.report({}, checkpoint, validation=True),
            "shard": lambda: ray.train.get_dataset_shard("train"),
            "all": ray.train.get_all_reported_checkpoints,
            "empty": lambda: ray.train.report({}, checkpoint),
        }
        return {name: said_by(call) for name, call in tries.items()}


def said_by(call: Callable[[], Any]) -> str:
    """The error of a call, in words; "" where there is none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Write everything as JSON into the file that the variable SAID names."""
    ray.init(address="auto")
    before: dict[str, Callable[[], Any]] = {
        "jax": lambda: JaxTrainer(lambda: None, scaling_config=ScalingConfig()).fit(),
        "datasets": lambda: train(datasets={"train": []}),
        "validation_config": lambda: train(validation_config=ValidationConfig(fn=lambda *_: {})),
        "callbacks": lambda: train(run_config=RunConfig(callbacks=[Callback()])),
        "runtime_env": lambda: train(run_config=RunConfig(worker_runtime_env={"pip": ["x"]})),
        "task": task.remote,
        "tuner": lambda: ray.tune.Tuner(lambda _: None),
        "tune": lambda: ray.tune.run(lambda _: None),
    }
    said = {name: said_by(call) for name, call in before.items()}
    os.environ["WORLD_SIZE"] = "3"
    said["workers"] = said_by(lambda: train(scaling_config=ScalingConfig(num_workers=2)))
    os.environ["WORLD_SIZE"] = "1"
    result = train(in_loop)
    said |= result.return_value
    said["second"] = said_by(train)
    Path(os.environ["SAID"]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()

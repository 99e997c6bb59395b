"""What a script of Ray Train may ask for and cannot have on Remora's workers, each with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ray.train.torch import TorchConfig, TorchTrainer

#: Other trainers, and what their jobs do instead.
_OTHER_TRAINERS = {
    "JaxTrainer": "call its training loop in the script, and write backend: jax",
    "TensorflowTrainer": "call its training loop in the script, and write backend: tensorflow",
    "XGBoostTrainer": "train with xgboost itself, in a job with one worker",
    "LightGBMTrainer": "train with lightgbm itself, in a job with one worker",
}


def check_trainer(trainer: Any, world_size: int) -> None:
    """Raise NotImplementedError for the first thing in a trainer that is not supported, with one sentence."""
    if (text := next(_refused_of_trainer(trainer, world_size), None)) is not None:
        raise NotImplementedError(text)


def _refused_of_trainer(trainer: Any, world_size: int) -> Iterator[str]:
    name = type(trainer).__name__
    if not isinstance(trainer, TorchTrainer):
        instead = _OTHER_TRAINERS.get(name, "use TorchTrainer")
        yield f"{name} is not one of the trainers that run on Remora's workers, TorchTrainer is: {instead}"
    if type(trainer.backend_config) is not TorchConfig:
        config = type(trainer.backend_config).__name__
        yield f"torch_config={config}(...) starts processes of its own: use TorchConfig"
    if trainer.datasets:
        yield (
            "datasets of TorchTrainer need a cluster of Ray: read the data in the training loop, with a DataLoader and"
            " ray.train.torch.prepare_data_loader"
        )
    if trainer.validation_config is not None:
        yield "validation_config starts tasks of Ray: validate in the training loop"
    yield from _refused_of_run(trainer.run_config)
    yield from _refused_of_scaling(trainer.scaling_config, world_size)


def _refused_of_run(config: Any) -> Iterator[str]:
    if config.callbacks:
        yield (
            "RunConfig(callbacks=...) are called by a controller of Ray, which is not there: call them in the training"
            " loop"
        )
    if config.worker_runtime_env:
        yield "RunConfig(worker_runtime_env=...) starts workers: write what it has into environment of the job"


def _refused_of_scaling(config: Any, world_size: int) -> Iterator[str]:
    if config.use_tpu:
        yield "ScalingConfig(use_tpu=True): Remora has no TPUs"
    # 0 is Ray's local mode, which takes every number.
    if config.max_workers and world_size > config.max_workers:
        yield (
            f"ScalingConfig(num_workers={config.num_workers}) is for at most {config.max_workers} workers, and the job"
            f" has {world_size}: write the same number into workers of the job and into the script"
        )


def check_report(checkpoint_upload_fn: Any, is_upload: bool, validation: Any) -> None:
    """Raise NotImplementedError for what `ray.train.report` is asked for beside metrics and a checkpoint."""
    if checkpoint_upload_fn is not None:
        raise NotImplementedError(
            "ray.train.report(checkpoint_upload_fn=...): Remora stores checkpoints; leave it out"
        )
    if not is_upload:
        raise NotImplementedError(
            "ray.train.report(checkpoint_upload_mode=NO_UPLOAD): Remora resumes from what it stores; leave it out"
        )
    if validation:
        raise NotImplementedError(
            "ray.train.report(validation=...) starts tasks of Ray: validate in the training loop"
        )


def refuse_cluster(*_: Any, **__: Any) -> None:
    """In place of what connects to a cluster of Ray when a task, an actor, an object or a dataset is made."""
    raise NotImplementedError(
        "this script uses a cluster of Ray (ray.remote, ray.get, ray.put, ray.data), and a worker of Remora has none:"
        " only the calls of ray.train and ray.train.torch are there"
    )


def refuse_tune(*_: Any, **__: Any) -> None:
    """In place of what starts Ray Tune."""
    raise NotImplementedError(
        "Ray Tune starts trials of its own: submit the job with array, which makes a job for each set of parameters"
    )


def refuse_dataset_shard() -> None:
    """In place of `ray.train.get_dataset_shard`."""
    raise NotImplementedError(
        "ray.train.get_dataset_shard needs a cluster of Ray: use a DataLoader and ray.train.torch.prepare_data_loader"
    )


def refuse_all_checkpoints() -> None:
    """In place of `ray.train.get_all_reported_checkpoints`."""
    raise NotImplementedError(
        "ray.train.get_all_reported_checkpoints: a worker has the newest checkpoint alone; use get_checkpoint"
    )

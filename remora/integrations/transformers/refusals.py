"""What a Trainer may be asked for and cannot have with `Loop`, each with one sentence that says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import Trainer

#: Optimizers that change weights in the backward pass.
_IN_BACKWARD = ("lomo", "adalomo")
_WHOLE = "and Loop needs the whole model on each of them"


def check_supported(trainer: Trainer, trial: Any) -> None:
    """Raise ValueError for the first thing that is not supported."""
    if (text := next(_refused(trainer, trial), None)) is not None:
        raise ValueError(text)


def _refused(trainer: Trainer, trial: Any) -> Iterator[str]:
    args = trainer.args
    if trainer.is_deepspeed_enabled or args.deepspeed:
        yield (
            f"deepspeed in TrainingArguments divides the model among the workers, {_WHOLE}: leave it out; or leave out"
            " RemoraCallback with its import, and write backend: deepspeed into the job"
        )
    if trainer.is_fsdp_enabled or args.fsdp:
        yield f"fsdp in TrainingArguments divides the model among the workers, {_WHOLE}: leave it out"
    if args.parallelism_config is not None or trainer.is_distributed_loading_by_transformers:
        yield f"parallelism_config divides the model among the workers, {_WHOLE}: leave it out"
    if trainer.is_model_parallel:
        yield "the model lies on several devices (device_map), and Loop trains models that fit on one: leave it out"
    if trial is not None:
        yield "hyperparameter_search trains several models in one script: submit a job for each of them"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size may find another size on each worker: set per_device_train_batch_size"
    if args.train_sampling_strategy == "batch_rebalance":
        yield (
            "train_sampling_strategy='batch_rebalance' makes batches that depend on the number of workers: use"
            " 'random', 'sequential' or 'group_by_length'"
        )
    optimizer = str(getattr(args.optim, "value", args.optim))
    if optimizer in _IN_BACKWARD or optimizer.endswith("_layerwise"):
        yield (
            f"optim='{optimizer}' changes weights before the gradients of other workers are added: use one that does"
            " so in its step, such as 'adamw_torch'"
        )
    if args.enable_jit_checkpoint:
        yield "enable_jit_checkpoint writes a checkpoint at a signal, which Remora does by itself: leave it out"

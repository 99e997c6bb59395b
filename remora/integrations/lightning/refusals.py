"""What a Trainer may be asked for and cannot have with `Steps`, each with one sentence that says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.utilities.model_helpers import is_overridden


def check_supported(trainer: Trainer) -> None:
    """Raise ValueError for the first thing that is not supported."""
    if (text := next(_refused(trainer), None)) is not None:
        raise ValueError(text)


def _refused(trainer: Trainer) -> Iterator[str]:
    module = trainer.lightning_module
    if not module.automatic_optimization:
        yield (
            "automatic_optimization is False, and RemoraStrategy makes the calls of a step: leave it True, or write the"
            " loop with remora.torch.Steps"
        )
    if len(trainer.optimizers) != 1:
        yield f"configure_optimizers returns {len(trainer.optimizers)} optimizers, and RemoraStrategy needs one"
    if is_overridden("backward", module, LightningModule):
        yield "the module has a backward of its own, and Steps goes back through the loss: leave it out"
    if trainer.ckpt_path is not None:
        yield (
            f"ckpt_path ({trainer.ckpt_path}) is a file of Lightning: Remora resumes by itself from its own"
            " checkpoints, so leave it out, or load its weights into the module before fit()"
        )
    limit = trainer.limit_train_batches
    if trainer.fast_dev_run or not (limit is None or (isinstance(limit, float) and limit == 1.0)):
        yield (
            "limit_train_batches and fast_dev_run leave samples of an epoch out, and Steps reads each once: use"
            " max_steps, or a smaller dataset"
        )
    if trainer.reload_dataloaders_every_n_epochs:
        yield "reload_dataloaders_every_n_epochs changes the data in training: give the dataset set_epoch(epoch)"
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        yield "val_check_interval is a time, and workers would validate at different steps: give a number of batches"
    if (trainer.max_epochs in (None, -1)) and trainer.max_steps == -1:
        yield "training has no end: give Trainer max_epochs or max_steps"
    for one in trainer.callbacks:
        if isinstance(one, Timer):
            yield "max_time and Timer end training by the clock, at another step on each worker: use max_steps"
        if isinstance(one, GradientAccumulationScheduler) and one.scheduling.keys() - {0}:
            yield "GradientAccumulationScheduler changes the batch of a step: use Trainer(accumulate_grad_batches=...)"
        if isinstance(one, StochasticWeightAveraging | LearningRateFinder):
            yield f"{type(one).__name__} replaces schedulers, or trains by itself, beside Steps: leave it out"

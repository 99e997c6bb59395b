"""Where a Trainer's own training loop is replaced: after what `train()` prepares, and before its first step."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from remora import training
from remora.integrations.transformers.callback import RemoraCallback


def take_over() -> None:
    """From now on a Trainer with a RemoraCallback trains with `Loop`."""
    own = Trainer._inner_training_loop

    def _inner_training_loop(
        self: Trainer,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        callback = RemoraCallback.of(self)
        if callback is not None:
            return callback.train(self, resume_from_checkpoint, trial, ignore_keys_for_eval)
        if training.world().world_size > 1:
            raise RuntimeError(
                f"this {type(self).__name__} has no RemoraCallback, so that each worker would train a model of its"
                " own: add callbacks=[RemoraCallback(...)]"
            )
        return own(self, batch_size, args, resume_from_checkpoint, trial, ignore_keys_for_eval)

    Trainer._inner_training_loop = _inner_training_loop

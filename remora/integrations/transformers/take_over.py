"""Where a Trainer's own training loop is replaced: after what `train()` prepares, and before its first step."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from remora import training
from remora.integrations.transformers.callback import RemoraCallback

#: What a training loop needs of a Trainer beside its documented methods.
NEEDED = (
    "_inner_training_loop", "_init_training_state", "_prepare_for_training", "_maybe_log_save_evaluate",
    "_finalize_training", "_determine_best_metric", "_save_checkpoint", "_clip_grad_norm", "_get_grad_norm",
    "_track_num_input_tokens", "_get_learning_rate", "loss_is_scaled_for_ga",
)  # fmt: skip


def check_version(trainer: type) -> None:
    """Raise ImportError for a Trainer of a version that works otherwise."""
    if missing := [name for name in NEEDED if not hasattr(trainer, name)]:
        raise ImportError(
            f"transformers {transformers.__version__} has no Trainer.{missing[0]}, and RemoraCallback needs it: install"
            " transformers 5.19 or newer, and a newer Remora where that is not enough"
        )


def take_over() -> None:
    """From now on a Trainer with a RemoraCallback trains with `Loop`; raises ImportError as `check_version` does."""
    check_version(Trainer)
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

"""The one line of a script: a callback that lets its Trainer train with `Loop`."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from remora.torch.agreement import CHECK_EVERY
from remora.torch.loop_settings import Exactness
from remora.torch.nonfinite import Nonfinite

#: What the Trainer logs of a step, and `Loop` reports of every step by itself.
_OF_EACH_STEP = frozenset({"loss", "grad_norm", "learning_rate", "step"})


class RemoraCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not checked
    """Lets the Trainer to which it is given lose and gain workers without another result.

    A step has `per_device_train_batch_size x gradient_accumulation_steps x shards` samples, whatever the number of
    workers, which is at most `shards`.

    - `shards`: parts of a step that workers carry.  Left out it follows from `global_batch`, from `elastic` in the
      job's specification, or is 1 where the script runs by hand.
    - `global_batch`: samples of a step; only needed in place of `shards`.
    - `exactness`, `nonfinite`, `check_every`: those of `remora.torch.Loop`.

    `train()` raises ValueError for arguments that cannot be elastic, with what to do instead.
    """

    def __init__(
        self,
        *,
        shards: int | None = None,
        global_batch: int | None = None,
        exactness: Exactness | None = None,
        nonfinite: Nonfinite | None = None,
        check_every: int = CHECK_EVERY,
    ) -> None:
        self.shards = shards
        self.global_batch = global_batch
        self.exactness = exactness
        self.nonfinite = nonfinite
        self.check_every = check_every
        self._training: Any = None
        self._logged: dict[str, float] = {}

    @classmethod
    def of(cls, trainer: Trainer) -> RemoraCallback | None:
        """The one that a Trainer was given."""
        return next((one for one in trainer.callback_handler.callbacks if isinstance(one, cls)), None)

    def train(
        self, trainer: Trainer, resume_from_checkpoint: str | None, trial: Any, ignore_keys: list[str] | None
    ) -> TrainOutput:
        """Train; raises ValueError and RuntimeError where that cannot be done as it is asked."""
        from remora.integrations.transformers.training_loop import TrainingLoop

        self._training = TrainingLoop(trainer, self, resume_from_checkpoint, trial)
        try:
            output: TrainOutput = self._training.run(ignore_keys)
            return output
        finally:
            self._training = None

    def take_logged(self) -> dict[str, float]:
        """Numbers that were logged since this was last called, such as those of an evaluation."""
        logged, self._logged = self._logged, {}
        return logged

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Refuse a Trainer whose own loop begins."""
        if self._training is None:
            raise RuntimeError(
                "this Trainer has a training loop of its own (_inner_training_loop), which cannot be elastic: use a"
                " Trainer that has that of transformers"
            )

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Leave a group that has lost a worker also in the middle of an evaluation."""
        if self._training is not None:
            self._training.check_group()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Keep what is logged for the report of the step."""
        numbers = {
            name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and name not in _OF_EACH_STEP
        }
        self._logged.update(numbers)

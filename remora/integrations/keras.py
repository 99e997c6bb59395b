"""Steps and metrics of Keras' `model.fit` for a job.

    from remora.integrations.keras import ReportSteps

    model.fit(x, y, epochs=20, validation_data=validation, callbacks=[backup, ReportSteps()])

Needs Keras 3; it reports nothing outside of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from remora import training

__all__ = ["ReportSteps"]


class ReportSteps(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports every batch that is trained as a step, with what Keras logs of it.

    Steps are counted by the optimizer, which a backup restores, so that one that is done again has its number again.
    What is known at the end of an epoch, such as `val_loss`, belongs to its last step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, float] = {}

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the step."""
        del batch
        self._newest = _numbers(logs)
        training.report(self._step(), self._newest, total_steps=self._total())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report what a validation has found."""
        del epoch
        found = _numbers(logs)
        if found.keys() - self._newest.keys():
            # A step is reported whole: its later report replaces the one before.
            training.report(self._step(), {**found, **self._newest}, total_steps=self._total())

    def _step(self) -> int:
        return int(self.model.optimizer.iterations)

    def _total(self) -> int | None:
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        return steps * epochs if steps and epochs else None


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items()}

"""What a Trainer knows beside model, optimizer and schedulers, as a part of the training state of `Steps`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer import call

from remora.integrations.lightning.checkpoint_io import RemoraCheckpointIO


class LightningProgress:
    """Saved with each checkpoint and given to workers that join: loops, callbacks, metrics and files."""

    def __init__(self, trainer: Trainer, files: RemoraCheckpointIO) -> None:
        self._trainer = trainer
        self._files = files
        #: Another worker or attempt has trained before, and this one validates what that was validating.
        self.is_restored = self.is_validating = False
        #: Sums of the epoch that are still to be added to those of this process, by key of the Trainer.
        self._sums: dict[str, list[torch.Tensor]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and dictionaries of these, and tensors."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        return {
            "loops": trainer.fit_loop.state_dict(),
            "callbacks": call._call_callbacks_state_dict(trainer),
            "should_stop": trainer.should_stop,
            "is_validating": trainer.validating,
            "metrics": [
                _numbers(connector._callback_metrics),
                _numbers(connector._logged_metrics),
                _numbers(connector._progress_bar_metrics),
            ],
            "sums": {**self._sums, **_sums(trainer)},
            "files": self._files.contents,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved; raises TypeError and KeyError for what another version has saved."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        self.is_restored, self.is_validating = True, bool(state["is_validating"])
        trainer.fit_loop.load_state_dict(state["loops"])
        folders = self._folders(state["callbacks"])
        call._call_callbacks_load_state_dict(trainer, {"callbacks": moved_paths(state["callbacks"], folders)})
        trainer.should_stop = state["should_stop"]
        found = [{name: torch.tensor(value) for name, value in one.items()} for one in state["metrics"]]
        connector._callback_metrics, connector._logged_metrics, connector._progress_bar_metrics = found
        self._sums = dict(state["sums"])
        self._files.replace(moved_paths(state["files"], folders))

    def _folders(self, callbacks: Mapping[str, Any]) -> dict[str, str]:
        """Where each ModelCheckpoint keeps its files here, by where it did when this was saved."""
        return {
            callbacks[one.state_key]["dirpath"]: one.dirpath
            for one in self._trainer.callbacks
            if isinstance(one, ModelCheckpoint) and one.state_key in callbacks
        }

    def go_on(self) -> None:
        """Let the loops go on after the last step: they take what was saved for a step that broke off otherwise.

        It is called when they have found their place.
        """
        self._trainer.fit_loop.restarting = False

    def add_sums(self) -> None:
        """Add the sums that were saved, where this process has begun its own."""
        for key, metric in self._trainer.fit_loop.epoch_loop._results.items():
            saved = self._sums.pop(key, None)
            if saved is None:
                continue
            value = saved[0].to(metric.value.device)
            metric._computed = None
            if metric.meta.is_mean_reduction:
                metric.cumulated_batch_size = metric.cumulated_batch_size + saved[1].to(metric.value.device)
            if metric.meta.is_mean_reduction or metric.meta.is_sum_reduction:
                metric.value = metric.value + value
            else:
                metric.value = metric.meta.reduce_fx(metric.value, value)


def moved_paths(value: Any, folders: Mapping[str, str]) -> Any:
    """A value of texts, lists and dictionaries in which paths of files in one folder lead to another one."""
    if isinstance(value, Mapping):
        return {moved_paths(key, folders): moved_paths(one, folders) for key, one in value.items()}
    if isinstance(value, list):
        return [moved_paths(one, folders) for one in value]
    if not isinstance(value, str):
        return value
    for before, now in folders.items():
        if value == before or value.startswith(f"{before}/"):
            return now + value.removeprefix(before)
    return value


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _sums(trainer: Trainer) -> dict[str, list[torch.Tensor]]:
    """Of what was logged in this epoch: the value, and for means the samples that it counts."""
    return {
        key: [metric.value, *([metric.cumulated_batch_size] if metric.meta.is_mean_reduction else [])]
        for key, metric in trainer.fit_loop.epoch_loop._results.items()
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset
    }

"""What a Trainer knows beside model, optimizer and scheduler, as a part of the training state of `Loop`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerState
from transformers.trainer_callback import ExportableState

from remora.integrations.transformers.own_metrics import OwnMetrics


class TrainerProgress:
    """Saved with each checkpoint and given to workers that join: logs, best metric, counters of callbacks."""

    def __init__(self, trainer: Trainer, own_metrics: OwnMetrics) -> None:
        self._trainer = trainer
        self._own_metrics = own_metrics
        #: The weights with the best metric, on the CPU, where they are to be loaded at the end.
        self.best: dict[str, torch.Tensor] = {}
        #: A step is logged, evaluated and saved: who joins meanwhile does it, too.
        self.is_evaluating = False
        #: When training began, by the clock of the Trainer for its speed; times between attempts do not count.
        self.began = time.time()

    def keep_best(self) -> None:
        """Keep the weights of now as the best ones: frozen ones, which are those of the start, are left out."""
        model = self._trainer.model
        frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
        self.best = {
            name: one.detach().to("cpu", copy=True)
            for name, one in model.state_dict().items()
            if isinstance(one, torch.Tensor) and name not in frozen
        }

    def load_best(self) -> None:
        """Give the model the best weights, where there are any."""
        if self.best:
            self._trainer.model.load_state_dict(self.best, strict=False)

    def state_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and dictionaries of these, and the tensors of the best weights."""
        trainer = self._trainer
        return {
            "state": _plain(dataclasses.asdict(trainer.state)),
            "callbacks": [[type(one).__name__, _plain(one.state())] for one in self._exportable()],
            "loss_since_log": float(trainer._tr_loss),
            "loss_before": float(trainer._total_loss_scalar),
            "last_logged": int(trainer._globalstep_last_logged),
            "flos": float(trainer.current_flos),
            "seconds": time.time() - self.began,
            "is_evaluating": self.is_evaluating,
            "own_metrics": self._own_metrics.state(),
            "best": dict(self.best),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved; raises TypeError and KeyError for what another version has saved."""
        trainer = self._trainer
        trainer.state = TrainerState(**state["state"])
        best = trainer.state.best_model_checkpoint
        if best is not None and not Path(best).is_dir():
            # It was written on the node of another worker; the best weights are here all the same.
            trainer.state.best_model_checkpoint = None
        for one, (name, saved) in zip(self._exportable(), state["callbacks"], strict=False):
            if type(one).__name__ == name:
                _restore(one, saved)
        trainer._tr_loss = torch.tensor(state["loss_since_log"], device=trainer.args.device)
        trainer._total_loss_scalar = state["loss_before"]
        trainer._globalstep_last_logged = state["last_logged"]
        trainer.current_flos = state["flos"]
        self.began = time.time() - state["seconds"]
        self.is_evaluating = state["is_evaluating"]
        self._own_metrics.restore(state["own_metrics"])
        self.best = dict(state["best"])

    def _exportable(self) -> Iterator[ExportableState]:
        for one in (*self._trainer.callback_handler.callbacks, self._trainer.control):
            if isinstance(one, ExportableState):
                yield one


def _restore(one: Any, saved: dict[str, Any]) -> None:
    for name, value in {**saved.get("args", {}), **saved.get("attributes", {})}.items():
        setattr(one, name, value)


def _plain(value: Any) -> Any:
    """As it is after it was written to a file of JSON, which the Trainer does with it, too."""
    return json.loads(json.dumps(value))

"""What `training_step` logs, as means over the whole step.

`self.log` is called for each micro-batch, on the worker that computes it, and again where a step is computed again.  So
what one micro-batch logs is taken out, averaged with the loss, and logged once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric

from remora.torch import OpenStep


class StepLogs:
    """Those of one module."""

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._signature = inspect.signature(type(module).log)
        #: The other arguments of `self.log`, by name.
        self._options: dict[str, dict[str, Any]] = {}
        #: What every call logs.
        self._names: frozenset[str] | None = None

    @contextmanager
    def apart(self) -> Iterator[dict[str, Any]]:
        """Inside, `self.log` of the module fills the result: numbers by name; raises TypeError for others."""
        found: dict[str, Any] = {}

        def log(*given: Any, **named: Any) -> None:
            options = dict(self._signature.bind(self._module, *given, **named).arguments)
            del options["self"]
            name, value = options.pop("name"), options.pop("value")
            _check(name, value, options)
            options.pop("batch_size", None)
            self._options[name] = options
            found[name] = value

        self._module.__dict__["log"] = log
        try:
            yield found
        finally:
            del self._module.__dict__["log"]
        self._names = frozenset(found) if self._names is None else self._names
        if self._names != found.keys():
            other = min(self._names ^ found.keys())
            raise TypeError(
                f"training_step logs {other!r} for one batch and not for another one, and means over a step need it of"
                " all: log the same names in every call"
            )

    def relay(self, step: OpenStep) -> None:
        """Log the means of a step, whose gradients are complete."""
        for name, value in step.metrics.items():
            mean = torch.tensor(value, device=self._module.device)
            self._module.log(name, mean, batch_size=step.total, **self._options.get(name, {}))

    def has(self, name: str) -> bool:
        """Whether a metric of the Trainer is one of these."""
        return name in self._options or name.removesuffix("_step").removesuffix("_epoch") in self._options


def _check(name: str, value: Any, options: dict[str, Any]) -> None:
    if isinstance(value, Metric):
        raise TypeError(
            f"training_step logs {name!r} as a torchmetrics.Metric, which keeps what this worker alone has seen: log a"
            " number, such as that of torchmetrics.functional, whose mean over all workers is logged"
        )
    if options.get("reduce_fx", "mean") not in ("mean", "avg", torch.mean):
        raise TypeError(
            f"training_step logs {name!r} with reduce_fx={options['reduce_fx']!r}, and a step has means over its"
            " samples: leave reduce_fx out"
        )

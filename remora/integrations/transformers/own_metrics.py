"""Metrics that a Trainer collects while it computes losses, as those of TRL do, as means over all workers.

`SFTTrainer` and others of TRL append to `_metrics["train"]` in `compute_loss`, once for each micro-batch, and log the
means.  What one worker collects depends on which shards it carries, and a step that is computed again after a loss
would count twice.  So what one micro-batch adds is taken out, averaged by `Loop` with the loss, and added once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: How names in `Loop`'s metrics begin.
PREFIX = "train/"
#: The number of tokens, which TRL counts from the start.
_TOKENS = "num_tokens"


class OwnMetrics:
    """Those of one Trainer; nothing where it has none."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        held = getattr(trainer, "_metrics", None)
        self._is_there = isinstance(held, dict) and isinstance(held.get("train"), dict)

    @contextmanager
    def apart(self) -> Iterator[dict[str, tuple[float, float]]]:
        """Inside, what is collected is that of one micro-batch; afterwards the result has it, with counts of 1."""
        found: dict[str, tuple[float, float]] = {}
        if not self._is_there:
            yield found
            return
        trainer = self._trainer
        held, tokens = trainer._metrics["train"], getattr(trainer, "_total_train_tokens", 0)
        trainer._metrics["train"] = defaultdict(list)
        try:
            yield found
            for name, values in trainer._metrics["train"].items():
                if name != _TOKENS and values:
                    found[PREFIX + name] = (sum(values) / len(values), 1.0)
            if _TOKENS in trainer._metrics["train"]:
                found[PREFIX + _TOKENS] = (float(trainer._total_train_tokens - tokens), 1.0)
        finally:
            trainer._metrics["train"] = held
            if hasattr(trainer, "_total_train_tokens"):
                trainer._total_train_tokens = tokens

    def take(self, means: dict[str, float], micro_batches: int) -> dict[str, float]:
        """Add what a step has, and take it out of `Loop`'s metrics: means over its micro-batches; returns them.

        The number of tokens, which is not one of a step, is not among them.
        """
        names = [name for name in means if self._is_there and name.startswith(PREFIX)]
        taken = {name.removeprefix(PREFIX): means.pop(name) for name in names}
        for name, value in taken.items():
            if name == _TOKENS:
                self._trainer._total_train_tokens += round(value * micro_batches)
                self._trainer._metrics["train"][name] = [self._trainer._total_train_tokens]
            else:
                self._trainer._metrics["train"][name].append(value)
        taken.pop(_TOKENS, None)
        return taken

    def state(self) -> dict[str, Any]:
        """What was collected since the last log, and the number of tokens."""
        if not self._is_there:
            return {}
        held = {
            name: [float(one) for one in values] for name, values in self._trainer._metrics["train"].items()
        }
        return {"held": held, "tokens": int(getattr(self._trainer, "_total_train_tokens", 0))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from that."""
        if not (self._is_there and state):
            return
        self._trainer._metrics["train"] = defaultdict(list, state["held"])
        if hasattr(self._trainer, "_total_train_tokens"):
            self._trainer._total_train_tokens = state["tokens"]

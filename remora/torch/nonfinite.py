"""What follows a step whose loss or gradients are not finite."""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

import torch

#: End with an error; leave the step out; or go back to the last snapshot and leave the batch out.
Nonfinite = Literal["stop", "skip", "rollback"]

#: Steps between two snapshots that a rollback can go to.
SNAPSHOT_EVERY = 50
#: Batches that a training leaves out at most.
MOST_ROLLBACKS = 10
#: Steps in a row that are left out at most.
MOST_SKIPS = 20


class NotFinite(ArithmeticError):
    """The loss or the gradients of a step are not finite, and no remedy that `nonfinite` allows is left."""


def what_is_not_finite(loss: float, gradients: Iterable[torch.Tensor | None]) -> str | None:
    """`loss` or `gradient`; None where both are finite.  All workers of a step find the same."""
    if not math.isfinite(loss):
        return "loss"
    held = [one for one in gradients if one is not None and one.numel()]
    if not held:
        return None
    largest = torch.stack([one.float() for one in torch._foreach_norm(held, float("inf"))])
    return None if bool(torch.isfinite(largest).all()) else "gradient"


def is_checked(policy: Nonfinite | None, *, is_scaled: bool) -> bool:
    """Whether the loop checks for it; a GradScaler lets gradients overflow on purpose, and skips such steps itself."""
    return policy is not None and not (policy == "skip" and is_scaled)


def left_out_text(skips: int, what: str, step: int) -> str:
    """The log line for a step that is left out, the last of `skips` in a row; raises NotFinite for too many."""
    if skips > MOST_SKIPS:
        raise NotFinite(f"the {what} of step {step} is not finite, like {MOST_SKIPS} before it")
    return f"the {what} of step {step} is not finite: its gradients are left out"


def check_rollbacks(left_out: int, what: str, step: int) -> None:
    """Raise NotFinite where the most batches that may be left out have been."""
    if left_out >= MOST_ROLLBACKS:
        raise NotFinite(
            f"the {what} of step {step} is not finite, after {MOST_ROLLBACKS} batches were left out"
        )


def rollback_text(what: str, step: int, back_to: int, epoch: int, place: int) -> str:
    """The log line for a rollback."""
    return (
        f"the {what} of step {step} is not finite: training goes back to step {back_to} and leaves out batch {place} of"
        f" epoch {epoch}"
    )


def snapshot(state: Mapping[str, Any], to_host: Container[str]) -> dict[str, Any]:
    """A copy of a captured state; tensors of the parts of these names lie in host memory."""
    parts = {name: _copied(part, is_moved=name in to_host) for name, part in dict(state["parts"]).items()}
    rest = {name: value for name, value in state.items() if name != "parts"}
    return {**copy.deepcopy(rest), "parts": parts}


def _copied(value: Any, *, is_moved: bool) -> Any:
    if isinstance(value, torch.Tensor):
        one = value.detach()
        return one.to("cpu", copy=True) if is_moved else one.clone()
    if isinstance(value, Mapping):
        return {key: _copied(one, is_moved=is_moved) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one, is_moved=is_moved) for one in value)
    return copy.deepcopy(value)

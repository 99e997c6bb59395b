"""One worker's copy of the model, and of all else that training goes on from where each worker holds the whole."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch

from remora.torch.agreement import tensors_of
from remora.torch.optimizers import Optimizers
from remora.torch.state import LoopState, Progress, Stateful

#: Epoch and place of a batch.
Batch = tuple[int, int]


class Replica:
    """The model with its optimizers and what else is saved; raises TypeError and ValueError for what cannot be."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Optimizers,
        scheduler: Stateful | None,
        scaler: Any,
        extra: Mapping[str, Stateful] | None,
        data_order: Mapping[str, int | str | bool],
    ) -> None:
        self.model = model
        #: All, also those that are frozen.
        self.parameters = dict(model.named_parameters())
        #: Names of those that have gradients.
        self._trained = _trained(self.parameters)
        self._state = LoopState(_parts(model, optimizers, scheduler, scaler, extra), data_order)
        #: What else is saved, that only the script changes.
        self._extra = dict(extra or {})
        #: What is saved beside model and optimizers.
        self.saved_beside = [*self._extra.values(), *([scheduler] if scheduler is not None else [])]

    def capture(
        self, progress: Progress, left_out: Sequence[Batch], only: Container[str] | None = None
    ) -> dict[str, Any]:
        """The state of training, with the names of the parameters that are not frozen and the batches left out."""
        return {
            **self._state.capture(progress, only),
            "trained": list(_trained(self.parameters)),
            "left_out": [list(one) for one in left_out],
        }

    def restore(self, state: Mapping[str, Any]) -> tuple[Progress, list[Batch]]:
        """Go on from a captured state, with this progress and these batches left out.

        Raises CheckpointUnusable.
        """
        progress = self._state.restore(state)
        # The script may have frozen and unfrozen some on its way here.
        if (trained := state.get("trained")) is not None:
            for name, one in self.parameters.items():
                one.requires_grad_(name in trained)
        return progress, [(int(epoch), int(place)) for epoch, place in state.get("left_out", ())]

    def held(self) -> dict[str, torch.Tensor]:
        """What all workers hold alike between two steps."""
        extra = {f"state[{name!r}]": part.state_dict() for name, part in self._extra.items()}
        return {**self.parameters, **dict(tensors_of(extra))}

    def gradients(self) -> Iterator[torch.Tensor | None]:
        """Of all parameters."""
        return (one.grad for one in self.parameters.values())

    def drop_gradients(self) -> None:
        """Let optimizers change nothing."""
        for one in self.parameters.values():
            one.grad = None

    def newly_trained(self) -> list[torch.nn.Parameter] | None:
        """All parameters to train, where some were frozen or unfrozen since this was called last; None otherwise.

        Raises RuntimeError where there is none.
        """
        trained = _trained(self.parameters)
        if trained == self._trained:
            return None
        if not trained:
            raise RuntimeError(
                "the model has no parameter to train: leave at least one that requires a gradient"
            )
        self._trained = trained
        return [self.parameters[name] for name in trained]

    def check_names(self) -> None:
        """Raise RuntimeError where layers were replaced: a worker that joins or resumes would not have the new ones."""
        now = dict(self.model.named_parameters())
        others = [name for name in (*now, *self.parameters) if now.get(name) is not self.parameters.get(name)]
        if others:
            raise RuntimeError(
                f"{others[0]} is not the parameter that it was when Loop was made, and neither a worker that joins"
                " nor a resume would know: change layers, parametrizations and pruning before Loop(...)"
            )


def _trained(parameters: Mapping[str, torch.nn.Parameter]) -> tuple[str, ...]:
    return tuple(name for name, one in parameters.items() if one.requires_grad)


def _parts(
    model: torch.nn.Module,
    optimizers: Optimizers,
    scheduler: Stateful | None,
    scaler: Stateful | None,
    extra: Mapping[str, Stateful] | None,
) -> dict[str, Stateful]:
    parts: dict[str, Stateful] = {"model": model, **optimizers.parts}
    named = {"scheduler": scheduler, "scaler": scaler}
    if isinstance(scheduler, list | tuple):
        raise TypeError("hand over one scheduler as scheduler=..., and further ones in state={'second': ...}")
    if scheduler is not None:
        optimizers.check_part("scheduler", scheduler)
    parts.update({name: part for name, part in named.items() if part is not None})
    for name, part in (extra or {}).items():
        if name in parts:
            raise ValueError(f"state={{{name!r}: ...}} is a name that Loop uses itself: take another one")
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise ValueError(f"state[{name!r}] needs the methods state_dict() and load_state_dict()")
        optimizers.check_part(f"state[{name!r}]", part)
        parts[name] = part
    return parts

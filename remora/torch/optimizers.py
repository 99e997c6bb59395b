"""The optimizers of a loop: which ones there are, and when they may change the weights.

A step's gradients are there when `step.backward` returns, on all workers alike.  An optimizer that changes weights
before that uses what one worker has; one that the loop does not know is neither saved nor waits for the copy of a
checkpoint; gradients that nobody uses are gone with the next backward.  All three look like training, so they are
refused when they happen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from remora.torch.state import Stateful


class Optimizers:
    """All that a loop was given; raises ValueError for those that cannot work.

    From `open` to `close` no other one may change the parameters of the model.
    """

    def __init__(self, model: torch.nn.Module, given: Optimizer | Sequence[Optimizer]) -> None:
        self._all = [given] if isinstance(given, Optimizer) else list(given)
        if not self._all or not all(isinstance(one, Optimizer) for one in self._all):
            raise ValueError("hand over an optimizer, or a list of some: Loop(model, optimizer, ...)")
        if len({id(one) for one in self._all}) < len(self._all):
            raise ValueError("an optimizer is there twice: hand over each of them once")
        self._parameters = {id(one) for one in model.parameters()}
        #: With those that are inside others, which step for them.
        self._known = {id(one) for outer in self._all for one in (outer, *_inside(outer))}
        foreign = sum(id(one) not in self._parameters for outer in self._all for one in _parameters_of(outer))
        if foreign:
            raise ValueError(
                f"the optimizer has {foreign} parameters that are not in the model, so nobody would add up their"
                " gradients: put all modules into one, such as torch.nn.ModuleList([model, head])"
            )
        self._sizes = [_size(one) for one in self._all]
        self._is_computing = False
        #: The step whose gradients no optimizer has used yet.
        self._unused: int | None = None
        self._hooks: list[Any] = []

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._all)

    @property
    def parts(self) -> dict[str, Stateful]:
        """Each by its name in the state of training."""
        if len(self._all) == 1:
            return {"optimizer": self._all[0]}
        return {f"optimizer-{number}": one for number, one in enumerate(self._all)}

    def check_part(self, name: str, part: object) -> None:
        """Raise ValueError for something to be saved that is an optimizer, or holds one that is not known."""
        if isinstance(part, Optimizer) or any(id(one) not in self._known for one in _inside(part)):
            raise ValueError(
                f"{name} is an optimizer or holds one that Loop does not know, and checkpoints would mix its steps:"
                " hand over all of them, Loop(model, [first, second], ...)"
            )

    def open(self) -> None:
        """From now on look at every step that any optimizer of this process makes."""
        if self._hooks:
            return
        this = weakref.ref(self)

        def before(optimizer: Optimizer, *_: object) -> None:
            if (optimizers := this()) is not None:
                optimizers._before_step(optimizer)

        def after(optimizer: Optimizer, *_: object) -> None:
            # A step that was given a closure has its gradients only now.
            if (optimizers := this()) is not None and id(optimizer) in optimizers._known:
                optimizers._unused = None

        self._hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def close(self) -> None:
        """Look no more."""
        while self._hooks:
            self._hooks.pop().remove()

    def begin(self, parameters: Iterable[torch.Tensor]) -> None:
        """A backward pass begins; raises RuntimeError when it would drop gradients that are meant to be used.

        Gradients that were set to None or zero were dropped by the script, and those that are not finite are left out
        by whoever looks at them.
        """
        unused, self._unused = self._unused, None
        if unused is not None and _are_of_use([one.grad for one in parameters]):
            raise RuntimeError(
                f"no optimizer has used the gradients of step {unused}, and the next backward would drop them: call"
                " optimizer.step() in every step, with a larger global_batch (and micro_batch) in place of several"
                " steps, or optimizer.zero_grad() where they are meant to be dropped"
            )
        self._is_computing = True

    def end(self, step: int | None) -> None:
        """It is over; the gradients of this step are there, if it has not failed (None)."""
        self._is_computing = False
        self._unused = step

    def _before_step(self, optimizer: Optimizer) -> None:
        is_known = id(optimizer) in self._known
        if not is_known and not any(id(one) in self._parameters for one in _parameters_of(optimizer)):
            return
        if self._is_computing:
            raise RuntimeError(
                "an optimizer steps inside step.backward, before the gradients of other workers are there: take it"
                " out of hooks and of the function given to backward, and call optimizer.step() after it"
            )
        if not is_known:
            raise RuntimeError(
                "an optimizer that Loop was not given changes parameters of its model: hand over all of them,"
                " Loop(model, [first, second], ...)"
            )
        if [_size(one) for one in self._all] != self._sizes:
            raise RuntimeError(
                "an optimizer got other parameters since Loop was made, which neither a worker that joins nor a resume"
                " would know: give it all of them at the start, and freeze some with requires_grad_(False)"
            )
        self._unused = None


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


def _size(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _inside(part: object) -> list[Optimizer]:
    """Optimizers that an object holds as attributes, also in lists and dictionaries."""
    found: list[Optimizer] = []
    waiting = list(getattr(part, "__dict__", {}).values())
    for one in waiting:
        if isinstance(one, Optimizer):
            found.append(one)
        elif type(one) in (list, tuple):
            found.extend(each for each in one if isinstance(each, Optimizer))
        elif isinstance(one, Mapping):
            found.extend(each for each in one.values() if isinstance(each, Optimizer))
    return found


def _are_of_use(gradients: Iterable[torch.Tensor | None]) -> bool:
    held = [one for one in gradients if one is not None and one.numel()]
    if not held:
        return False
    largest = torch.stack([one.float() for one in torch._foreach_norm(held, float("inf"))]).max().item()
    return bool(0.0 < largest < float("inf"))

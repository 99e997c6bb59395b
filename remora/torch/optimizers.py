"""The optimizers of a loop: which ones there are, and when they may change the weights.

A step's gradients are there when `step.backward` returns, on all workers alike.  An optimizer that changes weights
before that uses what one worker has; one that the loop does not know is neither saved nor waits for the copy of a
checkpoint; gradients that no optimizer uses are gone with the next backward.  All three look like training, so they are
refused when they happen.  So are a scheduler that would start over in every resume, and an optimizer beside the loop
whose gradients come from `step.backward` of one worker alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from remora.torch.state import Stateful

#: A gradient, and how often it has changed.
Gradient = tuple[torch.Tensor | None, int]

#: Those of all loops that run in this process.
_open: weakref.WeakSet[Optimizers] = weakref.WeakSet()

_UNKNOWN = (
    "an optimizer that Loop was not given changes parameters of its model: hand over all of them,"
    " Loop(model, [first, second], ...)"
)
#: The error for one that steps before the gradients of other workers are there.
EARLY = (
    "an optimizer steps inside step.backward, before the gradients of other workers are there: take it out of hooks and"
    " of the function given to backward, and call optimizer.step() after it"
)


class Optimizers:
    """All that a loop was given; raises ValueError for those that cannot work.

    From `open` to `close` no other one may change the parameters of the model; `unknown` is the error for one, and
    `early` that for one that changes them before the gradients of all workers are there.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        given: Optimizer | Sequence[Optimizer],
        unknown: str = _UNKNOWN,
        early: str = EARLY,
    ) -> None:
        self._unknown_text = unknown
        self._early_text = early
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
                f"the optimizer has {foreign} parameters that are not in the model, so their gradients would not be"
                " summed: put all modules into one, such as torch.nn.ModuleList([model, head])"
            )
        self._sizes = [_size(one) for one in self._all]
        self._is_computing = False
        #: The step whose gradients no optimizer has used yet.
        self._unused: int | None = None
        self._hooks: list[Any] = []
        #: Parameters beside the model that other optimizers change, by id, and their gradients when a backward began.
        self._beside: dict[int, weakref.ref[torch.Tensor]] = {}
        self._gradients_beside: list[tuple[torch.Tensor, Gradient]] = []
        #: Optimizers that no scheduler follows which is saved.
        self._unfollowed: list[Optimizer] = []
        #: Of those that another one follows, the learning rates in the step before, by id.
        self._rates: dict[int, list[float]] = {}

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._all)

    def is_unused(self, step: int, gradients: Iterable[torch.Tensor | None]) -> bool:
        """Whether the gradients of this step are still meant to be used: see `begin` for those that are not."""
        return self._unused == step and _are_of_use(gradients)

    @property
    def parts(self) -> dict[str, Stateful]:
        """Each by its name in the state of training."""
        if len(self._all) == 1:
            return {"optimizer": self._all[0]}
        return {f"optimizer-{number}": one for number, one in enumerate(self._all)}

    def names(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, list[list[str]]]:
        """Of each by the name of its part: the names of the parameters in each of its groups, in their order."""
        known = {id(one): name for name, one in parameters.items()}
        return {
            part: [[known.get(id(one), "") for one in group["params"]] for group in optimizer.param_groups]
            for part, optimizer in zip(self.parts, self._all, strict=True)
        }

    def check_part(self, name: str, part: object) -> None:
        """Raise ValueError for something to be saved that is an optimizer, or holds one that is not known."""
        if isinstance(part, Optimizer) or any(id(one) not in self._known for one in _inside(part)):
            raise ValueError(
                f"{name} is an optimizer or holds one that Loop does not know, and checkpoints would mix its steps:"
                " hand over all of them, Loop(model, [first, second], ...)"
            )

    def know_saved(self, parts: Sequence[object]) -> None:
        """What is saved beside them: schedulers are to be among it, raises RuntimeError at the step that shows it."""
        if not all(isinstance(part, torch.nn.Module | LRScheduler) for part in parts):
            # Something of the script's own may hold them.
            return
        followed = {id(one) for part in parts for one in _inside(part)}
        self._unfollowed = [one for one in self._all if id(one) not in followed]

    def open(self) -> None:
        """From now on look at every step that any optimizer of this process makes."""
        if self._hooks:
            return
        _open.add(self)
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
        _open.discard(self)
        while self._hooks:
            self._hooks.pop().remove()

    def begin(self, gradients: Iterable[torch.Tensor | None]) -> None:
        """A backward pass begins; raises RuntimeError when it would drop gradients that are meant to be used.

        Gradients that were set to None or zero were dropped by the script, and those that are not finite are left out
        by the code that checks for them.
        """
        unused, self._unused = self._unused, None
        if unused is not None and _are_of_use(gradients):
            raise RuntimeError(
                f"no optimizer has used the gradients of step {unused}, and the next backward would drop them: call"
                " optimizer.step() in every step, with a larger global_batch (and micro_batch) in place of several"
                " steps, or optimizer.zero_grad() where they are meant to be dropped"
            )
        scheduled = [one for one in self._unfollowed if getattr(one.step, "_wrapped_by_lr_sched", False)]
        rates = {id(one): [float(group["lr"]) for group in one.param_groups] for one in scheduled}
        if any(self._rates.get(number, now) != now for number, now in rates.items()):
            raise RuntimeError(
                "a scheduler that Loop was not given changes the learning rate, and would start over in every resume:"
                " hand it over as scheduler=..., and further ones in state={'second': ...}"
            )
        self._rates = rates
        known = [one() for one in self._beside.values()]
        self._gradients_beside = [(one, gradient_of(one)) for one in known if one is not None]
        self._is_computing = True

    def end(self, step: int | None) -> None:
        """It is over; the gradients of this step are there, if it has not failed (None)."""
        self._is_computing = False
        self._unused = step
        before, self._gradients_beside = self._gradients_beside, []
        if step is not None and any(is_changed(one, held) for one, held in before):
            raise RuntimeError(
                "step.backward gives gradients to parameters that are not in the model, which an optimizer of their own"
                " changes with what this worker alone has: put all modules into one, such as"
                " torch.nn.ModuleList([model, head]), and hand over all optimizers"
            )

    def _before_step(self, optimizer: Optimizer) -> None:
        is_known = id(optimizer) in self._known
        if not is_known and not any(id(one) in self._parameters for one in _parameters_of(optimizer)):
            if not any(id(optimizer) in other._known for other in _open):
                self._beside.update({id(one): weakref.ref(one) for one in _parameters_of(optimizer)})
            return
        if self._is_computing:
            raise RuntimeError(self._early_text)
        if not is_known:
            raise RuntimeError(self._unknown_text)
        if [_size(one) for one in self._all] != self._sizes:
            raise RuntimeError(
                "an optimizer got other parameters since Loop was made, which neither a worker that joins nor a resume"
                " would know: give it all of them at the start, and freeze some with requires_grad_(False)"
            )
        self._unused = None


def gradient_of(parameter: torch.Tensor) -> Gradient:
    """The gradient that a parameter has now, in a form that shows later whether it is another one."""
    held = parameter.grad
    return held, -1 if held is None else held._version


def is_changed(parameter: torch.Tensor, before: Gradient) -> bool:
    """Whether its gradient is not the one that it was."""
    held, version = before
    now = parameter.grad
    return now is not held or (now is not None and now._version != version)


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

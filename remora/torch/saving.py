"""Checkpoints that the loop does not wait for.

The state does not change between two optimizer steps.  So a checkpoint is copied in a thread of its own while the next
step's forward and backward passes run, and only `optimizer.step()` waits for the copy.  It is then written and handed
over in that thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from remora import training
from remora.torch.state import write


class Saving:
    """At most one checkpoint under way."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameter_names = frozenset(name for name, _ in model.named_parameters())
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._error: BaseException | None = None
        #: The checkpoint under way and the seconds that it has held the loop up; None once that was told.
        self._stall: tuple[int, float] | None = None
        optimizer.register_step_pre_hook(self._await_copy)

    def save(self, step: int, state: Mapping[str, Any] | None, *, in_background: bool) -> None:
        """Write the checkpoint of `step`; None for a worker that has nothing to add to it."""
        began = time.monotonic()
        self.wait()
        if not in_background:
            self._write(step, state)
            return
        begun = None if state is None else self._copy_what_moves(state)
        self._copied.clear()
        self._thread = threading.Thread(
            target=self._work, args=(step, begun), name="remora-checkpoint", daemon=True
        )
        self._thread.start()
        self._stall = (step, time.monotonic() - began)

    def wait(self) -> None:
        """Wait until nothing is under way; raises what went wrong in it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _await_copy(self, *_: object) -> None:
        if self._stall is None:
            return
        (step, seconds), self._stall = self._stall, None
        began = time.monotonic()
        self._copied.wait()
        link = training.open_link()
        if link is not None:
            link.stalled(step, seconds + time.monotonic() - began)

    def _copy_what_moves(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Copy now what a forward pass or the script may change: all but parameters and the optimizer's state."""
        parts = {}
        for name, part in state["parts"].items():
            if name == "optimizer":
                parts[name] = _copied(part, lambda tensor: tensor)
            elif name == "model":
                parts[name] = {
                    key: one if key in self._parameter_names else _copied(one, _clone)
                    for key, one in part.items()
                }
            else:
                parts[name] = _copied(part, _clone)
        return {**state, "parts": parts}

    def _work(self, step: int, begun: dict[str, Any] | None) -> None:
        try:
            state = None if begun is None else _copied(begun, _clone)
            self._copied.set()
            self._write(step, state)
        except BaseException as error:
            self._error = error
        finally:
            self._copied.set()

    @staticmethod
    def _write(step: int, state: Mapping[str, Any] | None) -> None:
        with training.hand_over(step) as folder:
            if state is not None:
                write(state, folder)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _copied(value: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with its own containers, and `copy` of its tensors."""
    if isinstance(value, torch.Tensor):
        return copy(value)
    if isinstance(value, Mapping):
        return {key: _copied(one, copy) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one, copy) for one in value)
    return value

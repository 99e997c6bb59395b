"""Checkpoints that the loop does not wait for.

The state does not change between two optimizer steps.  So a checkpoint is written in a thread of its own, straight from
the live tensors into files in memory, while the next step's forward and backward passes run, and `optimizer.step()`
alone waits for it, whichever optimizer is the first.  From then on the files are the supervisor's, and outlive this
process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from remora import training
from remora.torch.layout import Share, Writer, share_of, write
from remora.torch.optimizers import Optimizers


class CheckpointThread:
    """At most one checkpoint under way, in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write one; the one before is over."""
        self._thread = threading.Thread(
            target=self._work, args=(write,), name="remora-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is under way; raises what went wrong in it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error


def hand_over(step: int, size_bytes: int, generation: int, write: Callable[[Path], None]) -> None:
    """Let `write` put a worker's files of a checkpoint into a folder, in memory where they fit, and hand that over.

    `generation` is the worker group whose state it is.  Raises what `write` raises; an OSError in memory comes to
    nothing, as the files are then written to the disk.
    """
    # Memory that looked free may be taken meanwhile; then the files go to the disk.
    for size in (size_bytes, None):
        try:
            is_first = size is not None
            with training.hand_over(
                step, size_bytes=size, generation=generation, is_tried_again=is_first
            ) as folder:
                write(folder)
        except OSError:
            if size is None:
                raise
        else:
            return


class Saving:
    """At most one checkpoint under way."""

    def __init__(self, model: torch.nn.Module, optimizers: Optimizers, device: torch.device) -> None:
        #: Parts of the state that are the same on every worker between two steps.
        self.replicated = ("model", *optimizers.parts)
        self._parameter_names = frozenset(name for name, _ in model.named_parameters())
        self._device = device
        self._thread = CheckpointThread()
        self._copied = threading.Event()
        self._copied.set()
        #: The checkpoint under way and the seconds that it has held the loop up; None once that was reported.
        self._stall: tuple[int, float] | None = None
        for one in optimizers:
            one.register_step_pre_hook(self._await_copy)

    def save(self, step: int, state: Mapping[str, Any], writer: Writer, *, in_background: bool) -> None:
        """Write this worker's share of the checkpoint of `step` and hand it over.

        `state` is a captured one with live tensors; other workers than rank 0 may leave out all but `replicated` parts.
        """
        began = time.monotonic()
        self.wait()
        if not in_background:
            self._hand_over(step, share_of(state, writer, self.replicated), writer)
            return
        share = share_of(self._copy_what_moves(state), writer, self.replicated)
        ready = step_event(self._device)
        self._copied.clear()
        self._thread.start(lambda: self._work(step, share, writer, ready))
        self._stall = (step, time.monotonic() - began)

    def await_copy(self) -> None:
        """Wait until the state may change again."""
        self._copied.wait()

    def wait(self) -> None:
        """Wait until nothing is under way; raises what went wrong in it."""
        self._thread.wait()

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
        """Copy now what a forward pass or the script may change: all but parameters and the optimizers' states."""
        parts = {}
        for name, part in state["parts"].items():
            if name == "model":
                parts[name] = {
                    key: one if key in self._parameter_names else _copied(one, _clone)
                    for key, one in part.items()
                }
            elif name in self.replicated:
                parts[name] = _copied(part, lambda tensor: tensor)
            else:
                parts[name] = _copied(part, _clone)
        return {**state, "parts": parts}

    def _work(self, step: int, share: Share, writer: Writer, ready: Any) -> None:
        try:
            with copy_stream(self._device, ready):
                self._hand_over(step, share, writer)
        finally:
            self._copied.set()

    def _hand_over(self, step: int, share: Share, writer: Writer) -> None:
        def write_share(folder: Path) -> None:
            write(share, writer, folder)
            self._copied.set()

        hand_over(step, share.size_bytes, writer.generation, write_share)


def step_event(device: torch.device) -> Any:
    """An event in the device's queue behind the step that was just done; None on processors."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


@contextlib.contextmanager
def copy_stream(device: torch.device, ready: Any) -> Iterator[None]:
    """Copy in a stream of its own while the device computes, from the event `ready` on."""
    if ready is None:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _copied(value: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with its own containers, and `copy` of its tensors."""
    if isinstance(value, torch.Tensor):
        return copy(value)
    if isinstance(value, Mapping):
        return {key: _copied(one, copy) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one, copy) for one in value)
    return value

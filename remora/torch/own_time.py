"""How long this worker's own part of a step takes: until its gradients are there, without waiting for other workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

#: Seconds between two messages about it.
_TELL_S = 1.0


class OwnTime:
    """Measures the own part of each step, and tells its mean about once a second."""

    def __init__(self, device: torch.device, tell: Callable[[float], None]) -> None:
        """`tell` gets the mean seconds per step since it was called last."""
        self._on_cuda = device.type == "cuda"
        self._tell = tell
        self._told_at = time.monotonic()
        self._sum_s = 0.0
        self._steps = 0
        self._began_at: float | None = None
        self._begin: Any = None
        #: Begin and end of a step on the device, which may not have reached its end yet.
        self._events: tuple[Any, Any] | None = None

    def begin(self) -> None:
        """A step begins."""
        self._began_at = time.perf_counter()
        if self._on_cuda:
            self._begin = torch.cuda.Event(enable_timing=True)
            self._begin.record()

    def end(self, waited_s: float = 0.0) -> None:
        """The own part of the step is through; on a GPU it is queued, and its time is known later.

        `waited_s` of the time since `begin` were spent waiting for others.
        """
        if self._began_at is None:
            return
        if not self._on_cuda:
            self._add(time.perf_counter() - self._began_at - waited_s)
        elif self._events is None:
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            self._events = self._begin, end
        self._began_at = None

    def tell(self) -> None:
        """After a step: tell the mean when it is time."""
        if self._events is not None and self._events[1].query():
            begin, end = self._events
            self._events = None
            self._add(begin.elapsed_time(end) / 1000.0)
        now = time.monotonic()
        if self._steps and now - self._told_at >= _TELL_S:
            self._tell(self._sum_s / self._steps)
            self._told_at, self._sum_s, self._steps = now, 0.0, 0

    def _add(self, seconds: float) -> None:
        self._sum_s += seconds
        self._steps += 1

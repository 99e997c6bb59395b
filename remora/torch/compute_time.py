"""The seconds that this worker computes in a step: until its gradients are there, without waiting for other workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

#: Seconds between two reports.
_REPORT_S = 1.0


class ComputeTime:
    """Measures the compute time of each step, and reports its mean about once a second."""

    def __init__(self, device: torch.device, report: Callable[[float], None]) -> None:
        """`report` gets the mean seconds per step since it was called last."""
        self._on_cuda = device.type == "cuda"
        self._report = report
        self._reported_at = time.monotonic()
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
        """The worker has computed its part of the step; on a GPU that is queued, and its time is known later.

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

    def report(self) -> None:
        """After a step: report the mean when it is time."""
        if self._events is not None and self._events[1].query():
            begin, end = self._events
            self._events = None
            self._add(begin.elapsed_time(end) / 1000.0)
        now = time.monotonic()
        if self._steps and now - self._reported_at >= _REPORT_S:
            self._report(self._sum_s / self._steps)
            self._reported_at, self._sum_s, self._steps = now, 0.0, 0

    def _add(self, seconds: float) -> None:
        self._sum_s += seconds
        self._steps += 1

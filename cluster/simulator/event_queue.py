"""The future events of a replay in order of time; events of the same time in the order in which they were added."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Act = Callable[[float, Any], None]


class EventQueue:
    """Times are seconds since the trace began."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Act, Any]] = []
        self._count = 0

    def add(self, at_s: float, act: Act, what: Any) -> None:
        """Call `act(at_s, what)` at that time."""
        self._count += 1
        heapq.heappush(self._entries, (at_s, self._count, act, what))

    @property
    def next_s(self) -> float | None:
        """The time of the next event; None: there is none."""
        return self._entries[0][0] if self._entries else None

    def act(self, now: float) -> None:
        """Handle all events that are due, including those that are added for the same time meanwhile."""
        while self._entries and self._entries[0][0] <= now:
            _, _, act, what = heapq.heappop(self._entries)
            act(now, what)

"""What will happen and when, in order; at one time in the order in which it was written down."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Act = Callable[[float, Any], None]


class Agenda:
    """Times are seconds since the trace began."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Act, Any]] = []
        self._count = 0

    def add(self, at_s: float, act: Act, what: Any) -> None:
        """Call `act(at_s, what)` then."""
        self._count += 1
        heapq.heappush(self._entries, (at_s, self._count, act, what))

    @property
    def next_s(self) -> float | None:
        """The time of the next entry."""
        return self._entries[0][0] if self._entries else None

    def act(self, now: float) -> None:
        """Do all that is due, also what is added for this very time meanwhile."""
        while self._entries and self._entries[0][0] <= now:
            _, _, act, what = heapq.heappop(self._entries)
            act(now, what)

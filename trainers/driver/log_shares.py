"""How many workers share the bytes that a driver has for lines (pure; time is an argument)."""

from __future__ import annotations

#: Seconds for which a worker that sent lines counts, at least; twice as many at most.
_WINDOW_S = 1.0


class Printers:
    """Workers that sent lines of late, by slot; times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._began_at = float("-inf")
        self._present: set[int] = set()
        self._before: set[int] = set()

    def note(self, slot: int, now: float) -> None:
        """A worker sent lines."""
        self._advance(now)
        self._present.add(slot)

    def count(self, now: float) -> int:
        """How many there are, about; at least one."""
        self._advance(now)
        return max(1, len(self._present), len(self._before))

    def _advance(self, now: float) -> None:
        if now - self._began_at >= _WINDOW_S:
            is_next = now - self._began_at < 2 * _WINDOW_S
            self._before, self._present = self._present if is_next else set(), set()
            self._began_at = now

"""Estimates whether a checkpoint reaches the storage before its machine is preempted (pure)."""

from __future__ import annotations

#: Seconds before a deadline by which files have to be stored: enough to send them elsewhere if they will not be.
MARGIN_S = 5.0


def fits(size_bytes: int, bytes_per_s: float, deadline_at: float | None, now: float) -> bool:
    """True when `size_bytes` are in the storage before the deadline (by the clock of `now`; None: none)."""
    return deadline_at is None or now + size_bytes / bytes_per_s <= deadline_at - MARGIN_S


class WriteSpeed:
    """How fast this worker's files reach the storage: the slower of the last two writes, and of those under way.

    Times are seconds of any one clock.
    """

    def __init__(self, prior_bytes_per_s: float) -> None:
        """`prior_bytes_per_s` holds until something was written."""
        self._prior = prior_bytes_per_s
        self._seen: list[float] = []
        #: Size and begin of every write under way, by its number.
        self._under_way: dict[int, tuple[int, float]] = {}
        self._writes = 0

    def begin(self, size_bytes: int, at: float) -> int:
        """A write of `size_bytes` begins; returns its number."""
        self._writes += 1
        self._under_way[self._writes] = (size_bytes, at)
        return self._writes

    def end(self, number: int, at: float) -> None:
        """That write is through."""
        size_bytes, began = self._under_way.pop(number)
        if size_bytes > 0:
            self._seen = [*self._seen[-1:], size_bytes / max(at - began, 1e-6)]

    def drop(self, number: int) -> None:
        """That write failed, which says nothing about speed; fine when it is through."""
        self._under_way.pop(number, None)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of writes under way, at most: another one shares the storage with them."""
        return sum(size for size, _ in self._under_way.values())

    def bytes_per_s(self, now: float) -> float:
        """Expected bytes per second; a write under way is no faster than if it were through by now."""
        at_most = [size / max(now - began, 1e-6) for size, began in self._under_way.values() if size > 0]
        return min([min(self._seen, default=self._prior), *at_most])

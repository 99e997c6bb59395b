"""Whether a checkpoint is stored in time before its machine goes, or has to leave the machine first (pure)."""

from __future__ import annotations

#: Seconds before a deadline by which files have to be stored: enough to send them elsewhere if they will not be.
MARGIN_S = 5.0


def fits(size_bytes: int, bytes_per_s: float, deadline_at: float | None, now: float) -> bool:
    """True when so many bytes are in the storage before the deadline (seconds since 1970; None: there is none)."""
    return deadline_at is None or now + size_bytes / bytes_per_s <= deadline_at - MARGIN_S


class WriteSpeed:
    """How fast this worker's files reach the storage; the slower of the last two writes counts."""

    def __init__(self, prior_bytes_per_s: float) -> None:
        """`prior_bytes_per_s` holds until something was written."""
        self._prior = prior_bytes_per_s
        self._seen: list[float] = []

    def measure(self, size_bytes: int, took_s: float) -> None:
        """So many bytes took so many seconds."""
        if size_bytes > 0:
            self._seen = [*self._seen[-1:], size_bytes / max(took_s, 1e-6)]

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second to reckon with."""
        return min(self._seen, default=self._prior)

"""For which jobs nodes are kept, as far as the service has said so lately (pure)."""

from __future__ import annotations

from collections.abc import Mapping

#: Seconds after which the service says again what is still kept.
RENEWED_S = 60.0
#: Seconds after which what was said counts no more: the service may be gone, and groups are to grow all the same.
FORGOTTEN_S = 300.0


class Kept:
    """What a driver was told; times are by one monotonic clock."""

    def __init__(self) -> None:
        self._order: tuple[int, int] | None = None
        self._nodes: Mapping[str, str] = {}
        self._heard_at = 0.0

    def hear(self, order: tuple[int, int], nodes: Mapping[str, str], now: float) -> None:
        """Each of these nodes is kept for a job from now on, by our ids, and no others are.

        Nothing happens where something later was said: `order` is the token of the controller that says it, and how
        many things its process had said before.
        """
        if self._order is None or order > self._order:
            self._order, self._nodes, self._heard_at = order, dict(nodes), now

    def at(self, now: float) -> Mapping[str, str]:
        """The job that each node is kept for."""
        return self._nodes if now - self._heard_at < FORGOTTEN_S else {}

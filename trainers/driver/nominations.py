"""For which jobs nodes are nominated, as the service last said (pure).

A nominated node was bought for a job that waits; other jobs do not grow onto it.  One that was not measured yet is
nominated for none, and no worker is placed on it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Nominated for this, a node is for no job: it has not passed its preflight.
NO_JOB = ""
#: Seconds after which the service repeats which nodes are still nominated.
RENEWED_S = 60.0
#: Seconds after which nominations expire: the service may be gone, and worker groups shall still grow.
FORGOTTEN_S = 300.0


class Nominations:
    """The nominations that a driver knows of; times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._order: tuple[int, int] | None = None
        self._nodes: Mapping[str, str] = {}
        self._updated_at = 0.0

    def update(self, order: tuple[int, int], nodes: Mapping[str, str], now: float) -> None:
        """Each of these nodes is nominated for a job from now on, by our ids, and no others are.

        An older message than the newest one is ignored: `order` is the token of the controller that sends it, and the
        number of messages that its process had sent before.
        """
        if self._order is None or order > self._order:
            self._order, self._nodes, self._updated_at = order, dict(nodes), now

    def at(self, now: float) -> Mapping[str, str]:
        """The job that each node is nominated for."""
        return self._nodes if now - self._updated_at < FORGOTTEN_S else {}

"""When what Ray was asked to start is asked for again, because its head was killed meanwhile (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

#: Seconds after Ray has another head in which an actor that its predecessor was asked for may still begin.  The head
#: reads from disk what it had written there; a request that it was just handling is in no list any more.
AFTER_HEAD_S = 15.0


@dataclass(frozen=True)
class StartLimit:
    """For an actor that is not up: under which heads it was asked for, and whether one came after."""

    #: Ray node ids of the heads that were alive then; empty where that is not known.
    heads: frozenset[str]
    #: When another head was seen first, in seconds of a monotonic clock; None when none was.
    another_at: float | None = None

    def seen(self, heads: Collection[str], now: float) -> StartLimit:
        """The same after a look at the heads that are alive."""
        if self.another_at is not None or self.heads.issuperset(heads):
            return self
        return replace(self, another_at=now)

    def is_over(self, now: float) -> bool:
        """It is to be asked for again, if Ray has not begun with it."""
        return self.another_at is not None and now - self.another_at >= AFTER_HEAD_S

    def renewed(self, now: float) -> StartLimit:
        """The same after a look at `now` that found that Ray has begun with it: the next look is due as long after."""
        return self if self.another_at is None else replace(self, another_at=now)

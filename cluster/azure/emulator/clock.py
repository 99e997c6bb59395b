"""The emulator's time: that of the host, and moved forward or back where somebody wants to see what that does."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970; call it."""

    def __init__(self) -> None:
        #: Added to the host's time.
        self.skew_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        return time.time() + self.skew_s

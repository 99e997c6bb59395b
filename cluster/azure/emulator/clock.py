"""The emulator's clock: the host's, which a test may set forward or back."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Seconds since 1970; call it."""

    def __init__(self, base: Callable[[], float] = time.time) -> None:
        """`base` is the time that others go by."""
        self._base = base
        #: Added to the others' time.
        self.skew_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self._base() + self.skew_s

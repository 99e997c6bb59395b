"""The time of day for a service that runs for months: it never jumps, and is right again after a while.

The service stores seconds since 1970, and computes from two of them how long something waits, trains or is idle.  If
the machine's clock were set an hour forward, a job would have trained for an hour too long, and every node would have
been idle for an hour.  So this clock follows a monotonic clock that cannot be set, and approaches the machine's clock
at no more than a tenth of its speed, as NTP does with small differences: whatever happens to the machine's clock, a
length of time is wrong by a tenth at most, and the time of day is right after ten times the jump.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds by which this clock comes nearer to the machine's in a second, at most.
RATE = 0.1


def since_boot() -> float:
    """Seconds since this machine started, those among them in which it was suspended; it cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Call it for the seconds since 1970; any thread may."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = since_boot
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._now, self._read_at = wall(), monotonic()

    def __call__(self) -> float:
        """Seconds since 1970, never less than before."""
        with self._lock:
            read_at = self._monotonic()
            passed_s = max(0.0, read_at - self._read_at)
            most_s = RATE * passed_s
            behind_s = self._wall() - (self._now + passed_s)
            self._now += passed_s + max(-most_s, min(most_s, behind_s))
            self._read_at = read_at
            return self._now

    def machine_is_ahead_s(self) -> float:
        """Whole seconds by which the machine's clock is ahead of this one, to take over a time that it says."""
        return float(round(self._wall() - self()))


#: That of this process.
CLOCK = SteadyClock()

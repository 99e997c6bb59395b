"""When a step takes so long that no rank can be working on it any more (pure; time is an argument).

A job is judged by its own history: a step is overdue when it takes ten times as long as the longest of late, and
longer than a limit that holds for every step.  A step of a smaller worker group may take longer in proportion, because
the same global batch is divided among fewer workers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: How many times as long as the longest step of late a step may take.
FACTOR = 10.0
#: Steps that count as history; evaluations and the script's own checkpoints between steps shall be among them.
LATE = 1000
#: Seconds, and how many times as long as the longest step of late, after which workers are checked for being alive.
LOOK_S, LOOK_FACTOR = 1.0, 3.0
#: Steps without which there is no history to judge by.
ENOUGH = 3


@dataclass(frozen=True)
class Overdue:
    """A step that does not end."""

    #: Seconds for which no step has ended.
    quiet_s: float
    #: Seconds that the longest step of late took.
    longest_s: float


class StepWatch:
    """How long steps take, and whether the present one takes too long."""

    def __init__(self, least_s: float) -> None:
        """A step that takes less than `least_s` seconds is never overdue."""
        self._least_s = least_s
        #: When the step under way began, by a monotonic clock; None while time does not count.
        self._began_at: float | None = None
        #: Seconds times workers of each step.
        self._efforts: deque[float] = deque(maxlen=LATE)

    def step(self, at: float, workers: int) -> None:
        """A step of `workers` workers ended at that time of a monotonic clock."""
        if self._began_at is not None:
            self._efforts.append(max(0.0, at - self._began_at) * workers)
        self._began_at = at

    def hold(self) -> None:
        """Time does not count from now on: a group starts or changes, or a checkpoint is written."""
        self._began_at = None

    def go_on(self, now: float) -> None:
        """Time counts again, as if a step began now; nothing changes while it counts anyway."""
        if self._began_at is None:
            self._began_at = now

    def slow(self, now: float, workers: int) -> Overdue | None:
        """The step under way of `workers` workers, when it takes so long that one may be lost."""
        return self._longer_than(LOOK_S, LOOK_FACTOR, now, workers)

    def overdue(self, now: float, workers: int) -> Overdue | None:
        """The step under way of `workers` workers, when it takes too long."""
        return self._longer_than(self._least_s, FACTOR, now, workers)

    def _longer_than(self, least_s: float, factor: float, now: float, workers: int) -> Overdue | None:
        if self._began_at is None or len(self._efforts) < ENOUGH:
            return None
        quiet_s, longest_s = now - self._began_at, max(self._efforts) / workers
        return Overdue(quiet_s, longest_s) if quiet_s > max(least_s, factor * longest_s) else None

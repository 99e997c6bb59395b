"""How much slower the machine was, while something ran, than it can be: a small task, timed again and again meanwhile.

On shared cores the same work takes twice the processor time when neighbours use the caches and the other half of the
core.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import mean

#: Rounds of the task: some milliseconds.
ROUNDS = 40_000


@dataclass
class Yardstick:
    """Seconds of processor time that the task took, each time."""

    times: list[float] = field(default_factory=list)

    def measure(self, *_: object) -> None:
        """Do the task once more."""
        began = time.process_time()
        counts: dict[str, int] = {}
        for number in range(ROUNDS):
            name = str(number % 997)
            counts[name] = counts.get(name, 0) + 1
        self.times.append(time.process_time() - began)

    @property
    def total_s(self) -> float:
        """What all of it took."""
        return sum(self.times)

    @property
    def slowdown(self) -> float:
        """Mean over the shortest: 1 on a quiet machine.  Raises ValueError before the first measurement."""
        return mean(self.times) / min(self.times)

"""The best interval between checkpoints, from what they cost and how often workers are lost (pure).

Young's interval with Daly's correction: with a cost of C seconds per checkpoint and M seconds between losses,
sqrt(2 C M) - C seconds between checkpoints lose the least time to writing and to doing steps again (J. W. Young, 1974;
J. T. Daly, 2006).  M starts from what is usual for the machines and moves to what this attempt sees, as a Gamma prior
worth one loss does; the whole group is lost as often as any of its workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Seconds between checkpoints before the first was measured.
FIRST_S = 30.0
#: Bounds of the interval in seconds: below, checkpoints cost more than they save; above, an early loss costs too much.
LEAST_S, MOST_S = 10.0, 1800.0
#: What a script says of one checkpoint is believed up to this.
LONGEST_STALL_S = 86_400.0
#: At most this share of the time goes into checkpoints, however often workers are lost.
MOST_SHARE = 0.05
#: Weight of the newest measurement in the moving mean.
_NEWEST = 0.3


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """What one attempt has measured."""

    #: Seconds between two losses of one worker that are usual for these machines.
    prior_s: float
    #: Moving mean of what checkpoints cost before the newest one, in seconds.
    before_s: float | None = None
    #: What the newest one costs: of its ranks the slowest, because the others wait for it.
    newest_s: float | None = None
    #: Step of the newest one.
    step: int | None = None
    #: Seconds that the loop waited for checkpoints, in all.
    stalled_s: float = 0.0
    #: Seconds that workers have trained, summed over them.
    worker_s: float = 0.0

    @property
    def cost_s(self) -> float | None:
        """Seconds that a checkpoint costs the training loop; None before the first."""
        if self.newest_s is None or self.before_s is None:
            return self.newest_s
        return _NEWEST * self.newest_s + (1.0 - _NEWEST) * self.before_s

    def measure(self, step: int, stall_s: float) -> Cadence:
        """Take a rank's report of how long the checkpoint of that step held its loop up."""
        stall_s = min(LONGEST_STALL_S, max(0.0, stall_s))
        if step == self.step and self.newest_s is not None:
            newest_s = max(self.newest_s, stall_s)
            return replace(self, newest_s=newest_s, stalled_s=self.stalled_s + newest_s - self.newest_s)
        return replace(
            self,
            before_s=self.cost_s,
            newest_s=stall_s,
            step=step,
            stalled_s=self.stalled_s + stall_s,
        )

    def work(self, seconds: float, workers: int) -> Cadence:
        """Count that `workers` workers trained for `seconds`."""
        return replace(self, worker_s=self.worker_s + max(0.0, seconds) * workers)

    def between_losses_s(self, losses: int, workers: int) -> float:
        """Expected seconds until any of the workers is lost, after `losses` losses."""
        return (self.prior_s + self.worker_s) / (1 + losses) / max(1, workers)

    def interval_s(self, losses: int, workers: int) -> float:
        """Seconds between two checkpoints."""
        cost_s = self.cost_s
        if cost_s is None:
            return FIRST_S
        best_s = math.sqrt(2.0 * cost_s * self.between_losses_s(losses, workers)) - cost_s
        return min(MOST_S, max(LEAST_S, cost_s / MOST_SHARE, best_s))

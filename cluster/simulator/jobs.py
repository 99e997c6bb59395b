"""A job of a replay: how far it is, what a loss costs it.

A job does one worker-second of work per worker and second, except while it starts or changes its number of workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cluster.policies.placement import Placement
from cluster.policies.policies import BudgetStep
from cluster.scheduling.queue_order import QueueKey
from cluster.scheduling.view import JobDemand
from cluster.traces.trace import TraceJob


@dataclass(slots=True, eq=False)
class SimJob:
    """One job; all of its times are seconds since the trace began."""

    job: TraceJob
    #: Of those that wait the job with the smallest one is next.
    order_key: QueueKey = (0, True, 0.0, "")
    #: Work that is done and was not lost, in worker-seconds.
    done_s: float = 0.0
    #: The part of it that a checkpoint has.
    saved_s: float = 0.0
    #: Work that was done and lost, and time that its workers stood still, in worker-seconds.
    lost_s: float = 0.0
    stalled_s: float = 0.0
    #: Workers by the number of their node.
    placed: dict[int, int] = field(default_factory=dict)
    workers: int = 0
    #: USD that its parts of nodes have cost, and cost in a second; counted where it has a budget.
    spent: float = 0.0
    usd_per_s: float = 0.0
    #: Everything above is true at this time.
    at_s: float = 0.0
    #: Until then its workers stand still.
    stalled_until: float = 0.0
    checkpoint_at: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    #: Since when it has had fewer workers than it can use.
    short_since: float = 0.0
    losses: int = 0
    #: Its place among those that wait, where projects share the queue by their shares.
    place: int = 0
    #: The last step of the cluster's budget that was reported to its owner.
    noticed_step: BudgetStep | None = None
    #: As the planner saw it last; None once something has changed that it sees.
    seen: JobDemand | None = None
    #: Counts changes of its speed: an end that was scheduled before the last change is ignored.
    version: int = 0
    #: Which nodes it accepts: only those of one fabric domain while its attempt is bound to it.
    placement: Placement = field(init=False)

    def __post_init__(self) -> None:
        self.placement = self.job.placement

    def advance(self, now: float) -> None:
        """Work until now."""
        if self.usd_per_s:
            self.spent = self.spent_at(now)
        held = self.workers * (now - self.at_s)
        moving_from = max(self.at_s, min(now, self.stalled_until))
        gained = self.workers * (now - moving_from)
        self.done_s += gained
        self.stalled_s += held - gained
        passed = (
            math.floor((now - self.checkpoint_at) / self.job.checkpoint_s) if now > self.checkpoint_at else 0
        )
        if passed > 0:
            self.checkpoint_at += passed * self.job.checkpoint_s
            moved_s = now - max(self.checkpoint_at, moving_from)
            self.saved_s = max(self.saved_s, self.done_s - self.workers * moved_s)
        self.at_s = now

    def start(self, now: float, placed: dict[int, int], placement: Placement | None = None) -> None:
        """Begin an attempt on these nodes, bound to the placement: a fabric domain, a capacity type."""
        if placement is not None:
            self.placement = placement
        self.started_s = now if self.started_s is None else self.started_s
        self.place = 0
        self.at_s = now
        self.stalled_until = self.checkpoint_at = now + self.job.resume_s
        self._set(now, placed)

    def resize(self, now: float, placed: dict[int, int]) -> None:
        """Go on with other workers, after a pause."""
        self.advance(now)
        self.stalled_until = max(self.stalled_until, now + self.job.resize_s)
        self._set(now, placed)

    def stop(self, now: float, *, is_noticed: bool) -> None:
        """End the attempt; without a notice, what no checkpoint has is lost."""
        self.advance(now)
        if is_noticed:
            self.saved_s = self.done_s
        self.lost_s += self.done_s - self.saved_s
        self.done_s = self.saved_s
        self.placement = self.job.placement
        self._set(now, {})

    def finish(self, now: float) -> None:
        """End it: all of its work is done."""
        self.advance(now)
        self.done_s = self.saved_s = self.job.work_s
        self.ended_s = now
        self._set(now, {})

    def _set(self, now: float, placed: dict[int, int]) -> None:
        before = self.workers
        self.placed = placed
        self.workers = sum(placed.values())
        self.usd_per_s = 0.0
        self.version += 1
        self.seen = None
        if self.workers < self.job.max_workers and (before == self.job.max_workers or self.started_s == now):
            self.short_since = now

    @property
    def ends_s(self) -> float:
        """When it will have ended if nothing changes."""
        return max(self.at_s, self.stalled_until) + (self.job.work_s - self.done_s) / self.workers

    @property
    def broke_s(self) -> float:
        """When it will have spent its budget if nothing changes; infinity for never."""
        if self.job.budget is None or self.usd_per_s <= 0:
            return math.inf
        return self.at_s + max(0.0, self.job.budget - self.spent) / self.usd_per_s

    def spent_at(self, now: float) -> float:
        """USD until now."""
        return self.spent + self.usd_per_s * max(0.0, now - self.at_s)

    def done_at(self, now: float) -> float:
        """Work done until now, without recording it."""
        return self.done_s + self.workers * max(0.0, now - max(self.at_s, self.stalled_until))

    def notice_step(self, step: BudgetStep | None) -> None:
        """Report to its owner how the budget affects it."""
        self.noticed_step = step
        self.seen = None

"""What an attempt has done, what it has to do again, and what losses cost (pure; time is an argument)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Counters of one attempt."""

    #: Newest step that rank 0 reported, in this attempt or before it.
    step: int | None = None
    total_steps: int | None = None
    #: When `step` was reported.
    step_at: float | None = None
    repeated_steps: int = 0
    #: `repeated_steps` when the present loss began.
    repeated_before: int = 0
    #: Seconds between the last step before a loss and the first new step after it, summed; see `open_lost_s`.
    lost_s: float = 0.0
    #: Set between a loss and the next new step: the time of the last step before it.
    lost_since: float | None = None
    #: When all steps were done again that the present loss had cost; None: they are not, or nothing is being lost.
    won_back_at: float | None = None
    #: Newest step of earlier attempts.  The time until this one gets beyond it is counted from their ends on, so that
    #: what is lost meanwhile is not counted here.
    inherited: int | None = None
    #: Losses of workers so far; those before the next new step are one.
    losses: int = 0
    #: Last step that was ever reported when the present worker group began; later ones are new.
    high_water: int | None = None
    #: Last step that the present worker group reported; a step may be reported more than once.
    group_step: int | None = None
    #: When the present worker group reported its first step.
    group_began_at: float | None = None
    #: The present worker group has reported a step that no group before it reported.
    has_caught_up: bool = False

    @property
    def is_behind(self) -> bool:
        """True until the present worker group reports a step that no group before it reported; once for each group.

        A script that goes back to old steps by itself repeats them (`repeated_steps`) and is not behind again.
        """
        return self.high_water is not None and not self.has_caught_up

    def report(self, step: int, total_steps: int | None, now: float) -> Progress:
        """A step is done."""
        is_repeated = self.high_water is not None and step <= self.high_water
        after = replace(
            self,
            step=step if self.step is None else max(step, self.step),
            total_steps=total_steps if total_steps is not None else self.total_steps,
            step_at=now,
            repeated_steps=self.repeated_steps + int(is_repeated and step != self.group_step),
            group_step=step,
            group_began_at=now if self.group_step is None else self.group_began_at,
            has_caught_up=self.has_caught_up or not is_repeated,
        )
        if self.lost_since is None:
            return after
        if not is_repeated:
            lost_s = self.lost_s + replace(self, won_back_at=None).open_lost_s(now)
            return replace(after, lost_s=lost_s, lost_since=None, won_back_at=None)
        if step == self.high_water and self.won_back_at is None:
            return replace(after, won_back_at=now)
        return after

    def open_lost_s(self, now: float) -> float:
        """Seconds that a loss has cost which no new step has followed yet; 0 without one."""
        if self.lost_since is None or (self.inherited is not None and self.step == self.inherited):
            return 0.0
        until = now if self.won_back_at is None else self.won_back_at
        return max(0.0, until - self.lost_since)

    def lose(self, now: float) -> Progress:
        """A worker was lost; time counts as lost until a new step is done."""
        if self.lost_since is not None:
            return replace(self, won_back_at=None)
        lost_since = self.step_at if self.step_at is not None else now
        losses = self.losses + 1
        return replace(self, lost_since=lost_since, losses=losses, repeated_before=self.repeated_steps)

    def regroup(self) -> Progress:
        """A new worker group begins: steps up to the newest one are repetitions from now on."""
        return replace(self, high_water=self.step, group_step=None, group_began_at=None, has_caught_up=False)

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
    #: Seconds between the last step before a loss and the first new step after it, summed.
    lost_s: float = 0.0
    #: Set between a loss and the next new step: the time of the last step before it.
    lost_since: float | None = None
    #: Losses of workers so far; those before the next new step are one.
    losses: int = 0
    #: Last step that was ever reported when the present worker group began; later ones are new.
    high_water: int | None = None
    #: Last step that the present worker group reported; a step may be reported more than once.
    group_step: int | None = None

    @property
    def is_behind(self) -> bool:
        """True until the present worker group reports a step that no group before it reported."""
        return self.high_water is not None and (self.group_step is None or self.group_step <= self.high_water)

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
        )
        if self.lost_since is not None and not is_repeated:
            return replace(after, lost_s=self.lost_s + max(0.0, now - self.lost_since), lost_since=None)
        return after

    def lose(self, now: float) -> Progress:
        """A worker was lost; time counts as lost until a new step is done."""
        if self.lost_since is not None:
            return self
        lost_since = self.step_at if self.step_at is not None else now
        return replace(self, lost_since=lost_since, losses=self.losses + 1)

    def regroup(self) -> Progress:
        """A new worker group begins: steps up to the newest one are repetitions from now on."""
        return replace(self, high_water=self.step, group_step=None)

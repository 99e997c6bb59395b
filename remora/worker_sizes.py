"""How many workers a job may have (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerSizes:
    """The sizes of a worker group that a job allows: from `min` to `max`, in steps that fit its layout."""

    min: int
    max: int
    #: Workers that hold the model once, together: stages of a pipeline times parts of a tensor, for example.
    multiple_of: int = 1
    #: What has to be dealt equally among the copies of the model, e.g. samples of a global batch; None: nothing.
    dealt: int | None = None

    def fit(self, count: int) -> int:
        """The largest allowed size of a group when `count` workers could be had; 0 when there is none."""
        for size in range(min(count, self.max), self.min - 1, -1):
            if self.allows(size):
                return size
        return 0

    def allows(self, size: int) -> bool:
        """True when a group of exactly this size may train."""
        if not self.min <= size <= self.max or size % self.multiple_of:
            return False
        return self.dealt is None or self.dealt % (size // self.multiple_of) == 0

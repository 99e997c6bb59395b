"""How ranks that never talk to each other agree on one step to checkpoint at (pure).

Each rank counts its calls of `should_checkpoint()`, its *boundaries*.  The driver asks every rank to hold: a rank
answers with the number of the last boundary that it passed, and waits at the next one.  When all have answered, the
boundary after the furthest is one that no rank has passed, so it is decided; ranks that wait before it go on.  No rank
that has stopped keeps another from answering, because a background thread answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Agreement:
    """One round: who was asked, who answered, what was decided."""

    token: int
    ranks: frozenset[int]
    #: Why, for people: `interval`, `drain`, `grow`, ...
    reason: str
    #: The workers end after this checkpoint.
    is_stop: bool
    asked_at: float
    #: Seconds since 1970 by which the checkpoint has to be committed; None: no hurry.
    deadline_at: float | None = None
    boundaries: dict[int, int] = field(default_factory=dict)
    decided: int | None = None

    def answer(self, rank: int, token: int, boundary: int) -> int | None:
        """Note a rank's answer; returns the decided boundary when this was the last one missing."""
        if token != self.token or rank not in self.ranks or self.decided is not None:
            return None
        self.boundaries[rank] = boundary
        if self.boundaries.keys() != self.ranks:
            return None
        self.decided = max(self.boundaries.values()) + 1
        return self.decided

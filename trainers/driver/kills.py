"""How often a worker group goes on after its script was killed, or its collectives failed (pure; time is an argument).

SIGKILL comes from outside of a script: from the kernel when memory runs out, or from an operator.  Others that hold the
state need not end for it.  But a rank that is killed again and again has a cause that a new start does not remove.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Kills that an attempt goes on after, before older ones are forgotten; the next one ends it with `signal`.
MOST_KILLS = 3
#: Seconds after which a kill is forgotten, if a new step was done since.
REMEMBERED_S = 3600.0
#: Seconds within which the loss of a node is noticed, whose processes are seen to die first.
LOSS_NOTICED_S = 60.0


@dataclass(frozen=True)
class _Kill:
    slot: int
    rank: int
    #: Newest step when it happened.
    step: int
    #: Seconds since 1970.
    at: float


class Restarts:
    """When a worker group whose script owns its training starts again although a process was killed or hung.

    Its state is in checkpoints alone, so each restart needs one that is newer than that of the restart before: what
    hangs or dies at the same place every time ends the attempt.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[float, int]] = []
        #: Slot of the process that was killed before the newest restart; None: it hung.
        self._killed: int | None = None

    def allow(self, checkpoint: int | None, now: float, killed: int | None = None) -> bool:
        """Take note that a process hung or was killed; True when a worker group may follow from that checkpoint.

        `checkpoint` is the step of the newest one that the attempt has committed, `killed` the slot that was killed.
        """
        if checkpoint is None or any(checkpoint <= step for _, step in self._steps):
            return False
        if sum(now - at < REMEMBERED_S for at, _ in self._steps) >= MOST_KILLS:
            return False
        self._steps.append((now, checkpoint))
        self._killed = killed
        return True

    def discount(self, slots: set[int], now: float) -> None:
        """These slots died as a whole: a restart for the kill of one of them just now does not count.

        Workers keep their slots when they begin again, so an earlier kill has nothing to do with it.
        """
        if self._killed in slots and now - self._steps[-1][0] < LOSS_NOTICED_S:
            self._steps.pop()
            self._killed = None


class Kills:
    """The kills of an attempt that count."""

    def __init__(self) -> None:
        self._kills: list[_Kill] = []

    def tolerate(self, slot: int, rank: int, step: int, now: float) -> bool:
        """Take note that the script of a slot was killed, in that rank; True when the others may go on without it."""
        self._kills = [one for one in self._kills if now - one.at < REMEMBERED_S or step <= one.step]
        if len(self._kills) >= MOST_KILLS:
            return False
        self._kills.append(_Kill(slot, rank, step, now))
        return True

    def discount(self, slots: set[int]) -> list[int]:
        """These slots died as a whole, so their scripts' kills do not count; returns the ranks of those that had."""
        taken = [one for one in self._kills if one.slot in slots]
        self._kills = [one for one in self._kills if one.slot not in slots]
        return sorted(one.rank for one in taken)

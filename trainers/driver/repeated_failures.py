"""When a worker group fails again and again at one step although no worker is lost (pure).

A collective fails when a peer vanishes; but one that the script uses wrongly fails just so, on all ranks, in the next
group as in this one.
"""

from __future__ import annotations

from remora.states import EndReason
from trainers.driver.verdict import Verdict

#: Groups of the same workers that may fail one after the other without a new step; the next one ends the attempt.
MOST_FAILURES = 3


class RepeatedFailures:
    """Failures of worker groups since the newest step, or since other workers are in them."""

    def __init__(self) -> None:
        self._count = 0
        self._before: tuple[frozenset[int], int] | None = None
        #: The first message about the newest failure, until it is judged.
        self._said: str | None = None
        #: Slots that work in the newest group, and were not asked to park since.
        self._working: set[int] = set()

    def begin(self) -> None:
        """A group is formed, or asked to park: that may fail because a worker is slow, what scripts say is no news."""
        self._working.clear()

    def join(self, slot: int) -> None:
        """A script works in the newest group."""
        self._working.add(slot)

    def note(self, slot: int, rank: int, why: str) -> None:
        """A script left its group by itself, which counts where the group worked."""
        if slot in self._working and self._said is None:
            self._said = f"rank {rank} said: {why or 'nothing'}"[:500]

    def judge(self, slots: frozenset[int], step: int) -> Verdict | None:
        """All workers are parked: what follows a failure, if these slots go on from that step; None: the next group."""
        said, self._said = self._said, None
        if said is None:
            return None
        if (slots, step) != self._before:
            self._before, self._count = (slots, step), 0
        self._count += 1
        if self._count <= MOST_FAILURES:
            return None
        text = (
            f"The worker group broke {self._count} times after step {step} although none of its workers was lost;"
            f" {said}."
        )
        return Verdict(goes_on=False, end_reason=EndReason.HANG, message=text)

"""What follows from tries to send notifications (pure).

Notifications of one alert are sent in their order, the next one after the one before was delivered or given up.  After
a failure the alert waits, twice as long each time; a notification that is a day old is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from remora.alert_kinds import DeliveryState

#: Seconds after the first failure, and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 3600.0
#: Seconds for which a notification is tried.
LIFETIME_S = 86_400.0
#: Characters of what is kept of a failure.
LONGEST_ERROR = 300


class TryResult(StrEnum):
    """What became of one try."""

    TAKEN = "taken"
    #: It may be taken later.
    REFUSED = "refused"
    #: The receiver wants no more notifications: 410.
    GONE = "gone"


@dataclass(frozen=True)
class Try:
    """One try of one notification."""

    notification_id: str
    answer: TryResult
    error: str | None = None


@dataclass(frozen=True)
class Settled:
    """A notification after a try."""

    id: str
    state: DeliveryState
    error: str | None


@dataclass(frozen=True)
class Delivered:
    """An alert and its notifications after some tries."""

    settled: tuple[Settled, ...]
    failures: int
    #: When the next try may be, if there is anything to send.
    next_at: float
    error: str | None
    has_ended: bool = False


def pause_s(failures: int) -> float:
    """Seconds after a number of failures in a row, from 1 on."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))


def after_tries(failures: int, tries: Sequence[Try], now: float) -> Delivered:
    """What follows from tries in their order, of an alert that had already failed that often in a row."""
    settled: list[Settled] = []
    error: str | None = None
    for one in tries:
        error = None if one.error is None else " ".join(one.error.split())[:LONGEST_ERROR]
        if one.answer is TryResult.TAKEN:
            failures = 0
            settled.append(Settled(one.notification_id, DeliveryState.DELIVERED, None))
            continue
        failures += 1
        settled.append(Settled(one.notification_id, DeliveryState.PENDING, error))
        if one.answer is TryResult.GONE:
            return Delivered(tuple(settled), failures, now, error, has_ended=True)
        break
    next_at = now if not failures else now + pause_s(failures)
    return Delivered(tuple(settled), failures, next_at, error)

"""What the scripts of a worker group say about how long parts of a change took them (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Of a script that parks: seconds since it saw that its group is broken.
OF_PARKING = ("noticed_s",)
#: Of a script that joins: seconds until the store of its rendezvous answered, until its process groups were formed, and
#: until it had the state that all have.
OF_JOINING = ("connect_s", "form_s", "move_s")
#: A script says what it likes: more seconds than this are no duration of a change.
_MOST_S = 1e6


class ScriptDurations:
    """Of one change: what the first script that parked says, and what the one says that needed longest to join.

    Parts of different scripts would not add up: while one waits for a store, another one waits for it.
    """

    def __init__(self) -> None:
        self._parking: dict[str, float] = {}
        self._joining: dict[str, float] = {}

    def park(self, message: Mapping[str, Any]) -> None:
        """A script is parked; the first one that says since when it knew is the one with which the change began."""
        self._parking = self._parking or _seconds_in(message, OF_PARKING)

    def begin_try(self) -> None:
        """Ranks were assigned: what scripts said about an earlier try does not count."""
        self._joining = {}

    def join(self, message: Mapping[str, Any]) -> None:
        """A script has joined the next worker group."""
        reported = _seconds_in(message, OF_JOINING)
        self._joining = max(self._joining, reported, key=lambda one: sum(one.values()))

    def rounded(self) -> dict[str, float]:
        """Seconds by name, to the millisecond; without those that no script reported."""
        return {name: round(seconds, 3) for name, seconds in (self._parking | self._joining).items()}


def _seconds_in(message: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {name: float(message[name]) for name in names if _is_duration(message.get(name))}


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= _MOST_S

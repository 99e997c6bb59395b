"""Which nodes an attempt calls sick, and how often it may (pure).

Scripts are not trusted, and each such word costs a machine, or a new start of the worker group.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Nodes that an attempt may call sick, and how often it may do so, the same nodes counted each time.
MOST_NODES, MOST_REPORTS = 3, 6


class SickNodes:
    """Ray's names of the nodes that an attempt has called sick."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._reports = 0

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def add(self, names: Iterable[str]) -> bool:
        """Take note of them; False when the attempt has said so too often."""
        wider = self._names | set(names)
        if len(wider) > MOST_NODES or self._reports >= MOST_REPORTS:
            return False
        self._names = wider
        self._reports += 1
        return True

"""The jobs of a replay that wait or want more, in the order of their turns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from cluster.simulator.jobs import SimJob

#: Jobs of each project that take part in turns of projects, as in the service.
OF_EACH = 50


class Line:
    """Jobs in order of a turn that each of them has by itself."""

    def __init__(self) -> None:
        self._turns: list[Any] = []
        self._sims: list[SimJob] = []

    def __len__(self) -> int:
        return len(self._sims)

    def add(self, turn: Any, sim: SimJob) -> None:
        """Put a job where its turn is."""
        at = bisect_right(self._turns, turn)
        self._turns.insert(at, turn)
        self._sims.insert(at, sim)

    def remove(self, turn: Any) -> None:
        """Take out the job with this turn, if it is here."""
        at = bisect_left(self._turns, turn)
        if at < len(self._turns) and self._turns[at] == turn:
            del self._turns[at], self._sims[at]

    def first(self, count: int) -> list[SimJob]:
        """The jobs whose turn comes next."""
        return self._sims[:count]

    def everybody(self) -> list[SimJob]:
        """All jobs."""
        return list(self._sims)

    def others_changed(self) -> None:
        """What runs holds more or less than before, which is no matter here."""


class SharedLine(Line):
    """Jobs whose order depends on what the projects hold; `order` puts the first ones of each in order."""

    def __init__(self, order: Callable[[list[SimJob]], list[SimJob]]) -> None:
        super().__init__()
        self._order = order
        self._by_project: dict[str, Line] = {}
        #: The order, as long as nothing changed that it depends on.
        self._known: list[SimJob] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._by_project.values()))

    def add(self, turn: Any, sim: SimJob) -> None:
        """Put a job where its turn is among those of its project."""
        self._by_project.setdefault(sim.job.project, Line()).add(turn, sim)
        self._known = None

    def remove(self, turn: Any) -> None:
        """Take out the job with this turn, if it is here."""
        for line in self._by_project.values():
            line.remove(turn)
        self._known = None

    def first(self, count: int) -> list[SimJob]:
        """The jobs whose turn comes next; those behind the first ones of their project are left out."""
        if self._known is None:
            self._known = self._order(
                [sim for line in self._by_project.values() for sim in line.first(OF_EACH)]
            )
            for place, sim in enumerate(self._known):
                if sim.place != place:
                    sim.place, sim.seen = place, None
        return self._known[:count]

    def everybody(self) -> list[SimJob]:
        """All jobs, those of one project after those of another."""
        return [sim for line in self._by_project.values() for sim in line.everybody()]

    def others_changed(self) -> None:
        """What runs holds more or less than before."""
        self._known = None

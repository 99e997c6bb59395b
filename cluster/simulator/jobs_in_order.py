"""The jobs of a replay that wait or may grow, in the order of the queue."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from cluster.scheduling.queue_order import WINDOW_OF_EACH, QueueKey
from cluster.simulator.jobs import SimJob


class JobsInOrder:
    """Jobs in the order of their sort keys, which depend on nothing but the job."""

    def __init__(self) -> None:
        self._keys: list[QueueKey] = []
        self._sims: list[SimJob] = []

    def __len__(self) -> int:
        return len(self._sims)

    def add(self, key: QueueKey, sim: SimJob) -> None:
        """Insert a job at its place."""
        at = bisect_right(self._keys, key)
        self._keys.insert(at, key)
        self._sims.insert(at, sim)

    def remove(self, key: QueueKey) -> None:
        """Remove the job with this key, if it is here."""
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            del self._keys[at], self._sims[at]

    def first(self, count: int) -> list[SimJob]:
        """The jobs that come next."""
        return self._sims[:count]

    def show(self, width: int) -> None:
        """Show a plan `width` times as many jobs as usual, which changes nothing here."""

    def cut_at(self, shown: Sequence[SimJob]) -> frozenset[str]:
        """The jobs behind which more wait than are shown, by id."""
        return frozenset([shown[-1].job.id]) if shown and len(shown) < len(self) else frozenset()

    def all(self) -> list[SimJob]:
        """All jobs."""
        return list(self._sims)

    def held_resources_changed(self) -> None:
        """Running jobs hold more or fewer workers than before, which changes nothing here."""


class JobsByProject(JobsInOrder):
    """Jobs whose order depends on what their projects hold; `order` sorts the first jobs of all projects."""

    def __init__(self, order: Callable[[list[SimJob]], list[SimJob]]) -> None:
        super().__init__()
        self._order = order
        self._by_project: dict[str, JobsInOrder] = {}
        self._most = WINDOW_OF_EACH
        #: The last order, until something changes that it depends on.
        self._known: list[SimJob] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._by_project.values()))

    def add(self, key: QueueKey, sim: SimJob) -> None:
        """Insert a job at its place among those of its project."""
        self._by_project.setdefault(sim.job.project, JobsInOrder()).add(key, sim)
        self._known = None

    def remove(self, key: QueueKey) -> None:
        """Remove the job with this key, if it is here."""
        for jobs in self._by_project.values():
            jobs.remove(key)
        self._known = None

    def first(self, count: int) -> list[SimJob]:
        """The jobs that come next, of each project at most the number that is shown."""
        if self._known is None:
            self._known = self._order(
                [sim for jobs in self._by_project.values() for sim in jobs.first(self._most)]
            )
            for place, sim in enumerate(self._known):
                if sim.place != place:
                    sim.place, sim.seen = place, None
        return self._known[:count]

    def show(self, width: int) -> None:
        """Show `width` times as many jobs of each project as usual."""
        if self._most != width * WINDOW_OF_EACH:
            self._most, self._known = width * WINDOW_OF_EACH, None

    def cut_at(self, _: Sequence[SimJob]) -> frozenset[str]:
        """The last jobs that are shown of each project of which more wait, by id."""
        cut = [jobs.first(self._most)[-1] for jobs in self._by_project.values() if len(jobs) > self._most]
        return frozenset(sim.job.id for sim in cut)

    def all(self) -> list[SimJob]:
        """All jobs, project by project."""
        return [sim for jobs in self._by_project.values() for sim in jobs.all()]

    def held_resources_changed(self) -> None:
        """Running jobs hold more or fewer workers than before."""
        self._known = None

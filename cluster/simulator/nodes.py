"""A node of a replay: what is free on it, and what it has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.scheduling.fitting import take
from cluster.scheduling.view import NodeView
from cluster.simulator.market import Stock
from remora.states import NodeState


@dataclass(slots=True, eq=False)
class SimNode:
    """One node; times are seconds since the trace began."""

    #: Counts from 1, in the order in which nodes were bought.
    number: int
    pool: str
    stock: Stock
    created_s: float
    #: USD for an hour when it was bought: what jobs with a budget pay for their parts of it.
    price_per_hour: float
    free: dict[str, float]
    fabric: str | None = None
    #: The job that it was bought for, and the project that pays for it, where that is counted.
    bought_for: str | None = None
    project: str | None = None
    state: NodeState = NodeState.LAUNCHED
    #: Workers by job id.
    jobs: dict[str, int] = field(default_factory=dict)
    ready_s: float | None = None
    idle_since: float | None = None
    deadline_s: float | None = None
    leaving_since: float | None = None
    ended_s: float | None = None
    #: USD until `paid_until`.
    cost: float = 0.0
    paid_until: float = 0.0
    #: As in a view.
    id: str = field(init=False)
    #: As the planner saw it last; None once something has changed that it sees.
    seen: NodeView | None = None

    def __post_init__(self) -> None:
        self.id = f"node_{self.number:06d}"

    def take(self, job_id: str, workers: int, worker: Mapping[str, float]) -> None:
        """Put workers on it."""
        self.seen = None
        self.jobs[job_id] = self.jobs.get(job_id, 0) + workers
        take(self.free, worker, workers)
        self.idle_since = None

    def give_back(
        self, job_id: str, worker: Mapping[str, float], now: float, workers: int | None = None
    ) -> None:
        """Take a job's workers away; None: all of them."""
        self.seen = None
        have = self.jobs.pop(job_id, 0)
        if workers is None:
            workers = have
        elif workers < have:
            self.jobs[job_id] = have - workers
        take(self.free, worker, -workers)
        if not self.jobs:
            self.free = dict(self.stock.offering.resources)
            self.idle_since = now if self.state is NodeState.READY else None

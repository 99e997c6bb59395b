"""Small worlds for tests of replays, and planners that are as simple or as wild as one wants."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.scheduling.actions import Action, Drain, Launch, Plan, Terminate
from cluster.scheduling.view import ClusterView
from cluster.traces.trace import TraceJob
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState

SPOT = Offering(
    size="gpu4", zone="1", capacity=CapacityType.SPOT, resources={"CPU": 16.0, "GPU": 4.0}, price_per_hour=3.6
)
ON_DEMAND = Offering(
    size="gpu4",
    zone="1",
    capacity=CapacityType.ON_DEMAND,
    resources={"CPU": 16.0, "GPU": 4.0},
    price_per_hour=7.2,
)
POLICIES = Policies(
    pools={"gpu": PoolPolicy(sizes=("gpu4",), zones=("1",), capacity=CapacityRule.SPOT, max_nodes=5)}
)


def job(
    name: str,
    at_s: float = 0.0,
    *,
    workers: int = 4,
    least: int | None = None,
    work_s: float = 4000.0,
    multiple_of: int = 1,
    divided: int | None = None,
    budget: float | None = None,
) -> TraceJob:
    return TraceJob(
        id=name,
        at_s=at_s,
        sizes=WorkerSizes(least or workers, workers, multiple_of, divided),
        resources={"GPU": 1.0, "CPU": 4.0},
        work_s=work_s,
        checkpoint_s=100.0,
        resume_s=10.0,
        resize_s=5.0,
        budget=budget,
    )


def without_backoff(losses: int) -> float | None:
    """A job that was lost starts again at once, and is given up after twenty losses."""
    return 0.0 if losses < 20 else None


@dataclass(frozen=True)
class Keep:
    """Keeps that number of nodes of one offering."""

    count: int
    offering: Offering = SPOT

    def __call__(self, view: ClusterView, policies: Policies, now: float) -> Plan:
        alive = [node for node in view.nodes if node.is_usable]
        return (launch(self.offering),) * (self.count - len(alive))


class Wild:
    """Launches, drains and terminates as a seed has it, within the pool's limit."""

    def __init__(self, seed: int) -> None:
        self.views: list[ClusterView] = []
        self._random = Random(seed)

    def __call__(self, view: ClusterView, policies: Policies, now: float) -> Plan:
        self.views.append(view)
        alive = [node for node in view.nodes if node.state not in (NodeState.GONE, NodeState.FAILED)]
        actions: list[Action] = []
        for node in alive:
            chance = self._random.random()
            if chance < 0.01:
                actions.append(Terminate(node_id=node.id, reason="chance"))
            elif chance < 0.03:
                deadline_at = now + self._random.choice([0.0, 30.0, 120.0])
                actions.append(Drain(node_id=node.id, deadline_at=deadline_at, reason="chance"))
        free = policies.pools["gpu"].max_nodes - len(alive)
        count = self._random.randint(1, free) if free > 0 else 0
        actions.extend(launch(self._random.choice([SPOT, ON_DEMAND])) for _ in range(count))
        return tuple(actions)


def launch(offering: Offering) -> Launch:
    return Launch(pool="gpu", offering=offering.id, resources=offering.resources, reason="wanted")

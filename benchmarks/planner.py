"""Seconds that one plan takes: clusters that work, with queues behind them, and half of the spot market refused."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace
from typing import Any

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import Policies
from cluster.scheduling.actions import Launch
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView, JobDemand, NodeView, Refusal
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState

NOW = 1_800_000_000.0
SIZES = ((10, 100), (100, 1_000), (1_000, 10_000))
#: Plans of each size; the slowest one is left out of nothing, the median is what is written down.
TRIES = 5
_GPUS = {"a": 1.0, "b": 4.0, "c": 8.0}


def run() -> dict[str, Any]:
    """`{"plan_s": {"nodes_10_jobs_100": seconds, ...}}`."""
    return {"plan_s": {f"nodes_{nodes}_jobs_{jobs}": _seconds(nodes, jobs) for nodes, jobs in SIZES}}


def _seconds(nodes: int, jobs: int) -> float:
    view, policies = crowd(nodes, jobs, random.Random(nodes))
    assert any(isinstance(action, Launch) for action in plan(view, policies, NOW))
    seconds = []
    for _ in range(TRIES):
        again = replace(view)  # what a view has worked out for the plan before is forgotten
        began = time.perf_counter()
        plan(again, policies, NOW)
        seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds), 4)


def crowd(nodes: int, jobs: int, dice: random.Random) -> tuple[ClusterView, Policies]:
    """A cluster whose nodes work but for a tenth, and jobs of several shapes that wait."""
    offerings = tuple(
        _offering(size, zone, capacity) for size in _GPUS for zone in "123" for capacity in CapacityType
    )
    running, there = _working(nodes, offerings, dice)
    waiting = [_job(f"job_w{at:06}", dice) for at in range(jobs - len(running))]
    spot = [one.id for one in offerings if one.capacity is CapacityType.SPOT]
    view = ClusterView(
        jobs=(*running, *waiting),
        nodes=tuple(there),
        offerings=offerings,
        refusals=tuple(Refusal(offering=name, until=NOW + 600.0) for name in spot[: len(spot) // 2]),
        quota_left={"spotcores": 100 * nodes, "ondemandcores": 20 * nodes},
        # As the service shows a cluster that costs money.
        strict_order=True,
    )
    pool = {"sizes": ["a", "b", "c"], "zones": ["1", "2", "3"], "max_nodes": nodes, "grow_per_minute": 10_000}
    rules = {"p": "prefer-spot", "q": "mixed", "r": "on-demand"}
    named = {name: {**pool, "capacity": rule} for name, rule in rules.items()}
    return view, Policies.model_validate({"pools": named})


def _offering(size: str, zone: str, capacity: CapacityType) -> Offering:
    spot = capacity is CapacityType.SPOT
    return Offering(
        size=size,
        zone=zone,
        capacity=capacity,
        resources={"CPU": 8 * _GPUS[size], "GPU": _GPUS[size]},
        price_per_hour=_GPUS[size] * (1.0 if spot else 4.0),
        quota="SpotCores" if spot else "OnDemandCores",
        quota_units=int(8 * _GPUS[size]),
        has_fabric=size == "c",
    )


def _working(
    nodes: int, offerings: tuple[Offering, ...], dice: random.Random
) -> tuple[list[JobDemand], list[NodeView]]:
    running: list[JobDemand] = []
    there: list[NodeView] = []
    for at in range(nodes):
        bought = dice.choice(offerings)
        works = dice.random() < 0.9
        if works:
            workers = int(bought.resources["GPU"])
            demand = _job(f"job_r{at:06}", dice)
            running.append(
                replace(
                    demand,
                    sizes=WorkerSizes(1, workers + dice.choice((0, 4))),
                    placement=ANYWHERE,
                    worker_resources={"CPU": 4.0, "GPU": 1.0},
                    is_running=True,
                )
            )
        there.append(
            NodeView(
                id=f"node_{at:06}",
                pool=dice.choice("pqr"),
                state=NodeState.READY,
                created_at=NOW - dice.uniform(100, 100_000),
                offering=bought.id,
                resources=bought.resources,
                jobs={running[-1].id: int(bought.resources["GPU"])} if works else {},
                idle_since=None if works else NOW - dice.uniform(0, 600),
            )
        )
    return running, there


def _job(name: str, dice: random.Random) -> JobDemand:
    least = dice.choice((1, 1, 1, 2, 4, 8, 16))
    return JobDemand(
        id=name,
        project=dice.choice(("vision", "speech", "text")),
        sizes=WorkerSizes(least, least * dice.choice((1, 2, 4))),
        worker_resources={"CPU": dice.choice((2.0, 4.0, 8.0)), "GPU": dice.choice((1.0, 1.0, 2.0))},
        placement=Placement(
            pools=dice.choice(((), ("p",), ("q", "p"), ("r",))), needs_fabric=dice.random() < 0.05
        ),
        priority=dice.choice((10, 50, 50, 90)),
        created_at=NOW - dice.uniform(0, 3_600),
        saved_at=NOW - dice.uniform(0, 600),
        resume_s=20.0,
    )

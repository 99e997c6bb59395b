"""A replay knows the quotas of the cloud: the planner keeps within them, and nothing is sold beyond."""

from __future__ import annotations

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies
from cluster.scheduling.actions import Launch, Plan
from cluster.scheduling.view import ClusterView
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.nodes import SimNode
from cluster.simulator.replay import Replay
from cluster.simulator.report import report_of
from cluster.traces.trace import Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import backoff_in_a_replay, replayed

UNITS = 24


def offering(size: str, capacity: CapacityType) -> Offering:
    spot = capacity is CapacityType.SPOT
    return Offering(
        size=size,
        zone="1",
        capacity=capacity,
        resources={"GPU": 1.0},
        price_per_hour=1.0 if spot else 4.0,
        quota="lowPriorityCores" if spot else f"{size}Family",
        quota_units=UNITS,
    )


OFFERINGS = tuple(offering(size, capacity) for size in ("a", "b") for capacity in CapacityType)


def job(name: str, at_s: float, workers: int, hours: float = 1.0) -> TraceJob:
    return TraceJob(
        id=name,
        at_s=at_s,
        sizes=WorkerSizes(1, workers),
        resources={"GPU": 1.0},
        work_s=workers * hours * 3600.0,
    )


def trace(*jobs: TraceJob, **quotas: int) -> Trace:
    return Trace(offerings=OFFERINGS, jobs=jobs, quotas=quotas)


def policies(capacity: str, **more: object) -> Policies:
    pool = {"sizes": ["a", "b"], "zones": ["1"], "capacity": capacity, "max_nodes": 20, "idle_s": 300, **more}
    return Policies.model_validate({"pools": {"gpu": pool}})


def most_units(nodes: list[SimNode], quota: str) -> int:
    """Of the quota, at one time: from the order of a node to its end, whatever it does meanwhile."""
    mine = [node for node in nodes if node.stock.offering.quota.lower() == quota]
    changes = [(node.created_s, UNITS) for node in mine]
    changes += [(node.ended_s, -UNITS) for node in mine if node.ended_s is not None]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def test_the_quota_that_is_left_bounds_what_is_bought_of_all_sizes_together() -> None:
    many = trace(job("wide", 0.0, 9), job("next", 600.0, 9), lowprioritycores=4 * UNITS + 23)
    replay = replayed(many, policies("spot"), Assumptions())
    assert most_units(replay.fleet.every, "lowprioritycores") == 4 * UNITS
    assert (
        most_units(
            replayed(trace(*many.jobs), policies("spot"), Assumptions()).fleet.every, "lowprioritycores"
        )
        > 4 * UNITS
    )
    assert (report_of(replay).succeeded, replay.fleet.refused) == (2, 0), "what is over is not even asked for"


def test_the_next_size_is_bought_when_the_quota_of_the_first_is_used_up() -> None:
    replay = replayed(trace(job("wide", 0.0, 3), afamily=UNITS), policies("on-demand"), Assumptions())
    assert [node.stock.offering.size for node in replay.fleet.every] == ["a", "b", "b"]


def test_a_job_that_the_quota_of_spot_leaves_nothing_waits_for_on_demand() -> None:
    full = trace(job("first", 0.0, 1, hours=5.0), job("second", 60.0, 1), lowprioritycores=UNITS)
    replay = replayed(full, policies("prefer-spot", patience_s=600), Assumptions())
    assert [(node.created_s, node.stock.offering.capacity) for node in replay.fleet.every] == [
        (0.0, CapacityType.SPOT),
        (660.0, CapacityType.ON_DEMAND),
    ]


def test_a_node_that_starts_and_one_that_is_drained_use_the_quota_and_one_that_ended_does_not() -> None:
    seen: list[tuple[float, int, int]] = []

    def planner(view: ClusterView, asked: Policies, now: float) -> Plan:
        seen.append((now, len([node for node in view.nodes if node.is_paid]), view.quota_left["afamily"]))
        wanted = Launch(pool="gpu", offering=OFFERINGS[1].id, resources={"GPU": 1.0}, reason="wanted")
        return () if view.nodes else (wanted, wanted)

    many = trace(job("wide", 0.0, 2), afamily=3 * UNITS)
    run = Replay(
        many,
        policies("on-demand"),
        planner,
        backoff_in_a_replay,
        Assumptions(asks_always=True),
    )
    run.run()
    assert seen[:2] == [(0.0, 0, 3 * UNITS), (60.0, 2, UNITS)]
    run.fleet.drain(run.now, run.fleet.every[0], run.now + 100.0)
    assert run.fleet.market.quota_left["afamily"] == UNITS
    run.fleet.end(run.now, run.fleet.every[0])
    assert run.fleet.market.quota_left["afamily"] == 2 * UNITS


def test_the_cloud_refuses_what_is_above_the_quota_and_says_which() -> None:
    def greedy(view: ClusterView, asked: Policies, now: float) -> Plan:
        return (Launch(pool="gpu", offering=OFFERINGS[1].id, resources={"GPU": 1.0}, reason="wanted"),)

    many, rule = trace(job("wide", 0.0, 9), afamily=2 * UNITS), policies("on-demand")
    run = Replay(many, rule, greedy, backoff_in_a_replay, Assumptions(asks_always=True))
    run.run()
    assert most_units(run.fleet.every, "afamily") == 2 * UNITS
    assert run.fleet.refused > 0
    (refusal,) = run.fleet.refusals(run.now)
    assert refusal.reason == "the quota aFamily has no capacity for one more a/1/on-demand"


@pytest.mark.parametrize("units", [UNITS, UNITS - 1])
def test_a_quota_too_small_for_one_node_keeps_every_job_waiting(units: int) -> None:
    report = report_of(
        replayed(
            trace(job("a", 0.0, 1), lowprioritycores=units), policies("spot"), Assumptions(stuck_s=7200.0)
        )
    )
    assert report.succeeded == (1 if units == UNITS else 0)

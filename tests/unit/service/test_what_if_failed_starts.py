"""A replay gives up nodes that do not join in time and slows their pool down, as the service does, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling.installed_rules import load_rules
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.report import report_of
from cluster.traces.lines import write_lines
from cluster.traces.trace import Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.what_if.answer import answer, replayed
from service.what_if.question import read_question

OFFERINGS = tuple(
    Offering(size="a", zone="1", capacity=capacity, resources={"GPU": 1.0}, price_per_hour=price)
    for capacity, price in ((CapacityType.SPOT, 1.0), (CapacityType.ON_DEMAND, 4.0))
)


def policies(capacity: CapacityRule, **join_timeouts: str) -> Policies:
    """Pools of these names that buy alike, and how long each waits for a node to join."""
    common = {"sizes": ["a"], "zones": ["1"], "capacity": capacity}
    return Policies.model_validate(
        {"pools": {name: {**common, "join_timeout_s": timeout} for name, timeout in join_timeouts.items()}}
    )


def trace(begins_at: float = 0.0) -> Trace:
    """A job of two workers, for whose nodes one waits ten minutes."""
    one = TraceJob(id="j", at_s=0.0, sizes=WorkerSizes(2, 2), resources={"GPU": 1.0}, work_s=2 * 3600.0)
    return Trace(offerings=OFFERINGS, jobs=(one,), provisioning_s=600.0, begins_at=begins_at)


@pytest.mark.parametrize("capacity", [CapacityRule.SPOT, CapacityRule.ON_DEMAND, CapacityRule.PREFER_SPOT])
def test_a_job_runs_in_the_next_pool_after_the_nodes_of_the_first_did_not_join(
    capacity: CapacityRule,
) -> None:
    replay = replayed(trace(), policies(capacity, a="100s", b="15m"), Assumptions())
    assert report_of(replay).succeeded == 1
    ends = {"a": NodeState.FAILED, "b": NodeState.GONE}
    nodes = replay.fleet.every
    assert {node.pool for node in nodes if node.ready_s is not None} == {"b"}
    assert all(node.state in (ends[node.pool], NodeState.READY) for node in nodes)
    assert len(nodes) <= 8


@pytest.mark.parametrize(
    ("capacity", "begins_at"), [(CapacityRule.SPOT, 0.0), (CapacityRule.PREFER_SPOT, 1_764_000_000.1234567)]
)
def test_a_pool_whose_nodes_never_join_is_asked_for_few_and_at_the_times_of_a_planner_that_looks_always(
    capacity: CapacityRule, begins_at: float
) -> None:
    hasty, stuck = policies(capacity, a="100s"), Assumptions(stuck_s=2 * 86_400.0)
    seldom = replayed(trace(begins_at), hasty, stuck)
    always = replayed(trace(begins_at), hasty, replace(stuck, asks_always=True))
    assert seldom.now >= stuck.stuck_s, "no node is given up before"
    assert len(seldom.fleet.every) < 100
    created = [
        [node.created_s for node in one.fleet.every if node.created_s < stuck.stuck_s]
        for one in (seldom, always)
    ]
    assert created[0] == created[1]
    assert seldom.looks < always.looks / 5


@pytest.mark.parametrize(("timeout", "launches"), [("160s", 2 + 1 + 2), ("301s", 2 + 2), ("601s", 2)])
def test_a_pool_whose_nodes_join_late_waits_longer_and_buys_few_at_the_times_of_a_planner_that_looks_always(
    timeout: str, launches: int
) -> None:
    late = policies(CapacityRule.SPOT, a=timeout)
    seldom = replayed(trace(), late, Assumptions())
    always = replayed(trace(), late, Assumptions(asks_always=True))
    created = [[node.created_s for node in one.fleet.every] for one in (seldom, always)]
    assert created[0] == created[1]
    assert report_of(seldom).succeeded == 1
    assert len(created[0]) == launches, "none is bought in a circle"


def test_the_notes_name_what_never_joined_and_what_was_paid_for_it() -> None:
    def notes(join_timeout: str) -> list[str]:
        document = policies(CapacityRule.SPOT, a=join_timeout).model_dump_json(exclude_unset=True)
        asked = {
            "traces": [{"name": "t.jsonl", "text": "\n".join(write_lines(trace()))}],
            "policies": [{"name": "p", "text": document}],
        }
        found = answer(read_question(asked), lambda _part: None, load_rules)
        (report,) = found["reports"]
        paid = f"{report['cost_usd']:.2f} USD of its cost are of {report['launches']} nodes that never joined"
        return [note.replace(paid, "PAID") for note in found["notes"]]

    assert notes("120s") == [
        "p: pool 'a' gives a node up that has not joined within 120 s (join_timeout_s), and nodes of the trace need"
        " 600 s (provisioning_s)",
        "1 of 1 jobs never ran under p: its waits and times are of the others alone, and PAID",
    ]
    assert [note[:11] for note in notes("600s")] == ["p: pool 'a'"]
    assert notes("601s") == []

"""A replay asks the rules of a site about every launch, as the service does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies
from cluster.scheduling import installed_rules
from cluster.scheduling.actions import Launch
from cluster.scheduling.installed_rules import GROUP, load_rules
from cluster.scheduling.launch_checks import Rule
from cluster.scheduling.view import ClusterView
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.replay import Replay
from cluster.simulator.report import report_of
from cluster.traces.trace import Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import answer, replayed
from service.what_if.question import Question

OFFERING = Offering(
    size="gpu1", zone="1", capacity=CapacityType.ON_DEMAND, resources={"GPU": 1.0}, price_per_hour=2.0
)


def job(name: str, at_s: float) -> TraceJob:
    return TraceJob(id=name, at_s=at_s, sizes=WorkerSizes(1, 1), resources={"GPU": 1.0}, work_s=20_000.0)


TRACE = Trace(offerings=(OFFERING,), jobs=(job("first", 0.0), job("second", 7210.0)))


def policies(*rules: str) -> Policies:
    pool = {"sizes": ["gpu1"], "zones": ["1"], "capacity": "on-demand", "max_nodes": 4}
    return Policies.model_validate({"pools": {"gpu": pool}, "rules": rules})


def crowd(view: ClusterView, launch: Launch) -> str | None:
    return None if len(view.jobs) > 1 else f"one job is not worth a node of {launch.pool}"


def nights(view: ClusterView, launch: Launch) -> str | None:
    hour = dt.datetime.fromtimestamp(view.now, dt.UTC).hour
    return None if 1 <= hour < 20 else f"nothing for {launch.pool} at night"


def power(view: ClusterView, launch: Launch) -> str | None:
    raise OSError(f"no answer from the meter for {len(view.nodes)} nodes")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [EntryPoint(name, f"{__name__}:{name}", GROUP) for name in ("crowd", "nights", "power")]
    monkeypatch.setattr(installed_rules, "entry_points", lambda group: points)
    installed_rules._load.cache_clear()
    yield
    installed_rules._load.cache_clear()


def run(*rules: tuple[str, Rule]) -> Replay:
    return replayed(TRACE, policies(*(name for name, _ in rules)), Assumptions(), rules=rules)


def answered(**by_name: Policies) -> dict[str, Any]:
    return answer(Question(trace=TRACE, policies=by_name), lambda part: None, load_rules)


def test_a_launch_that_a_rule_refuses_waits_until_it_does_not() -> None:
    assert [node.created_s for node in run().fleet.every] == [0.0, 7260.0]
    assert [node.created_s for node in run(("crowd", crowd)).fleet.every] == [7260.0, 7260.0]


def test_a_rule_gets_the_time_of_the_trace() -> None:
    from_midnight = run(("nights", nights))
    assert [node.created_s for node in from_midnight.fleet.every] == [3600.0, 7260.0]
    trace = replace(TRACE, begins_at=dt.datetime(2026, 7, 1, 19, 30, tzinfo=dt.UTC).timestamp())
    rules = (("nights", nights),)
    from_evening = replayed(trace, policies("nights"), Assumptions(), rules=rules)
    assert [node.created_s for node in from_evening.fleet.every] == [0.0, 5.5 * 3600.0], (
        "one waits until one o'clock"
    )


def test_a_rule_that_fails_is_passed_over() -> None:
    without, passed_over = report_of(run()), report_of(run(("power", power)))
    assert replace(passed_over, looks=0) == replace(without, looks=0)
    assert [node.created_s for node in run(("power", power), ("crowd", crowd)).fleet.every] == [
        7260.0,
        7260.0,
    ]


def test_a_question_is_answered_with_the_installed_rules_of_each_policy() -> None:
    free, ruled = answered(free=policies(), ruled=policies("crowd"))["reports"]
    assert (free["wait_p50_s"], ruled["wait_p95_s"]) == (240.0, 7260.0 + 240.0)


def test_the_notes_say_once_of_each_policy_which_rules_were_passed_over_and_why() -> None:
    found = answered(free=policies("gone"), ruled=policies("gone", "power"))
    assert found["notes"] == [
        "free: the rule gone is passed over: no rule 'gone' is installed in the group remora.rules",
        "ruled: the rule gone is passed over: no rule 'gone' is installed in the group remora.rules",
        "ruled: the rule power is passed over: it raised OSError: no answer from the meter for 0 nodes",
    ]
    assert [report["succeeded"] for report in found["reports"]] == [2, 2]

"""A replay decides as the service does, and says in one sentence why a question cannot be answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.scheduling.installed_rules import load_rules
from cluster.scheduling.planner import plan
from cluster.scheduling.queue_order import WINDOW
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.replay import Replay
from cluster.simulator.report import report_of
from cluster.traces.generator import Cluster, GeneratorOptions, generated
from cluster.traces.trace import PROVISIONING_S, MarketChange, Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import answer, backoff_in_a_replay, replayed
from service.what_if.question import Refused, read_question

EXAMPLES = Path(__file__).parents[3] / "examples" / "what-if"
SIZE = "gpu4"
OFFERINGS = tuple(
    Offering(
        size=SIZE,
        zone=zone,
        capacity=capacity,
        resources={"CPU": 16.0, "GPU": 4.0},
        price_per_hour=price,
        quota="Spot" if capacity is CapacityType.SPOT else "Gpu4Family",
        quota_units=16,
    )
    for zone in ("1", "2")
    for capacity, price in ((CapacityType.SPOT, 3.0), (CapacityType.ON_DEMAND, 9.0))
)


SMALL = Cluster(median_s=600, mean_s=2500, mean_gpus=3.0, longest_s=15_000)


def policies(rule: CapacityRule, **fields: Any) -> Policies:
    pool = PoolPolicy(sizes=(SIZE,), zones=("1", "2"), capacity=rule, **{"max_nodes": 8, **fields})
    return Policies(pools={"gpu": pool})


def a_trace(seed: int, jobs: int = 25, quotas: Mapping[str, int] | None = None) -> Trace:
    options = GeneratorOptions(seed=seed, jobs=jobs, span_s=600.0 * jobs, cluster=SMALL, most_gpus=16)
    return replace(generated(options, OFFERINGS, spot_nodes=4), quotas=quotas or {})


def test_a_job_that_is_lost_a_hundred_times_is_given_up() -> None:
    assert backoff_in_a_replay(1) == backoff_in_a_replay(100) == 0.5
    assert backoff_in_a_replay(101) is None


def test_all_jobs_of_a_burst_get_nodes_at_once_where_there_are_enough() -> None:
    """Also those that the planner is not shown at first."""
    jobs = tuple(
        TraceJob(id=f"j{n:03}", at_s=0.0, sizes=WorkerSizes(1, 1), resources={"GPU": 1.0}, work_s=3600.0)
        for n in range(3 * WINDOW)
    )
    rules = policies(CapacityRule.ON_DEMAND, max_nodes=150, grow_per_minute=1000.0)
    work = replayed(Trace(offerings=OFFERINGS, jobs=jobs), rules, Assumptions()).work
    assert {sim.started_s for sim in work.ended} == {PROVISIONING_S}
    assert len(work.ended) == len(jobs)


@pytest.mark.parametrize("rule", list(CapacityRule))
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_planner_keeps_the_pool_within_its_limits_and_every_job_ends(
    rule: CapacityRule, seed: int
) -> None:
    trace = a_trace(seed)
    replay = replayed(trace, policies(rule), Assumptions(seed=seed, stuck_s=86_400.0))
    report = report_of(replay)
    assert most_nodes(replay) <= 8
    kinds = {node.stock.offering.capacity for node in replay.fleet.every}
    if rule in (CapacityRule.SPOT, CapacityRule.ON_DEMAND):
        assert kinds == {CapacityType(rule.value)}
    if rule in (CapacityRule.ON_DEMAND, CapacityRule.PREFER_SPOT):  # the others wait for spot, come what may
        assert report.succeeded == len(trace.jobs)
    for sim in replay.work.ended:
        assert sim.done_s == pytest.approx(sim.job.work_s)


def most_nodes(replay: Replay) -> int:
    changes = [(node.created_s, 1) for node in replay.fleet.every]
    changes += [(node.ended_s, -1) for node in replay.fleet.every if node.ended_s is not None]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


#: None; fewer nodes than the pool may have; and units that are left over.
QUOTAS = st.sampled_from(
    [{}, {"spot": 4 * 16}, {"spot": 2 * 16 + 7, "gpu4family": 5 * 16}, {"gpu4family": 4 * 16}, {"spot": 0}]
)
PACES = st.sampled_from([0.5, 1.0, 60.0])


@settings(max_examples=20, deadline=None)
# a job grows into a node that was bought for one that waits
@example(8177, CapacityRule.SPOT, 0, 60.0, 60.0, None, {})
@example(8009, CapacityRule.SPOT, 3, 60.0, 60.0, None, {})  # only the pool asks for a node
@example(1, CapacityRule.ON_DEMAND, 3, 0.5, 60.0, None, {})  # nothing happens until the pace allows a launch
@example(6, CapacityRule.PREFER_SPOT, 0, 60.0, 60.0, 600.0, {"spot": 64})  # spot takes over one by one
@example(30, CapacityRule.PREFER_SPOT, 0, 60.0, 0.5, 600.0, {})  # as the pace of returns allows it
@example(290293, CapacityRule.PREFER_SPOT, 0, 0.5, 0.5, None, {})  # something happens a blink after a look
@given(
    st.integers(0, 2**32),
    st.sampled_from(list(CapacityRule)),
    st.integers(0, 3),
    PACES,
    PACES,
    st.sampled_from([None, 0.0, 600.0, 1000.0]),
    QUOTAS,
)
def test_a_planner_that_is_asked_only_after_changes_decides_the_same(
    seed: int,
    rule: CapacityRule,
    min_nodes: int,
    grows: float,
    shrinks: float,
    returns: float | None,
    quotas: Mapping[str, int],
) -> None:
    paces = {"grow_per_minute": grows, "shrink_per_minute": shrinks, "return_to_spot_s": returns}
    # Seconds since 1970 of a recorded trace are not exact to the microsecond.
    trace = replace(a_trace(seed, quotas=quotas), begins_at=1_764_000_000.1234567 * (seed % 2))
    policy = policies(rule, min_nodes=min_nodes, **paces)
    assumptions = Assumptions(seed=seed, stuck_s=20_000.0)
    seldom = report_of(replayed(trace, policy, assumptions))
    always = report_of(replayed(trace, policy, replace(assumptions, asks_always=True)))
    assume(seldom.failed == 0)  # what a replay that got stuck saw last is chance
    # who asks more often hears more refusals, and nothing else
    assert replace(seldom, looks=0, refused=0) == replace(always, looks=0, refused=0)
    assert seldom.looks < always.looks


def test_a_job_grows_as_quickly_as_the_pace_of_its_pool_allows() -> None:
    wide = TraceJob(id="wide", at_s=0.0, sizes=WorkerSizes(1, 4), resources={"GPU": 4.0}, work_s=20_000.0)
    replay = replayed(
        Trace(offerings=OFFERINGS, jobs=(wide,)),
        policies(CapacityRule.ON_DEMAND, grow_per_minute=0.5),
        Assumptions(),
    )
    assert [node.created_s for node in replay.fleet.every] == [0.0, 120.0, 240.0, 360.0]


def test_on_demand_is_bought_in_the_minute_in_which_a_deadline_comes_near() -> None:
    late = TraceJob(
        id="late",
        at_s=0.0,
        sizes=WorkerSizes(4, 4),
        resources={"GPU": 1.0},
        work_s=4 * 3600.0,
        deadline_s=20_000.0,
    )
    none = tuple(MarketChange(at_s=0.0, offering=f"{SIZE}/{zone}/spot", nodes=0) for zone in ("1", "2"))
    replay = replayed(
        Trace(offerings=OFFERINGS, jobs=(late,), changes=none),
        policies(CapacityRule.PREFER_SPOT, patience_s=100_000),
        Assumptions(),
    )
    # Before the deadline: an hour of work, three starts of a node and the job, the work since a checkpoint: 14990 s.
    assert [node.created_s for node in replay.fleet.every] == [15_000.0]


def _beside_one_that_grows(deadline_s: float | None, **urgent: Any) -> Replay:
    """A job that grows into whatever is free runs on the only spot node; another one comes later."""
    grows = TraceJob(
        id="grows",
        at_s=0.0,
        sizes=WorkerSizes(1, 6),
        resources={"GPU": 4.0},
        work_s=120_000.0,
        checkpoint_s=600.0,
    )
    waits = TraceJob(
        id="waits", at_s=900.0, resources={"GPU": 4.0}, work_s=4000.0, deadline_s=deadline_s, checkpoint_s=600.0,
        **{"sizes": WorkerSizes(1, 1), **urgent},
    )  # fmt: skip
    few = tuple(
        MarketChange(at_s=0.0, offering=f"{SIZE}/{zone}/spot", nodes=nodes)
        for zone, nodes in (("1", 1), ("2", 0))
    )
    return replayed(
        Trace(offerings=OFFERINGS, jobs=(grows, waits), changes=few),
        policies(CapacityRule.PREFER_SPOT, patience_s=100_000),
        Assumptions(),
    )


def test_no_job_grows_onto_the_node_that_was_bought_for_a_job_that_waits() -> None:
    replay = _beside_one_that_grows(6200.0)
    waits, bought = (
        replay.work.sims["waits"],
        [one for one in replay.fleet.every if one.bought_for == "waits"],
    )
    assert [node.stock.offering.capacity for node in bought] == [CapacityType.ON_DEMAND]
    assert waits.started_s == bought[0].ready_s
    assert (waits.ended_s or 0.0) <= 6200.0


def test_a_group_grows_onto_the_node_once_the_job_that_it_was_bought_for_has_ended() -> None:
    replay = _beside_one_that_grows(6200.0)
    waits, grows = replay.work.sims["waits"], replay.work.sims["grows"]
    assert len(replay.fleet.every) == 2
    alone = (120_000.0 - (waits.ended_s or 0.0)) / 2 + (waits.ended_s or 0.0)
    assert grows.ended_s == pytest.approx(alone, abs=1000.0), "from then on with two workers"


def _wanted(job: TraceJob, hurry: int) -> TraceJob:
    """With a deadline after up to twice the time that it takes."""
    return replace(job, deadline_s=round(job.at_s + 900 + job.work_s / job.max_workers * (1.1 + hurry / 4)))


class AlwaysAsking(Replay):
    """Asks the planner at every look, also when its answer is known."""

    def _is_plan_empty(self, now: float) -> bool:
        return False


@settings(max_examples=15, deadline=None)
@example(
    888, CapacityRule.PREFER_SPOT, True, {}, False
)  # workers on a node that is drained while spot comes back
@given(
    st.integers(0, 2**32),
    st.sampled_from([CapacityRule.PREFER_SPOT, CapacityRule.SPOT, CapacityRule.MIXED]),
    st.booleans(),
    QUOTAS,
    st.booleans(),
)
def test_what_is_known_of_pools_at_rest_is_what_the_planner_says(
    seed: int, rule: CapacityRule, returns: bool, quotas: Mapping[str, int], are_wanted: bool
) -> None:
    trace = a_trace(seed, 40, quotas)
    if are_wanted:
        trace = replace(trace, jobs=tuple(_wanted(job, number % 5) for number, job in enumerate(trace.jobs)))
    policy = policies(rule, max_nodes=4, return_to_spot_s=600 if returns else None)
    assumptions = Assumptions(seed=seed, stuck_s=20_000.0)
    asking = AlwaysAsking(trace, policy, plan, backoff_in_a_replay, assumptions)
    asking.run()
    assert report_of(replayed(trace, policy, assumptions)) == report_of(asking)


def test_a_budget_is_kept() -> None:
    trace, rule = a_trace(5, 60), CapacityRule.ON_DEMAND
    free = report_of(replayed(trace, policies(rule), Assumptions()))
    budget = {"usd_per_day": free.cost_usd / 4}
    tight = Policies.model_validate({**policies(rule).model_dump(), "budget": budget})
    report = report_of(replayed(trace, tight, Assumptions()))
    assert report.budget_violations == 0
    assert report.makespan_s > free.makespan_s


def question(**changes: Any) -> dict[str, Any]:
    trace = (EXAMPLES / "trace.jsonl").read_text()
    document = {"name": "spot.yaml", "text": (EXAMPLES / "prefer-spot.yaml").read_text()}
    return {"traces": [{"name": "trace.jsonl", "text": trace}], "policies": [document], **changes}


def test_the_example_is_answered_and_equal_questions_have_equal_answers() -> None:
    on_demand = {"name": "on-demand.yaml", "text": (EXAMPLES / "on-demand.yaml").read_text()}
    asked = question(policies=[*question()["policies"], on_demand])
    reported: list[float] = []
    first = answer(read_question(asked), reported.append, load_rules)
    assert first == answer(read_question(asked), reported.append, load_rules)
    spot, without = first["reports"]
    assert spot["succeeded"] == without["succeeded"] == 60
    assert spot["cost_usd"] < without["cost_usd"]
    assert (without["preemptions"], without["spot_share"]) == (0, 0.0)
    assert first["plot"].startswith("<svg")
    json.dumps(first)


def test_jobs_that_never_ran_under_a_policy_are_named_in_a_sentence() -> None:
    asked = question()
    lines = [json.loads(line) for line in asked["traces"][0]["text"].splitlines()]
    jobs = [line for line in lines if line["kind"] == "job"]
    for job in jobs[:20]:
        job["resources"] = {"GPU": 400.0}  # on no node
    jobs[20]["budget"] = 1e-6
    asked["traces"][0]["text"] = "\n".join(map(json.dumps, lines))
    found = answer(read_question(asked), lambda _part: None, load_rules)
    (report,) = found["reports"]
    assert (report["jobs"], report["succeeded"], report["failed"], report["never_ran"]) == (60, 39, 21, 20)
    assert found["notes"] == [
        f"20 of 60 jobs never ran and 1 of 60 jobs began and failed under {report['policy']}: its waits and times are"
        " of the others alone, and so its cost is less"
    ]
    assert answer(read_question(question()), lambda _part: None, load_rules)["notes"] == []


@pytest.mark.parametrize(
    ("spoil", "field", "said"),
    [
        (lambda body: body.pop("traces"), "traces", "Field required"),
        (lambda body: body.update(seeds=3), "seeds", "Extra inputs"),
        (lambda body: body["traces"][0].update(text="{"), "traces", "trace.jsonl, line 1: Invalid JSON"),
        (lambda body: body["traces"][0].update(text=""), "traces", "no job"),
        (lambda body: body["policies"][0].update(text="pools: ["), "policies", "spot.yaml: "),
        (lambda body: body["policies"][0].update(text="3"), "policies", "spot.yaml: "),
        (lambda body: body["policies"][0].update(text="pools: {}"), "policies", "spot.yaml: it has no pool"),
        (
            lambda body: body["policies"][0].update(text="pools: {a: {sizes: [H200]}}"),
            "policies",
            "spot.yaml: pools.a.sizes",
        ),
        (
            lambda body: body["policies"][0].update(text="pools: {a: {sizes: [x], max_nodes: -1}}"),
            "policies",
            "spot.yaml: pools.a.max_nodes (line 1)",
        ),
        (
            lambda body: body["policies"][0].update(
                text="pools: {a: {sizes: [Standard_NC96ads_A100_v4]},"
                " b: {sizes: [Standard_NC96ads_A100_v4], cluster: ward}}"
            ),
            "policies",
            "spot.yaml: it has pools of the clusters default, ward, and a replay is of one",
        ),
        (lambda body: body.update(policies=body["policies"] * 2), "policies", "two policies are named"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(
    spoil: Callable[[dict[str, Any]], Any], field: str, said: str
) -> None:
    body = question()
    spoil(body)
    with pytest.raises(Refused) as refused:
        read_question(body)
    assert refused.value.field == field
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)

"""A replay puts workers only where their job's placement allows it, as the service does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling.actions import Plan
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.nodes import SimNode
from cluster.simulator.replay import Replay
from cluster.simulator.report import ReplayReport, report_of
from cluster.traces.trace import MarketChange, Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import backoff_in_a_replay, replayed

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
NODE = {"CPU": 16.0, "GPU": 4.0}
OFFERINGS = (
    *(
        Offering(size="gpu4", zone=zone, capacity=capacity, resources=NODE, price_per_hour=price)
        for zone in ("1", "2")
        for capacity, price in ((SPOT, 3.0), (ON_DEMAND, 9.0))
    ),
    *(
        Offering(
            size="fast4", zone="1", capacity=capacity, resources=NODE, price_per_hour=price, has_fabric=True
        )
        for capacity, price in ((SPOT, 4.0), (ON_DEMAND, 12.0))
    ),
)
#: Where jobs of random traces may ask to run.
PLACEMENTS = (
    ANYWHERE,
    Placement(capacity=CapacityRule.SPOT),
    Placement(capacity=CapacityRule.ON_DEMAND),
    Placement(capacity=CapacityRule.PREFER_SPOT, zones=("2",)),
    Placement(capacity=CapacityRule.MIXED),
    Placement(zones=("1",)),
    Placement(pools=("gpu",)),
    Placement(pools=("fast", "gpu")),
    Placement(needs_fabric=True),
    Placement(needs_fabric=True, capacity=CapacityRule.SPOT),
)


def job(
    name: str,
    placement: Placement = ANYWHERE,
    *,
    at_s: float = 0.0,
    workers: tuple[int, int] = (4, 4),
    **more: Any,
) -> TraceJob:
    least, most = workers
    return TraceJob(
        id=name,
        at_s=at_s,
        sizes=WorkerSizes(least, most),
        resources={"GPU": 1.0},
        placement=placement,
        **{"work_s": 4 * 3600.0, **more},
    )  # fmt: skip


def policies(rule: CapacityRule = CapacityRule.PREFER_SPOT, nodes: int = 4, **fields: Any) -> Policies:
    common = {"capacity": rule, "max_nodes": nodes, **fields}
    return Policies.model_validate(
        {
            "pools": {
                "gpu": {"sizes": ["gpu4"], "zones": ["1", "2"], **common},
                "fast": {"sizes": ["fast4"], "zones": ["1"], **common},
            }
        }
    )


class Watched:
    """The planner of the service; remembers what it was shown, and where workers were put."""

    def __init__(self) -> None:
        self.views: list[ClusterView] = []
        #: Job, node and workers.
        self.put: list[tuple[str, SimNode, int]] = []

    def __call__(self, view: ClusterView, asked: Policies, now: float) -> Plan:
        self.views.append(view)
        return plan(view, asked, now, explains_waits=False)

    def replayed(self, trace: Trace, rules: Policies, assumptions: Assumptions) -> Replay:
        run = Replay(trace, rules, self, backoff_in_a_replay, assumptions)
        take = run.fleet.take

        def noted(node: SimNode, job_id: str, workers: int, worker: Mapping[str, float]) -> None:
            self.put.append((job_id, node, workers))
            take(node, job_id, workers, worker)

        with patch.object(run.fleet, "take", noted):
            run.run()
        return run

    def offerings_of(self, name: str) -> set[str]:
        return {node.stock.offering.id for job_id, node, _ in self.put if job_id == name}

    def workers_of(self, name: str) -> list[int]:
        return [workers for job_id, _, workers in self.put if job_id == name]

    def domains_of(self, name: str) -> set[str | None]:
        return {node.fabric for job_id, node, _ in self.put if job_id == name}


def run_of(
    *jobs: TraceJob, rules: Policies, changes: tuple[MarketChange, ...] = ()
) -> tuple[Replay, Watched]:
    seen = Watched()
    trace = Trace(offerings=OFFERINGS, jobs=jobs, changes=changes)
    return seen.replayed(trace, rules, Assumptions(stuck_s=20_000.0)), seen


def none_of(*offerings: str) -> tuple[MarketChange, ...]:
    return tuple(MarketChange(at_s=0.0, offering=one, nodes=0) for one in offerings)


def test_a_job_that_asks_for_spot_waits_for_it_beside_on_demand_nodes_that_are_free() -> None:
    spot = Placement(capacity=CapacityRule.SPOT, pools=("gpu",))
    back = MarketChange(at_s=9000.0, offering="gpu4/1/spot", nodes=9)
    rules = policies(min_nodes=2, idle_s=600, patience_s=0)
    run, seen = run_of(
        job("a", spot), rules=rules, changes=(*none_of("gpu4/1/spot", "gpu4/2/spot"), back)
    )  # fmt: skip
    assert any(node.stock.offering.capacity is ON_DEMAND and node.pool == "gpu" for node in run.fleet.every)
    assert seen.offerings_of("a") == {"gpu4/1/spot"}
    assert (run.work.sims["a"].started_s or 0.0) > 9000.0
    assert report_of(run).succeeded == 1


def test_a_job_that_asks_for_on_demand_is_given_it_while_all_spot_is_refused() -> None:
    spot = [one.id for one in OFFERINGS if one.capacity is SPOT]
    few = MarketChange(at_s=0.0, offering=spot[0], nodes=1)
    more_is_wanted = job("a", Placement(capacity=CapacityRule.SPOT), workers=(4, 16))
    insists = job("b", Placement(capacity=CapacityRule.ON_DEMAND), at_s=650.0)
    rules = policies(patience_s=100_000)
    run, seen = run_of(more_is_wanted, insists, rules=rules, changes=(few, *none_of(*spot[1:])))
    # Spot was refused at 600 s, until 900 s, and no job has waited long enough to be given anything else.
    assert run.work.sims["b"].started_s == 660.0 + run.trace.provisioning_s
    assert seen.offerings_of("b") == {"gpu4/1/on-demand"}


def test_zones_and_pools_are_kept() -> None:
    second = job("second", Placement(zones=("2",)))
    fast = job("fast", Placement(pools=("fast",)))
    either = job("either", workers=(2, 2))
    run, seen = run_of(either, fast, second, rules=policies(CapacityRule.SPOT))
    assert seen.offerings_of("second") == {"gpu4/2/spot"}
    assert seen.offerings_of("fast") == {"fast4/1/spot"}
    assert seen.offerings_of("either") == {"gpu4/1/spot"}
    assert report_of(run).succeeded == 3


def test_an_elastic_job_grows_only_where_it_may_run() -> None:
    elastic = job("elastic", Placement(zones=("2",)), workers=(4, 8), work_s=50 * 3600.0)
    other = job("other", Placement(zones=("1",)), work_s=600.0)
    few = MarketChange(at_s=0.0, offering="gpu4/2/spot", nodes=1)
    more = MarketChange(at_s=20_000.0, offering="gpu4/2/spot", nodes=2)
    rules = policies(CapacityRule.SPOT, idle_s=50_000)
    _, seen = run_of(elastic, other, rules=rules, changes=(few, more))
    # The node of the other job is free for hours, and the elastic one goes on with half of its workers.
    assert seen.offerings_of("elastic") == {"gpu4/2/spot"}
    assert seen.workers_of("elastic") == [4, 4]


def test_a_job_that_asks_for_infiniband_grows_only_in_its_own_domain() -> None:
    joined = Placement(needs_fabric=True)
    elastic = job("elastic", joined, workers=(4, 12), work_s=20 * 3600.0)
    other = job("other", joined, workers=(8, 8), work_s=600.0)
    few = MarketChange(at_s=0.0, offering="fast4/1/spot", nodes=1)
    run, seen = run_of(elastic, other, rules=policies(idle_s=50_000, patience_s=600), changes=(few,))
    # Spot is short and on-demand stands in for it, as a domain of its own, whose nodes are free soon.
    assert seen.offerings_of("elastic") == {"fast4/1/spot"}
    assert seen.workers_of("elastic") == [4]
    assert seen.offerings_of("other") == {"fast4/1/on-demand"}
    assert len(seen.domains_of("elastic") | seen.domains_of("other")) == 2
    assert report_of(run).succeeded == 2


def test_a_job_that_lost_its_domain_finds_another() -> None:
    joined = Placement(needs_fabric=True)
    gone = MarketChange(at_s=1200.0, offering="fast4/1/spot", nodes=0)
    there = MarketChange(at_s=0.0, offering="fast4/1/spot", nodes=9)
    run, seen = run_of(job("a", joined, workers=(4, 8)), rules=policies(), changes=(there, gone))
    assert seen.offerings_of("a") == {"fast4/1/spot", "fast4/1/on-demand"}
    assert len(seen.domains_of("a")) == 2
    assert (report_of(run).losses, report_of(run).succeeded) == (1, 1)


def in_one_domain(seen: Watched, asked: Mapping[str, Placement]) -> None:
    for view in seen.views:
        domains: dict[str, set[str | None]] = {}
        for node in view.nodes:
            for name in node.jobs:
                if asked[name].needs_fabric:
                    domains.setdefault(name, set()).add(node.fabric)
        for one in view.jobs:
            fabric = one.placement.fabric
            assert domains.get(one.id, {fabric}) == {fabric}
            assert (fabric is not None) == (one.is_running and asked[one.id].needs_fabric)


@pytest.mark.parametrize(
    ("placement", "workers"),
    [
        (Placement(pools=("none",)), 1),
        (Placement(zones=("3",)), 1),
        (Placement(capacity=CapacityRule.ON_DEMAND), 1),
        (Placement(pools=("fast",), zones=("2",)), 1),
        (Placement(pools=("gpu",), needs_fabric=True), 1),
        (Placement(zones=("2",)), 17),
        (Placement(needs_fabric=True), 17),
    ],
)
def test_a_job_that_nothing_can_ever_hold_is_counted_and_stops_no_other_job(
    placement: Placement, workers: int
) -> None:
    never = job("never", placement, workers=(workers, workers))
    run, _ = run_of(never, job("a"), rules=policies(CapacityRule.SPOT))
    assert (run.work.impossible, report_of(run).succeeded, report_of(run).failed) == (1, 1, 1)


def test_what_a_pool_may_have_but_no_cloud_sells_holds_no_job() -> None:
    rules = policies(CapacityRule.SPOT)
    fits = job("a", Placement(zones=("2",)), workers=(16, 16))
    sold = tuple(one for one in OFFERINGS if one.zone == "1")
    for offerings, impossible in ((OFFERINGS, 0), (sold, 1)):
        trace = Trace(offerings=offerings, jobs=(fits,))
        assert replayed(trace, rules, Assumptions()).work.impossible == impossible


def a_trace(seed: int, jobs: int = 30) -> Trace:
    """Jobs with placements, and spot that comes and goes."""
    random = Random(seed)
    arriving = []
    for number in range(jobs):
        most = random.choice([1, 2, 4, 6, 8])
        least = random.choice([1, most])
        placement = random.choice(PLACEMENTS) if random.random() < 0.7 else ANYWHERE
        at_s, work_s = random.uniform(0, 900.0 * jobs), random.uniform(600, 6000.0) * most
        arriving.append(job(f"j{number:02d}", placement, at_s=at_s, workers=(least, most), work_s=work_s))
    sold = [one for one in OFFERINGS if one.capacity is SPOT]
    changes = [MarketChange(at_s=0.0, offering=one.id, nodes=random.randint(0, 3)) for one in sold]
    for one in sold:
        changes += [
            MarketChange(at_s=random.uniform(0, 50_000.0), offering=one.id, nodes=random.randint(0, 4))
            for _ in range(8)
        ]
        changes.append(MarketChange(at_s=60_000.0, offering=one.id, nodes=9))
    arriving.sort(key=lambda one: one.at_s)
    changes.sort(key=lambda one: one.at_s)
    return Trace(offerings=OFFERINGS, jobs=tuple(arriving), changes=tuple(changes))


RULES = st.sampled_from([CapacityRule.PREFER_SPOT, CapacityRule.SPOT, CapacityRule.MIXED])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), RULES)
def test_workers_are_only_where_their_job_accepts_them(seed: int, rule: CapacityRule) -> None:
    trace = a_trace(seed)
    seen = Watched()
    run = seen.replayed(trace, policies(rule, patience_s=300), Assumptions(seed=seed, stuck_s=20_000.0))
    asked = {one.id: one.placement for one in trace.jobs}
    for name, node, _ in seen.put:
        sold = node.stock.offering
        assert asked[name].allows(node.pool, sold.zone, sold.capacity), name
    in_one_domain(seen, asked)
    for sim in run.work.ended:
        assert sim.done_s == pytest.approx(sim.job.work_s)


class AlwaysAsking(Replay):
    """Asks the planner at every look, also when its answer is known."""

    def _is_plan_empty(self, now: float) -> bool:
        return False


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), rule=RULES, returns=st.booleans(), nodes=st.integers(2, 4))
def test_what_is_known_of_pools_at_rest_is_what_the_planner_says(
    seed: int, rule: CapacityRule, returns: bool, nodes: int
) -> None:
    trace = a_trace(seed, 40)
    rules = policies(rule, nodes, patience_s=900, return_to_spot_s=600 if returns else None)
    assumptions = Assumptions(seed=seed, stuck_s=20_000.0)
    asking = AlwaysAsking(trace, rules, plan, backoff_in_a_replay, assumptions)
    asking.run()
    assert report_of(replayed(trace, rules, assumptions)) == report_of(asking)


@settings(max_examples=25, deadline=None)
# spot comes back just before the jobs that wait are given up
@example(seed=1386, rule=CapacityRule.PREFER_SPOT, nodes=4, returns=600, limits=False)
@given(
    seed=st.integers(0, 2**32),
    rule=RULES,
    nodes=st.integers(2, 4),
    returns=st.sampled_from([None, 600]),
    limits=st.booleans(),
)
def test_a_planner_that_is_asked_only_after_changes_decides_the_same(
    seed: int, rule: CapacityRule, nodes: int, returns: int | None, limits: bool
) -> None:
    trace, rules = a_trace(seed), policies(rule, nodes, patience_s=900, return_to_spot_s=returns)
    if limits:
        trace = replace(trace, jobs=tuple(limited(one, Random(f"{seed} {one.id}")) for one in trace.jobs))
    assumptions = Assumptions(seed=seed, stuck_s=20_000.0)
    run = replayed(trace, rules, assumptions)
    seldom = report_of(run)
    always = report_of(replayed(trace, rules, replace(assumptions, asks_always=True)))
    assume(not run.work.unfinished())  # what a replay that got stuck saw last is chance
    # who asks more often hears more refusals, and nothing else
    assert without_looks(seldom) == without_looks(always)
    assert seldom.looks < always.looks


def limited(one: TraceJob, random: Random) -> TraceJob:
    """The job with a deadline, money for a part of its work or more, and a model on two workers where it can have."""
    return replace(
        one,
        deadline_s=one.at_s + random.uniform(2000, 30_000),
        budget=random.choice([None, random.uniform(1.0, 40.0)]),
        sizes=WorkerSizes(
            one.min_workers, one.max_workers, 1 if one.min_workers % 2 or one.max_workers % 2 else 2
        ),
    )


def without_looks(report: ReplayReport) -> ReplayReport:
    return replace(report, looks=0, refused=0)

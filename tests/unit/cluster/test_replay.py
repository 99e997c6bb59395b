"""A replay does every job's work once, pays for every node-second, and repeats itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType
from cluster.policies.policies import BudgetPolicy, Policies, Schedule, Window
from cluster.scheduling.actions import Drain, Launch, Plan, Terminate
from cluster.scheduling.health import remembered_s
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.ledger import DAY_S
from cluster.simulator.nodes import SimNode
from cluster.simulator.replay import PROGRESS_EVERY, Replay
from cluster.simulator.report import ReplayReport, as_numbers, quantile, report_of
from cluster.traces.trace import MarketChange, Trace, TraceJob
from remora.states import NodeState
from tests.unit.cluster.simulated import ON_DEMAND, POLICIES, SPOT, Keep, Wild, job, launch, without_backoff

SEEDS = st.integers(0, 2**32)


def replay(
    *jobs: TraceJob, planner: object, changes: tuple[MarketChange, ...] = (), seed: int = 0
) -> tuple[Replay, ReplayReport]:
    trace = Trace(offerings=(SPOT, ON_DEMAND), jobs=jobs, changes=changes, provisioning_s=120.0)
    run = Replay(trace, POLICIES, planner, without_backoff, Assumptions(seed=seed))  # type: ignore[arg-type]
    run.run()
    return run, report_of(run)


def market(at_s: float, nodes: int | None = None, price: float | None = None) -> MarketChange:
    return MarketChange(at_s=at_s, offering=SPOT.id, nodes=nodes, price_per_hour=price)


def test_a_job_waits_for_its_node_starts_and_does_its_work() -> None:
    _, report = replay(job("a"), planner=Keep(1))
    assert report.wait_p50_s == 120.0
    assert report.completion_p50_s == 120.0 + 10.0 + 1000.0
    assert report.cost_usd == pytest.approx(1130.0 * 3.6 / 3600)
    assert report.goodput == pytest.approx(1000 / 1010)
    assert report.spot_share == 1.0


def test_a_job_that_waits_starts_where_and_when_another_one_ends() -> None:
    _, report = replay(job("a"), job("b", 1.0), planner=Keep(1))
    assert report.launches == 1
    assert report.makespan_s == 120.0 + 2 * (10.0 + 1000.0)


def test_a_job_too_large_for_what_a_schedule_allows_now_holds_up_no_other_job() -> None:
    # Until six in the morning the pool may have one node, and the first job needs two.
    night = Schedule(window=Window(begins="0 0 * * *", lasts_s=6 * 3600.0), max_nodes=1)
    pool = POLICIES.pools["gpu"].model_copy(update={"schedules": (night,)})
    policies = POLICIES.model_copy(update={"pools": {"gpu": pool}})

    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        return Keep(1 if now < 6 * 3600.0 else 2)(view, policies, now)

    jobs = (job("large", workers=8), job("small", 1.0))
    trace = Trace(offerings=(SPOT, ON_DEMAND), jobs=jobs, changes=(), provisioning_s=120.0)
    run = Replay(trace, policies, planner, without_backoff, Assumptions(seed=0))
    run.run()
    ended = {sim.job.id: sim.ended_s for sim in run.work.ended}
    assert ended["small"] == 120.0 + 10.0 + 1000.0, "as the service does, which asks what is allowed now"
    assert ended["large"] > 6 * 3600.0


def test_a_job_of_fixed_size_repeats_what_no_checkpoint_has_when_its_node_is_taken() -> None:
    # ready at 120, trains from 130, checkpoints at 230 and 330; the node is gone at 350, the next one comes at 480
    taken = (market(0, nodes=1), market(350, nodes=0), market(351, nodes=1))
    _, report = replay(job("a"), planner=Keep(1), changes=taken)
    assert report.preemptions == report.losses == 1
    assert report.lost_s == 20.0 * 4
    assert report.useful_s == 4000.0
    assert report.succeeded == 1


def test_an_elastic_job_goes_on_smaller_and_grows_again() -> None:
    taken = (market(0, nodes=2), market(400, nodes=1), market(401, nodes=2))
    _, report = replay(job("a", workers=8, least=4), planner=Keep(2), changes=taken)
    assert (report.preemptions, report.losses, report.shrinks) == (1, 0, 1)
    assert report.lost_s == 0.0
    assert report.useful_s == 4000.0
    # it stood still at its start, when it shrank, and when the new node came
    assert report.stalled_s == 8 * 10.0 + 4 * 5.0 + 8 * 5.0


def test_an_elastic_job_that_is_left_with_too_few_ends_at_a_checkpoint() -> None:
    taken = (market(0, nodes=1), market(350, nodes=0), market(351, nodes=1))
    _, report = replay(job("a", workers=4, least=2), planner=Keep(1), changes=taken)
    assert (report.losses, report.lost_s, report.succeeded) == (1, 0.0, 1)


def test_a_drained_node_takes_no_new_work_and_ends_when_it_is_empty() -> None:
    looks: list[ClusterView] = []

    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        looks.append(view)
        busy = [node for node in view.nodes if node.jobs and node.is_usable]
        if busy and len([node for node in view.nodes if node.is_usable]) == 1:
            return Drain(node_id=busy[0].id, deadline_at=now + 1e6, reason="test"), *Keep(2)(
                view, policies, now
            )
        return Keep(1)(view, policies, now)

    run, report = replay(job("a", work_s=8000), job("b", at_s=300.0, work_s=400), planner=planner)
    ended = {sim.job.id: sim for sim in run.work.ended}
    assert ended["a"].losses == 0
    assert ended["b"].ended_s < ended["a"].ended_s
    assert report.succeeded == 2


def test_a_node_that_failed_is_seen_for_as_long_as_it_slows_its_pool_down() -> None:
    last_seen: dict[tuple[str, NodeState], float] = {}
    ready_at: dict[str, float | None] = {}

    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        last_seen.update({(node.id, node.state): now for node in view.nodes})
        ready_at.update({node.id: node.ready_at for node in view.nodes})
        if now == 60.0:
            return Terminate(node_id=view.nodes[0].id, reason="test", is_failure=True), launch(SPOT)
        return Keep(1)(view, policies, now)

    trace = Trace(offerings=(SPOT, ON_DEMAND), jobs=(job("a", work_s=120_000.0),), provisioning_s=120.0)
    Replay(trace, POLICIES, planner, without_backoff, Assumptions(asks_always=True)).run()
    (failed_until,) = [at for (_, state), at in last_seen.items() if state is NodeState.FAILED]
    assert failed_until == 60.0 + remembered_s(POLICIES)
    assert list(ready_at.values()) == [None, 180.0]


def test_the_price_of_the_time_is_paid() -> None:
    _, report = replay(job("a"), planner=Keep(1), changes=(market(500, price=7.2),))
    assert report.cost_usd == pytest.approx(500 * 3.6 / 3600 + 630 * 7.2 / 3600)


def test_a_job_that_fits_nowhere_fails_and_stops_no_other_job() -> None:
    _, report = replay(job("a", workers=21), job("b"), planner=Keep(1))
    assert (report.succeeded, report.failed) == (1, 1)


@pytest.mark.parametrize(("workers", "lasts_s"), [(4, 500.0), (2, 1000.0)])
def test_a_job_ends_when_its_parts_of_nodes_have_cost_its_budget(workers: int, lasts_s: float) -> None:
    # A node costs 3.6 USD an hour when it is bought, so that half of one costs 0.5 USD in 1000 s.
    poor = job("a", workers=workers, work_s=40_000.0, budget=0.5)
    run, report = replay(poor, planner=Keep(1), changes=(market(300, price=36.0),))
    (sim,) = run.work.given_up
    assert (report.succeeded, report.failed, report.losses) == (0, 1, 0)
    assert (sim.started_s, sim.at_s, sim.spent) == (120.0, 120.0 + lasts_s, pytest.approx(0.5))
    assert sim.done_s == workers * (lasts_s - 10.0), "it ends at a checkpoint"
    rich = replace(poor, budget=100.0)
    assert replay(rich, planner=Keep(1))[1].succeeded == 1


def test_a_budget_that_nodes_without_jobs_have_used_up_stays_used_up_until_the_day_ends() -> None:
    launched_at: list[float] = []

    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        actions = plan(view, policies, now)
        launched_at.extend(now for action in actions if isinstance(action, Launch))
        return actions

    warm = POLICIES.pools["gpu"].model_copy(update={"min_nodes": 24, "max_nodes": 24})
    policies = Policies(pools={"gpu": warm}, budget=BudgetPolicy(usd_per_day=36.0))
    trace = Trace(offerings=(SPOT,), jobs=(job("a", at_s=DAY_S + 60.0),), provisioning_s=120.0)
    Replay(trace, policies, planner, without_backoff, Assumptions()).run()
    assert len([at for at in launched_at if at < DAY_S]) == 24


def test_what_a_job_spent_before_it_was_lost_counts_and_the_planner_knows_what_is_left() -> None:
    left: dict[float, float] = {}

    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        for one in view.jobs:
            left[now] = round(one.budget_left or 0.0, 6)
        return Keep(1)(view, policies, now)

    taken = (market(0, nodes=1), market(350, nodes=0), market(351, nodes=1))
    poor = job("a", work_s=40_000.0, budget=0.5)
    trace = Trace(offerings=(SPOT, ON_DEMAND), jobs=(poor,), changes=taken, provisioning_s=120.0)
    run = Replay(trace, POLICIES, planner, without_backoff, Assumptions(asks_always=True))
    run.run()
    (sim,) = run.work.given_up
    # A dime pays for 100 s: for 230 s of the first node, and for 270 s of the next one, which is ready at 480 s.
    assert (sim.losses, sim.at_s, sim.spent) == (1, pytest.approx(750.0), pytest.approx(0.5))
    assert [left[at] for at in (60.0, 240.0, 360.0, 420.0, 600.0, 720.0)] == [
        0.5,
        0.38,
        0.27,
        0.27,
        0.15,
        0.03,
    ]


def test_a_job_goes_on_with_whole_copies_of_its_model() -> None:
    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        seen.append(sum(node.jobs.get("b", 0) for node in view.nodes))
        return Keep(2)(view, policies, now)

    # Of 8 GPUs a has one, and b three on each node, of which one goes: two workers go on, or two more find capacity.
    jobs = (
        job("a", workers=1, work_s=9000.0),
        job("b", 1.0, workers=6, least=2, work_s=9000.0, multiple_of=2),
    )
    trace = Trace(
        offerings=(SPOT, ON_DEMAND), jobs=jobs, changes=(market(0, 2), market(500, 1)), provisioning_s=120.0
    )
    after: set[int] = set()
    for seed in range(6):
        seen: list[int] = []
        run = Replay(trace, POLICIES, planner, without_backoff, Assumptions(seed=seed, asks_always=True))
        run.run()
        assert report_of(run).shrinks == 1
        assert {workers % 2 for workers in seen} == {0}
        assert seen[7] == 6
        after.add(seen[10])
    assert after == {2, 4}


@pytest.mark.parametrize("look_s", [12.34, 60.0])
def test_time_goes_on_from_look_to_look_also_where_seconds_between_them_are_no_whole_number(
    look_s: float,
) -> None:
    looks: list[float] = [-1.0]

    def planner(view: ClusterView, policies: Policies, now: float) -> Plan:
        assert now > looks[-1]
        looks.append(now)
        return Keep(1)(view, policies, now)

    trace = Trace(offerings=(SPOT, ON_DEMAND), jobs=(job("a"),), provisioning_s=120.0)
    run = Replay(trace, POLICIES, planner, without_backoff, Assumptions(look_s=look_s, asks_always=True))
    run.run()
    assert len(looks) == pytest.approx(run.now / look_s, abs=2.0)


def test_jobs_for_which_nothing_ever_comes_are_given_up() -> None:
    _, report = replay(job("a"), planner=Keep(1), changes=(market(0, nodes=0),))
    assert (report.succeeded, report.failed, report.cost_usd) == (0, 1, 0.0)
    assert report.refused > 0


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_no_work_is_lost_or_done_twice_whatever_happens_to_the_nodes(seed: int) -> None:
    run, report = wild(seed)
    for sim in run.work.ended:
        assert sim.done_s == pytest.approx(sim.job.work_s)
        assert sim.placed == {}
    assert report.succeeded + len(run.work.given_up) + len(run.work.unfinished()) == 30
    assert report.useful_s <= sum(one.work_s for one in run.trace.jobs) + 1e-6
    # what workers held is what they did, repeated and waited, and never more than nodes had
    held = report.useful_s + report.lost_s + report.stalled_s
    assert held <= run.ledger.capacity_s + 1e-6
    assert min(report.lost_s, report.stalled_s) >= 0


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_cost_is_the_sum_of_node_seconds_times_their_price(seed: int) -> None:
    run, report = wild(seed)
    assert report.cost_usd == pytest.approx(sum(paid(node, run) for node in run.fleet.every))
    assert report.cost_usd == pytest.approx(report.spot_usd + report.on_demand_usd)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_nodes_never_carry_more_than_they_have_and_jobs_stay_within_their_limits(seed: int) -> None:
    planner = Wild(seed)
    run, _ = wild(seed, planner)
    limits = {one.id: one for one in run.trace.jobs}
    for view in planner.views:
        workers: Counter[str] = Counter()
        for node in view.nodes:
            workers.update(node.jobs)
            assert sum(node.jobs.values()) <= node.resources["GPU"]
        for name, count in workers.items():
            assert limits[name].min_workers <= count <= limits[name].max_workers
        assert sum(node.is_paid for node in view.nodes) <= POLICIES.pools["gpu"].max_nodes


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_worker_groups_are_whole_copies_and_budgets_are_kept_whatever_happens_to_the_nodes(seed: int) -> None:
    planner = Wild(seed)
    run, report = wild(seed, planner, copies=2, budget=0.4)
    limits = {one.id: one for one in run.trace.jobs}
    for view in planner.views:
        workers: Counter[str] = Counter()
        for node in view.nodes:
            workers.update(node.jobs)
        assert all(limits[name].sizes.allows(count) for name, count in workers.items())
    for sim in run.work.sims.values():
        assert sim.spent <= (sim.job.budget or 1e9) + 1e-9
    assert report.useful_s + report.lost_s + report.stalled_s <= run.ledger.capacity_s + 1e-6


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_equal_seeds_give_equal_reports(seed: int) -> None:
    assert wild(seed)[1] == wild(seed)[1]


def wild(
    seed: int, planner: Wild | None = None, copies: int = 1, budget: float | None = None
) -> tuple[Replay, ReplayReport]:
    """Half of the jobs have models on numbers of workers, and an amount of money."""
    random = Random(seed)
    jobs = [
        job(
            f"j{number:02d}",
            at_s=random.uniform(0, 20_000),
            workers=(most := random.choice([1, 2, 4, 8])),
            least=min(most, random.choice([copies, most])),
            work_s=random.uniform(1, 20_000),
            multiple_of=copies if number % 2 and most % copies == 0 else 1,
            budget=budget if number % 2 else None,
        )
        for number in range(30)
    ]
    changes = [market(random.uniform(0, 40_000), nodes=random.randint(0, 6)) for _ in range(20)]
    changes += [market(random.uniform(0, 40_000), price=random.uniform(1, 9)) for _ in range(5)]
    jobs.sort(key=lambda one: (one.at_s, one.id))
    changes.sort(key=lambda one: one.at_s)
    return replay(*jobs, planner=planner or Wild(seed), changes=tuple(changes), seed=seed)


def paid(node: SimNode, run: Replay) -> float:
    """The integral of the price over the node's life, without the ledger."""
    end_s = run.now if node.ended_s is None else node.ended_s
    offering = node.stock.offering
    prices = [(0.0, offering.price_per_hour)]
    if offering.capacity is CapacityType.SPOT:
        prices += [
            (one.at_s, one.price_per_hour) for one in run.trace.changes if one.price_per_hour is not None
        ]
    until = [at_s for at_s, _ in prices[1:]] + [float("inf")]
    return sum(
        max(0.0, min(end, end_s) - max(begin, node.created_s)) * price / 3600
        for (begin, price), end in zip(prices, until, strict=True)
    )


def test_quantiles_are_values_that_were_there() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.95) == 4.0
    assert quantile([], 0.5) == 0.0


def test_progress_is_the_part_of_the_jobs_that_has_ended() -> None:
    jobs = tuple(job(f"j{at}", float(at), work_s=1.0) for at in range(PROGRESS_EVERY))
    trace = Trace(offerings=(SPOT, ON_DEMAND), jobs=jobs, changes=(), provisioning_s=120.0)
    seen: list[float] = []
    Replay(trace, POLICIES, Keep(1), without_backoff, Assumptions()).run(seen.append)  # type: ignore[arg-type]
    assert seen == sorted(seen)
    assert 0.0 < seen[-1] <= 1.0


def test_numbers_of_a_report_are_rounded_to_what_means_something() -> None:
    _, report = replay(job("a"), planner=Keep(1))
    numbers = as_numbers(replace(report, goodput=1 / 3))
    assert numbers["goodput"] == 0.333333
    assert numbers["launches"] == report.launches

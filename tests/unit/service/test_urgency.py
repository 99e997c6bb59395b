"""Near deadlines: what slack a job has, and that no rule but spot makes a job late that on-demand had in time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.slack import (
    ORDERED_WITHIN_S,
    changes_at,
    is_urgent,
    keeps_off_spot,
    may_rely_on_spot,
    measured_start_up_s,
    should_move,
    urgent_among,
    urgent_at,
)
from cluster.scheduling.starts import jobs_off_spot
from cluster.scheduling.view import START_UP_S, JobDemand
from cluster.simulator.assumptions import Assumptions
from cluster.traces.trace import MarketChange, Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.queue.demand import demand_of, node_view, placement_in, start_up_s
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.what_if.answer import replayed
from tests.service_fakes import job_row

SIZE = "gpu"
BOTH = tuple(
    Offering(size=SIZE, zone="1", capacity=one, resources={"GPU": 1.0}, price_per_hour=price)
    for one, price in ((CapacityType.SPOT, 1.0), (CapacityType.ON_DEMAND, 3.0))
)
SPOT, ON_DEMAND = (one.id for one in BOTH)
POOL = PoolSize("p", 3, {"GPU": 1.0}, capacities=tuple(CapacityType))

seconds = st.floats(0.0, 10_000.0)


def demand(**fields: object) -> JobDemand:
    made = JobDemand(id="j", sizes=WorkerSizes(1, 1), worker_resources={"GPU": 1.0})
    return replace(made, **fields)  # type: ignore[arg-type]


@given(seconds, seconds, seconds, seconds, seconds, st.floats(0.0, 1.0))
def test_who_may_rely_on_spot_is_in_time_also_if_it_loses_it_at_the_worst_moment(
    work_s: float, spare_s: float, start_up_s: float, resume_s: float, repeats_s: float, done: float
) -> None:
    deadline_at = work_s + spare_s
    job = demand(deadline_at=deadline_at, work_left_s=work_s, resume_s=resume_s, repeats_s=repeats_s)
    if not may_rely_on_spot(job, 0.0, start_up_s, start_up_s):
        return
    lost_at = start_up_s + resume_s + done * work_s
    left_s = work_s - done * work_s + min(repeats_s, done * work_s)
    ends_at = lost_at + start_up_s + resume_s + left_s
    assert ends_at <= deadline_at + 1e-6
    # One more try than that may fail, and while it relies on spot it is never made to move.
    assert ends_at + start_up_s + resume_s <= deadline_at + 1e-6
    running = replace(job, is_running=True, work_left_s=work_s - done * work_s)
    assert not should_move(running, lost_at - 1e-6, start_up_s)


@given(seconds, seconds, seconds, seconds, st.floats(0.0, 20_000.0))
def test_answers_change_only_at_the_times_that_are_named(
    work_s: float, spare_s: float, start_up_s: float, repeats_s: float, later_s: float
) -> None:
    job = demand(deadline_at=work_s + spare_s, work_left_s=work_s, repeats_s=repeats_s)

    def answers(now: float) -> tuple[bool, ...]:
        return (
            is_urgent(job, now, start_up_s),
            may_rely_on_spot(job, now, start_up_s, 0.0),
            may_rely_on_spot(job, now, start_up_s, start_up_s),
            keeps_off_spot(job, now, start_up_s, is_coming=False),
        )

    if answers(0.0) != answers(later_s):
        assert any(-1e-3 <= at <= later_s + 1e-3 for at in changes_at(job, 0.0, start_up_s))


@given(seconds, seconds, seconds, seconds, seconds)
def test_a_job_that_waits_becomes_urgent_at_the_time_that_is_named_and_not_before(
    work_s: float, spare_s: float, start_up_s: float, resume_s: float, repeats_s: float
) -> None:
    job = demand(deadline_at=work_s + spare_s, work_left_s=work_s, resume_s=resume_s, repeats_s=repeats_s)
    at, last = urgent_at(job, start_up_s), work_s + spare_s - work_s
    assert at is not None
    assert at <= last
    assert not is_urgent(job, at - 0.1, start_up_s)
    assert is_urgent(job, at + 0.1, start_up_s) is (at + 0.1 <= last), "with no time to spare it is too late"


def test_a_job_without_a_deadline_or_whose_work_is_unknown_is_never_urgent() -> None:
    for fields in ({}, {"deadline_at": 1.0}, {"work_left_s": 1.0}):
        job = demand(**fields)
        assert may_rely_on_spot(job, 100.0, 300.0, 300.0)
        assert not is_urgent(job, 100.0, 300.0)
        assert urgent_at(job, 300.0) is None
        assert changes_at(job, 100.0, 300.0) == ()


def test_free_spot_is_better_than_nothing_once_no_machine_was_ordered() -> None:
    near = demand(deadline_at=2000.0, work_left_s=1000.0, waiting_since=500.0)
    assert keeps_off_spot(near, 500.0, 300.0, is_coming=False)
    assert not keeps_off_spot(near, 500.0 + ORDERED_WITHIN_S, 300.0, is_coming=False)
    assert keeps_off_spot(near, 500.0 + ORDERED_WITHIN_S, 300.0, is_coming=True)


def test_what_machines_take_to_start_is_measured() -> None:
    assert measured_start_up_s([]) == START_UP_S
    assert measured_start_up_s([(0.0, None), (0.0, 100.0), (50.0, 250.0), (0.0, 900.0)]) == 200.0
    node = NodeRow(id="n", pool="p", created_at=10.0, ready_at=130.0)
    assert start_up_s([node]) == 120.0


def waiting(deadline: float = 10_000.0) -> JobRow:
    """A job that trained half of its 2000 s."""
    spec = {"limits": {"deadline": deadline}, "checkpoint": {"interval": 60.0}}
    return replace(job_row(spec=spec), total_steps=100, step=50, trained_s=1000.0)


def test_the_service_knows_which_of_its_jobs_are_urgent_and_which_keep_off_spot() -> None:
    row = waiting()
    job, other = (demand_of(one, None, None, 0.0) for one in (row, waiting(deadline=1e6)))
    # 1000 s of work, 60 s again, three starts of 300 + 10 s: from 8010 s on.
    assert urgent_among([job, other], 8009.0, 300.0) == frozenset()
    assert urgent_among([job, other], 8011.0, 300.0) == {job.id}
    assert jobs_off_spot([job, other], [], [POOL], 8500.0, 300.0) == frozenset(), "no job ordered a machine"
    order = {"state": NodeState.LAUNCHED, "offering": ON_DEMAND, "bought_for": job.id}
    coming = node_view(NodeRow(id="n", pool="p", created_at=8400.0, **order), {})
    assert jobs_off_spot([job, other], [coming], [POOL], 8500.0, 300.0) == {job.id}
    spot_only = replace(POOL, capacities=(CapacityType.SPOT,))
    assert jobs_off_spot([job, other], [coming], [spot_only], 8500.0, 300.0) == frozenset()


def test_an_attempt_that_began_on_demand_stays_there() -> None:
    attempt = AttemptRow(id="a", job_id="j", attempt=1, created_at=0.0, on_demand=True)
    job = waiting()
    assert placement_in(job, attempt).capacity is CapacityRule.ON_DEMAND
    seen = demand_of(job, attempt, None, 0.0)
    assert (seen.placement.capacity, seen.repeats_s) == (CapacityRule.ON_DEMAND, 60.0)
    assert placement_in(job, replace(attempt, on_demand=False)).capacity is None


def world(seed: int) -> Trace:
    """Jobs with deadlines, some of them tight, beside spot that comes and goes."""
    random = Random(seed)
    jobs = []
    for number in range(12):
        least = random.choice([1, 1, 2])
        length_s, at_s = random.uniform(1800.0, 12_000.0), random.uniform(0.0, 15_000.0)
        jobs.append(
            TraceJob(
                id=f"j{number:02}",
                at_s=round(at_s),
                sizes=WorkerSizes(least, least * random.choice([1, 2])),
                resources={"GPU": 1.0},
                work_s=round(length_s * least),
                deadline_s=round(at_s + 900.0 + length_s * random.uniform(1.05, 3.0)),
            )
        )
    at_s, changes = 0.0, []
    while at_s < 60_000.0:
        changes.append(MarketChange(at_s=round(at_s), offering=SPOT, nodes=random.choice([0, 0, 1, 3, 8])))
        at_s += random.uniform(120.0, 4000.0)
    ordered = tuple(sorted(jobs, key=lambda job: (job.at_s, job.id)))
    return Trace(offerings=BOTH, jobs=ordered, changes=tuple(changes))


def late(trace: Trace, capacity: CapacityRule, **keys: object) -> set[str]:
    pool = PoolPolicy(sizes=(SIZE,), zones=("1",), capacity=capacity, max_nodes=60, **keys)  # type: ignore[arg-type]
    work = replayed(trace, Policies(pools={"p": pool}), Assumptions()).work
    in_time = {sim.job.id for sim in work.ended if (sim.ended_s or 0.0) <= (sim.job.deadline_s or 0.0)}
    return {job.id for job in trace.jobs} - in_time


@pytest.mark.parametrize(
    ("capacity", "keys"),
    [
        (CapacityRule.MIXED, {"on_demand_core": 0}),
        (CapacityRule.MIXED, {"on_demand_core": 1}),
        (CapacityRule.PREFER_SPOT, {"patience_s": 0.0}),
        (CapacityRule.PREFER_SPOT, {"patience_s": 600.0, "return_to_spot_s": 1800.0}),
    ],
)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_on_demand_has_in_time_is_in_time_beside_any_market(
    capacity: CapacityRule, keys: dict[str, object], seed: int
) -> None:
    trace = world(seed)
    assert late(trace, capacity, **keys) <= late(trace, CapacityRule.ON_DEMAND)

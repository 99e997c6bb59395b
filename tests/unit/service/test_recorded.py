"""What happened as a trace: the work of jobs, and where the cloud had nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.report import report_of
from cluster.traces.lines import read_lines, write_lines
from cluster.traces.trace import Trace
from remora.states import JobState
from service.queue.rows import JobRow, NodeRow
from service.what_if.answer import replayed
from service.what_if.recorded import REFUSED_S, Happening, History, recorded
from tests.service_fakes import job_row

SPOT = Offering(
    size="Standard_D4s_v5",
    zone="1",
    capacity=CapacityType.SPOT,
    resources={"CPU": 4.0},
    price_per_hour=0.04,
)
GPU = Offering(
    size="Standard_NC4as_T4_v3",
    zone=None,
    capacity=CapacityType.ON_DEMAND,
    resources={"CPU": 4.0, "GPU": 1.0},
    price_per_hour=0.5,
)


def trains(at: float, workers: int) -> Happening:
    return Happening(at, "attempt.started", {"world_size": workers})


def goes_on_with(at: float, workers: int) -> Happening:
    return Happening(at, "worker_group.regrouped", {"world_size": workers, "cause": "loss"})


def ends(at: float) -> Happening:
    return Happening(at, "attempt.ended", {"end_reason": "completed"})


def ended(**fields: Any) -> JobRow:
    return job_row(1000.0, **{"state": JobState.SUCCEEDED, **fields})


def trace_of(
    *jobs: tuple[JobRow, list[Happening]], nodes: tuple[NodeRow, ...] = (), now: float = 9000.0
) -> tuple[Trace, int]:
    happenings = {job.id: reported for job, reported in jobs}
    return recorded(History([job for job, _ in jobs], happenings, nodes, now), (SPOT, GPU))


def node(number: int, at: float, ready: float | None, ended_at: float | None = None, **more: Any) -> NodeRow:
    return NodeRow(
        id=f"node_{number}",
        pool="cpu",
        created_at=at,
        offering=SPOT.id,
        ready_at=ready,
        ended_at=ended_at,
        **more,
    )


def test_work_is_what_all_workers_of_all_groups_did() -> None:
    reported = [
        trains(1010.0, 3),
        goes_on_with(1110.0, 2),
        Happening(1160.0, "attempt.regrouping"),
        trains(1200.0, 1),
        ends(1210.0),
    ]
    trace, left_out = trace_of((ended(max_workers=3, priority=70, project="vision"), reported))
    (job,) = trace.jobs
    assert left_out == 0
    assert (job.at_s, job.work_s) == (0.0, 3 * 100 + 2 * 50 + 1 * 10)
    assert (job.min_workers, job.max_workers, job.priority, job.project) == (1, 3, 70, "vision")
    assert trace.begins_at == 1000.0


def test_a_job_that_never_trained_is_left_out() -> None:
    trace, left_out = trace_of(
        (ended(), [ends(1010.0)]), (ended(created_at=1005.0), [trains(1010.0, 1), ends(1011.0)])
    )
    assert [job.at_s for job in trace.jobs] == [5.0]
    assert left_out == 1


def test_a_job_that_still_runs_has_the_work_that_all_its_steps_will_be() -> None:
    job = job_row(1000.0, state=JobState.RUNNING, max_step=25, total_steps=100)
    trace, _ = trace_of((job, [trains(1000.0, 2)]), now=1050.0)
    assert trace.jobs[0].work_s == pytest.approx(2 * 50 * 4)


def test_a_refusal_says_how_many_there_were_and_the_next_node_that_there_are_more() -> None:
    nodes = (
        node(1, 1010.0, ready=1040.0),
        node(2, 1010.0, ready=1060.0),
        node(3, 1020.0, ready=None, ended_at=1021.0),
        node(4, 1500.0, ready=1550.0),
    )
    trace, _ = trace_of((ended(), [trains(1060.0, 1), ends(1070.0)]), nodes=nodes)
    assert [(c.at_s, c.offering, c.nodes) for c in trace.changes] == [
        (20.0, SPOT.id, 2),
        (500.0, SPOT.id, 1_000_000),
    ]
    assert trace.provisioning_s == 50.0
    assert trace.offerings == (SPOT,), "what no job used is not sold"


def test_a_refusal_that_nothing_followed_lasts_an_hour_and_a_failed_start_is_none() -> None:
    refused = node(1, 1020.0, ready=None, ended_at=1021.0)
    broken = node(2, 1020.0, ready=None, ended_at=1900.0, is_failure=True)
    trace, _ = trace_of((ended(), [trains(1060.0, 1), ends(1070.0)]), nodes=(refused, broken))
    assert [(c.at_s, c.nodes) for c in trace.changes] == [(20.0, 0), (20.0 + REFUSED_S, 1_000_000)]


def test_what_is_written_is_read_as_the_same() -> None:
    reported = [trains(1010.0, 3), ends(1020.0)]
    trace, _ = trace_of((ended(max_workers=3), reported), nodes=(node(1, 1005.0, ready=1009.0),))
    assert read_lines("\n".join(write_lines(trace))) == trace


def test_of_nothing_comes_an_empty_trace() -> None:
    trace, left_out = trace_of()
    assert (trace.jobs, trace.changes, left_out) == ((), (), 0)


def test_the_quotas_of_what_is_sold_are_written_and_others_are_not() -> None:
    reported = [trains(1010.0, 1), ends(1110.0)]
    job = ended()
    sold = (replace(SPOT, quota="lowPriorityCores", quota_units=4), GPU)
    known = {"lowprioritycores": 24, "standardnd": 96, "cores": 100}
    trace, _ = recorded(History([job], {job.id: reported}, (), 9000.0, known), sold)
    assert trace.quotas == {"lowprioritycores": 24}
    assert read_lines("\n".join(write_lines(trace))) == trace


def test_a_placement_is_written_as_the_job_asked_for_it_and_read_again() -> None:
    asked = {"pools": ["a", "b"], "zones": ["2"], "capacity": "spot", "fabric": "infiniband"}
    nothing = {"pools": [], "zones": [], "capacity": None, "fabric": "any"}
    reported = [trains(1010.0, 1), ends(1110.0)]
    trace, _ = trace_of(
        (ended(spec={"placement": asked}), reported),
        (ended(created_at=1001.0, spec={"placement": nothing}), reported),
        (ended(created_at=1002.0, spec={}), reported),
    )
    assert [job.placement for job in trace.jobs] == [
        Placement(pools=("a", "b"), zones=("2",), capacity=CapacityRule.SPOT, needs_fabric=True),
        ANYWHERE,
        ANYWHERE,
    ]
    lines = list(write_lines(trace))
    assert read_lines("\n".join(lines)) == trace
    assert ["placement" in line for line in lines if '"job"' in line] == [True, False, False]


def test_budgets_and_whole_copies_are_written_and_read_again() -> None:
    reported = [trains(1010.0, 2), ends(1110.0)]
    copies = {"workers": {"min": 2, "max": 4, "multiple_of": 2}, "limits": {"budget": 7.5}}
    trace, _ = trace_of(
        (ended(created_at=1000.0, min_workers=2, max_workers=4, spec=copies), reported),
        (ended(created_at=1001.0, spec={"workers": 3, "limits": {"budget": None}}), reported),
    )
    assert [(job.sizes.multiple_of, job.budget) for job in trace.jobs] == [(2, 7.5), (1, None)]
    assert read_lines("\n".join(write_lines(trace))) == trace


def test_a_deadline_is_written_as_seconds_of_the_trace_and_read_again() -> None:
    reported = [trains(1010.0, 1), ends(1110.0)]
    trace, _ = trace_of(
        (ended(created_at=1000.0, spec={"limits": {"deadline": 1600.5}}), reported),
        (ended(created_at=1001.0, spec={"limits": {"deadline": 900.0}}), reported),
        (ended(created_at=1002.0, spec={"limits": {"deadline": None}}), reported),
        (ended(created_at=1003.0, spec={}), reported),
    )
    assert [job.deadline_s for job in trace.jobs] == [600.5, 0.0, None, None]
    assert read_lines("\n".join(write_lines(trace))) == trace


def test_a_replay_of_what_happened_counts_the_deadlines_that_it_misses() -> None:
    reported = [trains(1010.0, 1), ends(1110.0)]
    trace, _ = trace_of(
        (ended(created_at=1000.0, spec={"limits": {"deadline": 1200.0}}), reported),
        (ended(created_at=1001.0, spec={"limits": {"deadline": 9000.0}}), reported),
    )
    pool = PoolPolicy(sizes=(GPU.size,), capacity=CapacityRule.ON_DEMAND)
    replay = replayed(trace, Policies(pools={"gpu": pool}), Assumptions())
    assert report_of(replay).succeeded == 2
    assert report_of(replay).deadlines_missed == 1, "no node comes before the first one"

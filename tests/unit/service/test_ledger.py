"""What jobs use of nodes, and what that costs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.fitting import dominant_part
from remora.states import NodeState
from service.queue.demand import demand_of, work_left_s
from service.queue.ledger import Entries, UseRow, entries
from service.queue.rows import AttemptRow, JobRow, NodeRow
from tests.service_fakes import job_row

NODE = NodeRow(
    id="node_1", pool="gpu", created_at=0.0, state=NodeState.READY, address="10.0.0.1",
    resources={"CPU": 8.0, "GPU": 2.0}, offering="big/1/spot", price_per_hour=3.6,
)  # fmt: skip


def running(workers: dict[str, int], number: int = 1) -> tuple[JobRow, AttemptRow]:
    job = job_row(worker_resources={"CPU": 1.0, "GPU": 1.0})
    return job, AttemptRow(
        id=f"att_{number}", job_id=job.id, attempt=number, created_at=0.0, started_at=10.0, workers=workers
    )


def apply(uses: list[UseRow], new: Entries) -> list[UseRow]:
    ended = {(use.job_id, use.node_id, use.began_at): use for use in new.ended}
    return [ended.get((use.job_id, use.node_id, use.began_at), use) for use in uses] + list(new.begun)


def opened(uses: list[UseRow]) -> list[UseRow]:
    return [use for use in uses if use.ended_at is None]


def test_a_job_pays_for_the_part_of_a_node_that_it_holds_while_it_holds_it() -> None:
    live = running({"10.0.0.1": 1})
    uses = apply([], entries([], [live], [NODE], 100.0))
    assert [(use.part, use.workers, use.offering) for use in uses] == [(0.5, 1, "big/1/spot")]
    assert entries(uses, [live], [NODE], 150.0) == Entries(), "nothing is written while nothing changes"
    grown = (live[0], replace(live[1], workers={"10.0.0.1": 2}))
    uses = apply(uses, entries(opened(uses), [grown], [NODE], 200.0))
    uses = apply(uses, entries(opened(uses), [], [NODE], 1200.0))
    assert opened(uses) == []
    # 100 s of half a node, then 1000 s of all of it, at 3.60 USD an hour.
    assert sum(use.node_s(9999.0) for use in uses) == 1050.0
    assert round(sum(use.cost(9999.0) for use in uses), 9) == 1.05


def test_jobs_that_hold_most_of_different_resources_do_not_pay_for_more_than_the_node() -> None:
    def job(name: str, **needs: float) -> tuple[JobRow, AttemptRow]:
        row = job_row(id=name, worker_resources=needs)
        attempt = AttemptRow(
            id=f"att_{name}", job_id=name, attempt=1, created_at=0.0, started_at=10.0, workers={"10.0.0.1": 1}
        )
        return row, attempt

    of_gpus, of_cpus = job("job_a", GPU=2.0), job("job_b", CPU=6.0)
    uses = apply([], entries([], [of_gpus], [NODE], 100.0))
    assert [use.part for use in opened(uses)] == [1.0]
    uses = apply(uses, entries(opened(uses), [of_gpus, of_cpus], [NODE], 200.0))
    assert {use.job_id: round(use.part, 4) for use in opened(uses)} == {"job_a": 0.5714, "job_b": 0.4286}
    assert entries(opened(uses), [of_gpus, of_cpus], [NODE], 300.0) == Entries()
    uses = apply(uses, entries(opened(uses), [of_gpus], [NODE], 400.0))
    assert [use.part for use in opened(uses)] == [1.0]


def test_another_attempt_on_the_same_node_is_another_use() -> None:
    job, attempt = running({"10.0.0.1": 1})
    uses = apply([], entries([], [(job, attempt)], [NODE], 100.0))
    new = entries(uses, [(job, replace(attempt, attempt=2))], [NODE], 130.0)
    assert [use.ended_at for use in new.ended] == [130.0]
    assert [(use.attempt, use.began_at) for use in new.begun] == [(2, 130.0)]


def test_the_part_is_that_of_the_resource_of_which_most_is_held() -> None:
    assert dominant_part({"CPU": 8.0, "GPU": 2.0}, {"CPU": 6.0, "GPU": 1.0}, 1) == 0.75
    for resources in ({"CPU": 0.5}, {}):
        node = replace(NODE, resources=resources)
        (use,) = entries([], [running({"10.0.0.1": 1})], [node], 100.0).begun
        assert use.part == 1.0, "more than a whole node is not held, and of an unknown one all is"


@given(st.lists(st.tuples(st.floats(0.1, 50.0), st.integers(0, 2)), min_size=1, max_size=20))
def test_every_second_with_workers_is_paid_once_and_no_other(worker_counts: list[tuple[float, int]]) -> None:
    job, attempt = running({})
    uses: list[UseRow] = []
    now, expected, count = 100.0, 0.0, 0
    for pause, workers in worker_counts:
        expected += pause * count / 2
        now += pause
        live = (job, replace(attempt, workers={"10.0.0.1": workers} if workers else {}))
        uses = apply(uses, entries(opened(uses), [live], [NODE], now))
        assert len(opened(uses)) == (1 if workers else 0)
        count = workers
    assert abs(sum(use.node_s(now) for use in uses) - expected) < 1e-6


def test_the_planner_hears_of_the_budget_the_deadline_and_the_work_that_is_left() -> None:
    limits = {"budget": 5.0, "deadline": 9000.0}
    job = job_row(spec={"limits": limits}, step=25, total_steps=100, trained_s=40.0)
    assert (job.facts.budget, job.facts.deadline_at) == (5.0, 9000.0)
    attempt = replace(running({})[1], job_id=job.id)
    demand = demand_of(job, attempt, None, 20.0, spent=2.0)
    assert (demand.budget_left, demand.deadline_at) == (3.0, 9000.0)
    # 25 steps took 40 s in earlier attempts and 10 s in this one.
    assert demand.work_left_s == 150.0
    assert work_left_s(job_row(step=25), None, 20.0) is None
    assert demand_of(job_row(), None, None, 20.0).budget_left is None

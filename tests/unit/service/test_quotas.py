"""A project that has used up its quota keeps its own jobs waiting, and no other project's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.policies import Policies
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.quotas import Counting, has_quotas
from cluster.scheduling.view import Spending
from service.queue.rows import JobRow
from tests.service_fakes import job_row
from tests.unit.service.queue_worlds import Decided, decide, ready, used

GPU = {"GPU": 1.0}
POOL = PoolSize("gpu", 9, GPU)


def policies(**projects: dict[str, Any]) -> Policies:
    return Policies.model_validate({"pools": {"gpu": {"sizes": ["a"]}}, "projects": projects})


def job(project: str, least: int = 1, most: int | None = None) -> JobRow:
    row = job_row(min_workers=least, max_workers=most or least, worker_resources=GPU)
    return replace(row, project=project)


def decided(queue: list[JobRow], counting: Counting | None, nodes: int = 9) -> Decided:
    there = [ready(f"node_{number}", "gpu", GPU) for number in range(nodes)]
    return decide(queue, [], there, [POOL], counting=counting)


def reported(decision: Decided, row: JobRow) -> tuple[str | None, str]:
    return next((wait.waits_for, wait.reason) for wait in decision.waits if wait.job_id == row.id)


def test_a_project_at_its_quota_holds_up_itself_and_no_other() -> None:
    running, next_one, small, other = job("v", 3), job("v", 2), job("v"), job("s", 2)
    decision = decided([next_one, small, other], used(policies(v={"gpus": 4}), [(running, 3)]))
    assert decision.starts == (other.id,)
    said = "waits for the quota of its project: project 'v' may use 4 GPUs at a time"
    assert reported(decision, next_one) == ("waiting_for_quota", said)
    behind = "waits in the queue behind another job of its project"
    assert reported(decision, small) == ("waiting_for_quota", behind), "no job overtakes within a project"


def test_what_starts_together_counts_together() -> None:
    first, second = job("v", 1, 3), job("v")
    assert decided([first, second], used(policies(v={"gpus": 3}))).starts == (first.id,), (
        "it takes all three GPUs at once"
    )
    assert decided([first, second], None).starts == (first.id, second.id)


def test_a_group_that_is_larger_than_the_quota_stops_no_other_job() -> None:
    large, small = job("v", 5), job("v")
    decision = decided([large, small], used(policies(v={"gpus": 4})))
    assert decision.starts == (small.id,)
    (wait,) = decision.waits
    assert wait.is_hopeless
    assert wait.reason == "its smallest worker group needs 5 GPUs, and project 'v' may use 4 at a time"


def test_a_project_without_money_waits_until_there_is_some() -> None:
    rule = policies(v={"usd_per_day": 9.0, "usd_per_month": 50.0})
    row, later, other = job("v"), job("v"), job("s")
    spent = {"v": Spending(today=9.5, this_month=20.0), "s": Spending(today=99.0, this_month=99.0)}
    decision = decided([row, later, other], used(rule, spent=spent))
    assert decision.starts == (other.id,)
    assert "project 'v' has spent 9.50 of 9.00 USD of the day" in reported(decision, row)[1]
    behind = "waits in the queue behind another job of its project"
    assert reported(decision, later) == ("waiting_for_quota", behind)
    tomorrow = {"v": Spending(today=0.0, this_month=20.0)}
    assert decided([row, other], used(rule, spent=tomorrow)).starts == (row.id, other.id)


def test_what_was_bought_for_a_job_is_its_own_also_when_the_money_was_spent_meanwhile() -> None:
    row, other = job("v", 2), job("s", 1)
    rule, spent = policies(v={"usd_per_day": 9.0}), {"v": Spending(today=9.5, this_month=9.5)}
    there = [ready(f"node_{number}", "gpu", GPU, bought_for=row.id) for number in range(2)]
    whole = decide([row, other], [], there, [POOL], counting=used(rule, spent=spent))
    assert whole.starts == (row.id,)
    half = decide([row, other], [], there[:1], [POOL], counting=used(rule, spent=spent))
    assert half.starts == (other.id,), "no second node is bought, so that no job waits for it"
    assert reported(half, row)[0] == "waiting_for_quota"


def test_an_attempt_counts_with_all_that_it_may_use_until_it_has_said_what_it_has() -> None:
    first, second, rule = job("v", 2, 8), job("v", 2, 8), policies(v={"gpus": 8})
    assert decided([first, second], used(rule), 16).starts == (first.id,)
    for workers, starts in ((0, ()), (7, ()), (3, (second.id,))):
        assert decided([second], used(rule, [(first, workers)]), 16).starts == starts


def test_where_no_project_has_a_quota_nothing_is_counted() -> None:
    assert not has_quotas(policies(v={"share": 2.0}))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("vs"), st.integers(1, 4)), max_size=9),
    st.integers(1, 6),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_smallest_groups_stay_within_the_quota_and_others_lose_no_place(
    waiting: list[tuple[str, int]], limit: int, held: int, nodes: int
) -> None:
    queue = [job(project, least) for project, least in waiting]
    rule = policies(v={"gpus": limit})
    decision = decided(queue, used(rule, [(job("v", 1), held)] if held else []), nodes)
    started = [row for row in queue if row.id in decision.starts]
    assert sum(row.min_workers for row in started if row.project == "v") <= max(0, limit - held)
    refused = {wait.job_id for wait in decision.waits if wait.waits_for == "waiting_for_quota"}
    assert not refused & {row.id for row in queue if row.project == "s"}
    # without those whom their quota holds up, the decision is the same
    assert decided([row for row in queue if row.id not in refused], None, nodes).starts == decision.starts

"""What a project or a job may still have, one situation after the other: the planner buys no more, and says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster.policies.policies import Policies
from cluster.scheduling.actions import Drain, Launch, Plan, ShowMore
from cluster.scheduling.planner import plan
from cluster.scheduling.view import JobDemand, Spending
from tests.unit.cluster.planner_worlds import NOW, acts, bought, job, node, rules, said_to, view


def test_a_project_and_a_job_have_budgets_of_their_own() -> None:
    policies = rules().model_copy(
        update={"projects": Policies.model_validate({"projects": {"v": {"gpus": 2}}}).projects}
    )
    actions = plan(
        view([job("first", (1, 4), project="v"), job("second", project="v", created_at=NOW + 1)]),
        policies,
        NOW,
    )
    assert len(bought(actions)) == 2
    assert said_to(actions, "first") == "project 'v' may use 2 GPUs at a time"
    assert said_to(plan(view([job(budget_left=0.0)]), policies, NOW)) == "the job has spent its budget"


def test_a_project_at_its_quota_does_not_keep_the_planner_from_buying_for_others() -> None:
    policies = Policies.model_validate(
        {**rules(max_nodes=9).model_dump(mode="json"), "projects": {"v": {"gpus": 2, "usd_per_day": 5.0}}}
    )
    large, first, second = (job(name, size, project="v") for name, size in (("a", 3), ("b", 2), ("c", 1)))
    other = job("d", 2, project="s")
    queue = [replace(one, created_at=NOW + at) for at, one in enumerate((large, first, second, other))]
    actions = plan(view(queue, strict_order=True), policies, NOW)
    assert [one.job_id for one in actions if isinstance(one, Launch)] == ["b", "b", "d", "d"]
    assert (
        said_to(actions, "a") == "its smallest worker group needs 3 GPUs, and project 'v' may use 2 at a time"
    )
    assert said_to(actions, "c") == "project 'v' may use 2 GPUs at a time"
    spent = {"v": Spending(today=5.5, this_month=5.5)}
    actions = plan(view(queue, strict_order=True, spent_by_project=spent), policies, NOW)
    assert [one.job_id for one in actions if isinstance(one, Launch)] == ["d", "d"]
    assert said_to(actions, "b") == (
        "project 'v' has spent 5.50 of 5.00 USD of the day, until 1970-01-13 00:00:00 UTC, when the next day begins, or"
        " until an operator raises its limit by `remora policy apply`"
    )
    assert said_to(actions, "c") == "it waits in the queue behind b of its project"


def limited(**project: Any) -> Policies:
    """Policies with the pools `p` and `q`, and one project."""
    pool = rules(max_nodes=9).model_dump(mode="json")["pools"]["p"]
    small = {**pool, "max_nodes": 2}
    return Policies.model_validate({"pools": {"p": pool, "q": small}, "projects": {"v": project}})


def launched_for(actions: Plan) -> list[str | None]:
    return [one.job_id for one in actions if isinstance(one, Launch)]


def test_a_job_that_no_pool_could_hold_does_not_keep_its_project_waiting_for_the_quota() -> None:
    running, never, small = (
        job("s", 3, project="v", is_running=True),
        job("f", 6, project="v", pools=("q",)),
        job("w", project="v", created_at=NOW + 1),
    )
    there = [node(f"n{at}", jobs={"s": 1}) for at in range(3)]
    asked = view([running, never, small], there, strict_order=True)
    assert launched_for(plan(asked, limited(gpus=8), NOW)) == ["w"]


def test_a_running_job_that_lost_its_nodes_still_counts() -> None:
    running = [job("s", 7, project="v", is_running=True), job("r", 4, project="v", is_running=True)]
    there = [node(f"n{at}", jobs={"s": 1}) for at in range(7)]
    asked = view([*running, job("w", project="v")], there, strict_order=True)
    bought_for = set(launched_for(plan(asked, limited(gpus=8), NOW)))
    assert bought_for == {"r"}, "it comes back to its smallest group, and no new job starts"
    there.append(node("w", bought_for="w"))
    actions = plan(view(asked.jobs, there, sold=(), strict_order=True), limited(gpus=8), NOW)
    assert said_to(actions, "w") == "project 'v' may use 8 GPUs at a time", (
        "also while there is nothing to come back to"
    )


def test_nothing_is_bought_for_growth_before_a_job_that_waits_for_the_same_quota() -> None:
    grows, runs = job("s", (1, 8), project="v", is_running=True), job("t", 2, project="v", is_running=True)
    there = [node(f"n{at}", jobs={"s" if at < 4 else "t": 1}) for at in range(6)]
    asked = view([grows, runs, job("f", 4, project="v")], there, strict_order=True)
    actions = plan(asked, limited(gpus=8), NOW)
    assert acts(actions) == []
    assert "f of its project waits for the quota" in said_to(actions, "s")


def test_what_was_bought_before_the_money_was_spent_is_kept_for_its_job_and_nothing_is_added() -> None:
    spent = {"v": Spending(today=5.5, this_month=5.5)}
    own = [node(f"n{at}", bought_for="j", idle_since=NOW - 9999) for at in range(2)]
    for size, kept in ((2, True), (3, False)):
        asked = view([job("j", size, project="v")], own, strict_order=True, spent_by_project=spent)
        actions = plan(asked, limited(usd_per_day=5.0), NOW)
        assert [type(one) for one in acts(actions)] == ([] if kept else [Drain, Drain])


def test_more_jobs_are_shown_as_long_as_the_last_ones_that_are_shown_do_not_hold_up_others() -> None:
    def is_open(jobs: list[JobDemand], cut_at: set[str], policies: Policies) -> bool:
        shown = [replace(one, place=place) for place, one in enumerate(jobs)]
        asked = view(shown, strict_order=True, cut_at=frozenset(cut_at))
        return ShowMore() in plan(asked, policies, NOW)

    two = [job("a", project="v"), job("b", project="v")]
    assert is_open(two, {"b"}, rules(max_nodes=9))
    assert not is_open(two, set(), rules(max_nodes=9)), "all that wait are shown"
    assert not is_open(two, {"b"}, rules(max_nodes=1)), "all wait for nodes behind the last one"
    assert not is_open(two, {"b"}, limited(gpus=1)), "its project may use no more"
    assert is_open([*two, job("c", project="s")], {"b", "c"}, limited(gpus=1)), "another project may"

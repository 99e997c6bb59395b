"""What is said of a budget: what is spent of it, its steps, and until when it lasts."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.offerings import Offering
from cluster.policies.policies import BudgetPolicy, BudgetStep, Policies, ProjectPolicy
from cluster.scheduling.money import money_of
from cluster.scheduling.view import ClusterView
from service.queue.budgets import Budget, PaidNode, budgets_of, paid_since, position_of, spent_of

HOUR, DAY = 3600.0, 86_400.0
#: Noon of the eleventh.
NOW = datetime(2026, 7, 11, 12, tzinfo=UTC).timestamp()
TODAY, MONTH = NOW - 12 * HOUR, NOW - 10.5 * DAY
STEPS = {BudgetStep.STOP_GROWING: 0.5, BudgetStep.SPOT_ONLY: 0.8}


def node(begins_at: float, ends_at: float | None, price: float = 1.0, project: str | None = None) -> PaidNode:
    return PaidNode(launched_at=begins_at, ended_at=ends_at, price_per_hour=price, project=project)


def policies(**fields: Any) -> Policies:
    return Policies(budget=BudgetPolicy(**{"usd_per_month": 100.0, "steps": STEPS, **fields}))


def only(nodes: list[PaidNode], reached: BudgetStep | None = None, **fields: Any) -> Budget:
    (found,) = budgets_of(policies(**fields), nodes, reached, None, NOW)
    return found


def test_the_period_and_what_is_spent_of_it() -> None:
    found = only([node(MONTH - DAY, MONTH + 40 * HOUR)])
    assert (found.project, found.period, found.limit) == (None, "month", 100.0)
    assert (found.begins_at, found.ends_at) == (MONTH, datetime(2026, 8, 1, tzinfo=UTC).timestamp())
    assert found.spent == pytest.approx(40.0), "what was before is of the month before"
    assert (found.step, found.next_step, found.next_at) == (None, BudgetStep.STOP_GROWING, 50.0)
    day = only([node(TODAY, None)], usd_per_month=None, usd_per_day=24.0)
    assert (day.begins_at, day.ends_at, day.spent) == (TODAY, TODAY + DAY, pytest.approx(12.0))


@pytest.mark.parametrize(
    ("spent", "step", "next_step", "next_at"),
    [
        (49.99, None, BudgetStep.STOP_GROWING, 50.0),
        (50.0, BudgetStep.STOP_GROWING, BudgetStep.SPOT_ONLY, 80.0),
        (80.0, BudgetStep.SPOT_ONLY, BudgetStep.PAUSE, 100.0),
        (100.0, BudgetStep.PAUSE, None, None),
    ],
)
def test_the_step_and_the_next_one(
    spent: float, step: BudgetStep | None, next_step: BudgetStep | None, next_at: float | None
) -> None:
    found = only([node(MONTH, MONTH + HOUR, spent)])
    assert (found.step, found.in_force, found.next_step, found.next_at) == (step, step, next_step, next_at)


def test_a_step_of_another_period_or_of_earlier_today_is_in_force() -> None:
    nodes = [node(MONTH, MONTH + HOUR, 60.0)]
    found = only(nodes, BudgetStep.SHRINK)
    assert (found.step, found.in_force) == (BudgetStep.STOP_GROWING, BudgetStep.SHRINK)
    day, month = budgets_of(policies(usd_per_day=10.0), nodes, None, None, NOW)
    assert (day.step, day.in_force) == (None, BudgetStep.STOP_GROWING)
    assert month.in_force is BudgetStep.STOP_GROWING


def test_it_runs_out_at_the_pace_of_the_last_week_or_six_hours() -> None:
    # 84 USD in the last 168 hours: half a USD an hour, and 21 of 100 USD are left.
    week = node(NOW - 7 * DAY, None, 0.5)
    found = only([week], usd_per_month=105.0)
    assert found.usd_per_hour == pytest.approx(0.5)
    assert found.runs_out_at == pytest.approx(NOW + 42 * HOUR)
    assert only([week], usd_per_month=10_000.0).runs_out_at is None, "it lasts"
    assert only([week], usd_per_month=84.0).runs_out_at == NOW, "it is used up"
    assert only([]).runs_out_at is None
    # The pace of a day is that of its last six hours; what was before does not count.
    day = only(
        [node(NOW - 3 * HOUR, None, 4.0), node(TODAY, TODAY + HOUR, 9.0)],
        usd_per_month=None,
        usd_per_day=31.0,
    )
    assert (day.spent, day.usd_per_hour) == (pytest.approx(21.0), pytest.approx(2.0))
    assert day.runs_out_at == pytest.approx(NOW + 5 * HOUR)


def test_a_project_buys_nothing_once_its_budget_is_spent() -> None:
    projects = {"vision": ProjectPolicy(usd_per_day=12.0), "speech": ProjectPolicy(usd_per_month=1.0)}
    found = policies(usd_per_month=None).model_copy(update={"projects": projects})
    nodes = [node(TODAY, None, 1.0, "vision"), node(TODAY, None, 7.0)]
    speech, vision = budgets_of(found, nodes, None, None, NOW)
    assert (vision.project, vision.spent, vision.step) == ("vision", pytest.approx(12.0), "stop-growing")
    assert (vision.next_step, vision.in_force) == (None, BudgetStep.STOP_GROWING)
    assert (speech.spent, speech.step, speech.next_step) == (0.0, None, BudgetStep.STOP_GROWING)


def test_who_sees_some_projects_sees_their_budgets_alone_and_pages_go_on_behind_a_position() -> None:
    projects = {name: ProjectPolicy(usd_per_day=1.0, usd_per_month=9.0) for name in ("a", "a-b", "b")}
    every = policies().model_copy(update={"projects": projects})

    def owners(visible: set[str] | None, after: str = "") -> list[tuple[str | None, str]]:
        return [(one.project, one.period) for one in budgets_of(every, [], None, visible, NOW, after)]

    assert owners({"a", "elsewhere"}) == [("a", "day"), ("a", "month")]
    everything = owners(None)
    assert everything[0] == (None, "month")
    assert len(everything) == 7
    for index, one in enumerate(everything):
        assert owners(None, position_of(*one)) == everything[index + 1 :]


NODES = st.lists(
    st.builds(
        lambda begin, lasts, price, project: node(
            begin, None if lasts is None else min(NOW, begin + lasts), price, project
        ),
        st.floats(paid_since(NOW) - DAY, NOW),
        st.none() | st.floats(0.0, 12 * DAY),
        st.floats(0.0, 40.0),
        st.sampled_from([None, "vision"]),
    ),
    max_size=6,
)


@given(NODES)
def test_the_course_ends_at_what_is_spent_and_never_falls(nodes: list[PaidNode]) -> None:
    projects = {"vision": ProjectPolicy(usd_per_day=5.0)}
    every = policies(usd_per_day=10.0).model_copy(update={"projects": projects})
    whole, of_projects = spent_of(nodes, NOW)
    sums = {"/day": whole.today, "/month": whole.this_month}
    if "vision" in of_projects:
        sums["vision/day"] = of_projects["vision"].today
    for one in budgets_of(every, nodes, None, None, NOW):
        times, amounts = zip(*one.course, strict=True)
        assert times == tuple(sorted(set(times)))
        assert (times[0], times[-1]) == (one.begins_at, NOW)
        assert amounts[0] == 0.0
        assert all(later >= before for before, later in pairwise(amounts))
        assert amounts[-1] == pytest.approx(one.spent)
        assert one.spent == sums.get(position_of(one.project, one.period), 0.0), "the planner's own sums"


@given(NODES, st.floats(0.0, 400.0), st.none() | st.sampled_from(list(BudgetStep)))
def test_the_step_in_force_is_the_planners(
    nodes: list[PaidNode], limit: float, reached: BudgetStep | None
) -> None:
    """But for what nodes will still cost until they are ended, which the planner counts before the last step."""
    every = policies(usd_per_month=limit, usd_per_day=limit / 20)
    whole, _ = spent_of(nodes, NOW)
    view = ClusterView(now=NOW, spent=whole, budget_step=reached)
    planned = money_of(view, every, dict[str, Offering]())
    assert {one.in_force for one in budgets_of(every, nodes, reached, None, NOW)} == {planned.step}

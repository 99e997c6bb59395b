"""Budgets as the page draws and words them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page_scripts import Script, page_script

DAY = 86_400.0
#: The first of November 2026, 00:00 UTC.
BEGIN = 1_793_491_200.0


@pytest.fixture(scope="module")
def course() -> Iterator[Script]:
    with page_script("budget_course.js") as script:
        yield script


@pytest.fixture(scope="module")
def words() -> Iterator[Script]:
    with page_script("words.js") as script:
        yield script


def budget(**fields: Any) -> dict[str, Any]:
    """A month of 30 days, ten of which have passed."""
    points = [{"at": BEGIN, "spent": 0.0}, {"at": BEGIN + 5 * DAY, "spent": 12.5}]
    made = {
        "project": None, "period": "month", "begins_at": BEGIN, "ends_at": BEGIN + 30 * DAY, "limit": 100.0,
        "spent": 62.0, "fraction": 0.62, "step": None, "step_in_force": None, "next_step": "stop-growing",
        "next_step_at": 80.0, "usd_per_hour": 1.0, "pace_s": 7 * DAY, "runs_out_at": BEGIN + 23 * DAY,
    }  # fmt: skip
    made |= fields
    return {**made, "course": [*points, {"at": BEGIN + 10 * DAY, "spent": made["spent"]}]}


def test_the_line_goes_from_the_first_day_to_now_and_at_its_pace_to_the_limit(course: Script) -> None:
    found = course.call("drawBudget", budget(spent=50.0, usd_per_hour=50 / 240, runs_out_at=BEGIN + 20 * DAY))
    assert found["course"] == "0,100 16.67,87.5 33.33,50"
    assert found["area"] == "0,100 0,100 16.67,87.5 33.33,50 33.33,100"
    assert found["ahead"] == "33.33,50 66.67,0"
    assert (found["limitY"], found["nextY"], found["nowX"], found["most"]) == (0, 20, 33.33, 100)


def test_what_lasts_ends_below_the_limit_and_what_is_used_up_above_it(course: Script) -> None:
    lasts = course.call("drawBudget", budget(spent=50.0, usd_per_hour=10 / 240, runs_out_at=None))
    assert lasts["ahead"] == "33.33,50 100,30"
    over = course.call("drawBudget", budget(spent=200.0, runs_out_at=BEGIN + 10 * DAY, next_step_at=None))
    assert (over["most"], over["limitY"], over["ahead"], over["nextY"]) == (200, 50, "", None)
    nothing = course.call("drawBudget", budget(limit=0.0, spent=0.0, next_step_at=0.0, runs_out_at=None))
    assert (nothing["limitY"], nothing["nextY"]) == (100, None)


def test_the_budgets_that_are_spent_furthest_are_shown_and_always_the_clusters(course: Script) -> None:
    found = [budget(project=name, fraction=part) for name, part in [("a", 0.1), ("b", None), ("c", 0.9)]]
    shown = course.call("chosenBudgets", [*found, budget(fraction=0.0)], 3)
    assert [one["project"] for one in shown] == [None, "b", "c"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "62 of 100 USD of this month are spent; at the pace of the last week it lasts until 24 Nov"),
        (
            {"runs_out_at": None, "spent": 61.5},
            "61.50 of 100 USD of this month are spent; at the pace of the last week it lasts until the month ends",
        ),
        ({"usd_per_hour": 0.0}, "62 of 100 USD of this month are spent, nothing in the last week"),
        ({"spent": 100.0}, "100 of 100 USD of this month are spent: it is used up"),
        (
            {"period": "day", "pace_s": 21_600.0, "spent": 0.001, "runs_out_at": BEGIN + 17.5 * 3600},
            "0.001 of 100 USD of this day are spent; at the pace of the last 6 h it lasts until 17:30 UTC",
        ),
    ],
)
def test_a_budget_in_words(words: Script, fields: dict[str, Any], text: str) -> None:
    assert words.call("budgetText", budget(**fields)) == text


def test_its_steps_in_words(words: Script) -> None:
    assert words.call("budgetSteps", budget(next_step=None)) == []
    now, then = words.call("budgetSteps", budget(step_in_force="spot-only", next_step="pause"))
    assert now == "In force: spot-only, on-demand nodes are given back, and only spot is used."
    assert then == "Next: pause at 80 USD, when jobs stop at a checkpoint until there is money again."

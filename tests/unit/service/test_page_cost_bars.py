"""Bars of costs as the page draws them: nothing of an account is left out or drawn twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page_scripts import Script, page_script

#: A time in the middle of an hour.
SINCE = 1_780_000_000
DAY = 86_400


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with page_script("cost_bars.js") as script:
        yield script


def line(hours: int, cause: str, cost: float) -> dict[str, Any]:
    """What was paid in the hour that begins that number of hours after the first one."""
    hour = datetime.fromtimestamp(SINCE - SINCE % 3600 + 3600 * hours, UTC)
    return {"of": {"hour": hour.strftime("%Y-%m-%dT%H:%M:%SZ"), "cause": cause}, "cost": cost, "node_s": 60.0}


LINES = st.lists(
    st.builds(
        line, st.integers(0, 167), st.sampled_from(["training", "idle_kept"]), st.integers(0, 9).map(float)
    ),
    unique_by=lambda one: (one["of"]["hour"], one["of"]["cause"]),
)


@settings(deadline=None, max_examples=50)
@given(LINES, st.sampled_from([3600, DAY]))
def test_bars_sum_to_the_account(script: Script, lines: list[dict[str, Any]], width_s: int) -> None:
    found = script.call("barsOf", lines, SINCE, SINCE + 7 * DAY, width_s)
    parts = [part for bar in found["bars"] for part in bar["parts"]]
    assert sum(part["cost"] for part in parts) == sum(one["cost"] for one in lines)
    assert sum(part["node_s"] for part in parts) == sum(one["node_s"] for one in lines)
    assert {one["cause"]: one["cost"] for one in found["causes"]} == {
        cause: sum(one["cost"] for one in lines if one["of"]["cause"] == cause)
        for cause in {one["of"]["cause"] for one in lines}
    }
    heights = [sum(part["size"] for part in bar["parts"]) for bar in found["bars"]]
    assert found["most"] == (max(heights) or 1)


def test_parts_of_a_bar_stand_on_each_other_with_training_at_the_base_and_then_the_dearest(
    script: Script,
) -> None:
    lines = [
        line(0, "idle_kept", 1.0),
        line(1, "training", 2.0),
        line(1, "failed", 4.0),
        line(1, "idle_kept", 2.0),
    ]
    found = script.call("barsOf", lines, SINCE, SINCE + DAY, DAY)
    assert found["bars"][0]["parts"] == [
        {"cause": "training", "from": 0, "size": 2, "cost": 2, "node_s": 60},
        {"cause": "failed", "from": 2, "size": 4, "cost": 4, "node_s": 60},
        {"cause": "idle_kept", "from": 6, "size": 3, "cost": 3, "node_s": 120},
    ]
    assert found["bars"][0]["name"] == "28 May 2026"


def test_bars_of_nodes_without_a_price_show_their_time(script: Script) -> None:
    found = script.call("barsOf", [line(0, "training", 0.0)], SINCE, SINCE + DAY, DAY)
    assert found["bars"][0]["parts"] == [
        {"cause": "training", "from": 0, "size": 60, "cost": 0, "node_s": 60}
    ]
    assert (found["most"], found["isFree"]) == (60, True)


def test_a_line_of_another_time_is_not_drawn(script: Script) -> None:
    found = script.call("barsOf", [line(-30, "training", 1.0)], SINCE, SINCE + 3600, 3600)
    assert [bar["parts"] for bar in found["bars"]] == [[], []]
    assert found["causes"] == []
    assert found["bars"][0]["name"] == "28 May 2026, 20:00"

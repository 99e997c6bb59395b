"""Which costs the table of jobs asks for: those of every row, in bounded parts, and of no job again without need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page_scripts import Script, page_script

NOW = 1_780_000_000.0


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with page_script("job_costs.js") as script:
        yield script


def job(number: int, project: str = "vision", ended_at: float | None = None) -> dict[str, Any]:
    return {"id": f"job_{number}", "project": project, "ended_at": ended_at}


def asked(
    script: Script, jobs: list[dict[str, Any]], known: dict[str, Any], now: float = NOW
) -> list[list[str]]:
    found: list[list[str]] = script.call("dueParts", jobs, known, now)
    return found


def line(number: int, cost: float) -> dict[str, Any]:
    return {"of": {"job": f"job_{number}"}, "cost": cost}


def test_every_row_beyond_a_thousand_is_asked_for_once_in_parts_that_the_api_takes(script: Script) -> None:
    jobs = [job(number, "vision" if number % 3 else "speech") for number in range(2500)]
    parts = asked(script, jobs, {})
    assert sorted(one for part in parts for one in part) == sorted(one["id"] for one in jobs)
    assert max(map(len, parts)) == 50
    projects = {one["id"]: one["project"] for one in jobs}
    assert all(len({projects[one] for one in part}) == 1 for part in parts), (
        "a reader may see those of one alone"
    )


def test_costs_are_asked_for_again_as_long_as_they_may_change(script: Script) -> None:
    jobs = [job(1), job(2, ended_at=NOW - 5000), job(3, ended_at=NOW - 100)]
    known = script.call("afterAnswer", ["job_1", "job_2", "job_3"], [line(1, 0.5)], 200, {}, NOW)
    assert [known[f"job_{number}"]["usd"] for number in (1, 2, 3)] == [0.5, 0, 0]
    assert asked(script, jobs, known, NOW + 100) == []
    assert asked(script, jobs, known, NOW + 121) == [["job_1", "job_3"]], (
        "its last records may be on their way"
    )
    assert asked(script, jobs, known, NOW + 3601) == [["job_1", "job_2", "job_3"]], "a month may begin"


def test_a_refusal_keeps_what_was_known_and_a_job_that_is_gone_takes_no_other_along(script: Script) -> None:
    jobs = [job(1), job(2)]
    known = script.call("afterAnswer", ["job_1", "job_2"], [line(1, 0.5)], 200, {}, NOW)
    known = script.call("afterAnswer", ["job_1", "job_2"], None, 0, known, NOW + 120)
    assert known["job_1"]["usd"] == 0.5
    assert asked(script, jobs, known, NOW + 150) == []
    assert asked(script, jobs, known, NOW + 181) == [["job_1", "job_2"]]
    gone = script.call("afterAnswer", ["job_1", "job_2"], None, 404, known, NOW + 181)
    assert asked(script, jobs, gone, NOW + 181) == [["job_1"], ["job_2"]]
    gone |= script.call("afterAnswer", ["job_1"], [line(1, 0.75)], 200, gone, NOW + 182)
    gone |= script.call("afterAnswer", ["job_2"], None, 404, gone, NOW + 182)
    assert asked(script, jobs, gone, NOW + 183) == []
    assert gone["job_1"]["usd"] == 0.75

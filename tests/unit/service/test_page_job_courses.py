"""The small line of workers and the pace in the table of jobs, from the points of a job's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page_scripts import Script, page_script


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with page_script("job_courses.js") as script:
        yield script


def point(at: float, step: int, workers: int = 2, attempt: int = 1) -> dict[str, Any]:
    return {"at": at, "step": step, "world_size": workers, "attempt": attempt, "values": {}}


def test_the_line_has_each_change_of_workers_once(script: Script) -> None:
    points = [point(1, 1), point(2, 2), point(5, 3, 1), point(6, 4, 1), point(9, 5, 4)]
    course = script.call("courseOf", points)
    assert course["workers"] == [{"at": 1, "count": 2}, {"at": 5, "count": 1}, {"at": 9, "count": 4}]
    assert (course["from"], course["to"]) == (1, 9)


def test_the_pace_is_that_of_the_present_worker_group_since_the_last_loss(script: Script) -> None:
    grown = [point(1, 1), point(2, 11), point(10, 20, 4), point(12, 30, 4)]
    assert script.call("courseOf", grown)["perS"] == 5
    repeated = [point(1, 1), point(2, 100), point(20, 50), point(24, 58)]
    assert script.call("courseOf", repeated)["perS"] == 2
    assert script.call("courseOf", [*repeated, point(30, 59, attempt=2)])["perS"] is None
    assert script.call("courseOf", [])["perS"] is None


def test_only_running_jobs_are_asked_for_and_a_bounded_number(script: Script) -> None:
    jobs = [{"id": f"job_{n}", "state": "running" if n % 2 else "queued"} for n in range(200)]
    due = script.call("dueCourses", jobs, {}, 100, 30, 40)
    assert due == [f"job_{n}" for n in range(1, 80, 2)]
    assert script.call("dueCourses", jobs, {"job_1": {"at": 80}}, 100, 30, 2) == ["job_3"]

"""When a job may be profiled, and when a profile counts as ended (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remora.states import JobState
from service.queue.owners_changes import ChangeRefused
from service.queue.profiles import LOST_S, MOST_PROFILES, MOST_REQUESTS, ProfileRow, ended, request_profile
from service.queue.rows import JobRow
from tests.service_fakes import job_row

NOW = 1000.0


def running(**fields: Any) -> JobRow:
    return replace(job_row(), state=JobState.RUNNING, world_size=4, attempt=2, **fields)


def row(number: int = 1, **fields: Any) -> ProfileRow:
    return ProfileRow(
        **{"job_id": "j", "attempt": 2, "rank": 0, "steps": 10, "requested_at": NOW, **fields}, number=number
    )


def test_a_request_is_of_the_attempt_that_runs_and_has_the_next_number() -> None:
    known = [row(1, ended_at=NOW), row(4, ended_at=NOW)]
    decision, made = request_profile(running(), known, 3, 100, NOW)
    assert (made.number, made.attempt, made.rank, made.steps, made.state) == (5, 2, 3, 100, "requested")
    (event,) = decision.events
    assert (event.kind, event.data) == ("job.profile_requested", {"profile": 5, "rank": 3, "steps": 100})


@pytest.mark.parametrize(
    ("job", "known", "rank", "steps", "text"),
    [
        (running(), [], 4, 1, "has no rank 4: it has 4 workers now"),
        (running(), [], -1, 1, "has no rank -1"),
        (running(), [], 0, 0, "ask for 1 to 100"),
        (running(), [], 0, 101, "ask for 1 to 100"),
        (running(), [row()], 0, 1, "under way already"),
        (
            running(),
            [row(one, ended_at=NOW, file="a") for one in range(1, MOST_PROFILES + 1)],
            0,
            1,
            "as many as it may",
        ),
        (
            running(),
            [row(one, ended_at=NOW) for one in range(1, MOST_REQUESTS + 1)],
            0,
            1,
            "as often as it may",
        ),
        (replace(running(), state=JobState.QUEUED), [], 0, 1, "no workers that train now: it is queued"),
        (running(cancel_requested_at=NOW), [], 0, 1, "is being cancelled"),
    ],
)
def test_what_cannot_be_is_refused(
    job: JobRow, known: list[ProfileRow], rank: int, steps: int, text: str
) -> None:
    with pytest.raises(ChangeRefused, match=text):
        request_profile(job, known, rank, steps, NOW)


def test_the_state_follows_from_the_times() -> None:
    assert row().state == "requested"
    assert row(taken_at=NOW).state == "running"
    assert row(taken_at=NOW, ended_at=NOW, file="f").state == "ready"
    assert row(ended_at=NOW, message="why").state == "failed"


def test_one_that_nothing_answers_any_more_ends() -> None:
    assert ended(row(), True, NOW + LOST_S) == row()
    late = ended(row(), True, NOW + LOST_S + 0.1)
    assert late.ended_at == NOW + LOST_S + 0.1
    assert "has not said within 600 s" in str(late.message)
    assert ended(row(), False, NOW).message == "the attempt ended before the profile was there"
    done = row(ended_at=NOW, file="f")
    assert ended(done, False, NOW + 9e9) == done

"""When a shell may be opened, and when one ends (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remora.states import JobState
from service.queue.owners_changes import ChangeRefused
from service.queue.rows import JobRow
from service.queue.shells import (
    AWAY_S,
    IDLE_S,
    MOST_OPEN,
    OPENED_WITHIN_S,
    READ_WITHIN_S,
    WHOLE_S,
    ShellRow,
    WantedShell,
    after_answer,
    after_look,
    is_clear,
    new_chunks,
    open_shell,
    problem_of,
)
from tests.service_fakes import job_row
from trainers.shells import STDOUT, ShellAnswer

NOW = 100_000.0
WANTED = WantedShell(
    rank=3, command=("ls",), term="xterm", size=(24, 80), principal="user:ann", credential=None
)


def running(**fields: Any) -> JobRow:
    return replace(job_row(), state=JobState.RUNNING, world_size=4, attempt=2, **fields)


def row(number: int = 1, **fields: Any) -> ShellRow:
    known: dict[str, Any] = {
        "job_id": "j",
        "attempt": 2,
        "rank": 0,
        "principal": "user:ann",
        "credential": None,
        "command": (),
        "term": "xterm",
        "rows": None,
        "columns": None,
        "requested_at": NOW,
        "seen_at": NOW,
        "input_at": NOW,
    }
    return ShellRow(**{**known, **fields}, number=number)


def test_a_shell_is_of_the_attempt_that_runs_and_has_the_next_number() -> None:
    known = [row(1, ended_at=NOW), row(7)]
    decision, made = open_shell(running(), known, WANTED, NOW)
    assert (made.number, made.attempt, made.rank, made.size, made.state) == (8, 2, 3, (24, 80), "requested")
    (event,) = decision.events
    assert (event.kind, event.data) == ("job.shell_requested", {"shell": 8, "rank": 3})
    _, piped = open_shell(running(), [], replace(WANTED, size=None), NOW)
    assert (piped.number, piped.size) == (1, None)


@pytest.mark.parametrize(
    ("job", "known", "rank", "text"),
    [
        (running(), [], 4, "has no rank 4: it has 4 workers now"),
        (running(), [], -1, "has no rank -1"),
        (running(), [row(one) for one in range(MOST_OPEN)], 0, "4 shells of the job are open already"),
        (running(cancel_requested_at=NOW), [], 0, "is being cancelled"),
        (replace(running(), state=JobState.QUEUED), [], 0, "no workers that train now: it is queued"),
    ],
)
def test_what_cannot_be_opened_is_refused(job: JobRow, known: list[ShellRow], rank: int, text: str) -> None:
    with pytest.raises(ChangeRefused, match=text):
        open_shell(job, known, replace(WANTED, rank=rank), NOW)


@pytest.mark.parametrize(
    ("command", "term", "size", "is_bad"),
    [
        ([], "xterm-256color", (1, 4096), False),
        (["a"] * 128, "dumb", None, False),
        (["a"] * 129, "dumb", None, True),
        (["ä" * 4096], "dumb", None, False),
        (["ä" * 4096, "a"], "dumb", None, True),
        ([""], "dumb", None, True),
        (["a", ""], "dumb", None, False),
        (["a\0"], "dumb", None, True),
        ([], "", None, True),
        ([], "x y", None, True),
        ([], "x" * 65, None, True),
        ([], "dumb", (0, 80), True),
        ([], "dumb", (24, 4097), True),
    ],
)
def test_what_is_wrong_with_a_request_is_said(
    command: list[str], term: str, size: tuple[int, int] | None, is_bad: bool
) -> None:
    assert (problem_of(command, term, size) is not None) == is_bad


@pytest.mark.parametrize(
    ("fields", "past_s", "text"),
    [
        ({}, OPENED_WITHIN_S, None),
        ({}, OPENED_WITHIN_S + 1, "not opened it within 60 s"),
        ({"opened_at": NOW}, AWAY_S, None),
        ({"opened_at": NOW}, AWAY_S + 1, "has not asked for output for 60 s"),
        ({"opened_at": NOW, "seen_at": NOW + IDLE_S}, IDLE_S, None),
        ({"opened_at": NOW, "seen_at": NOW + IDLE_S}, IDLE_S + 1, "for 15 min"),
        ({"opened_at": NOW, "seen_at": NOW + IDLE_S, "input_at": NOW + 2}, IDLE_S + 1, None),
        ({"opened_at": NOW, "seen_at": NOW + IDLE_S, "output_at": NOW + 2}, IDLE_S + 1, None),
        ({"opened_at": NOW, "seen_at": NOW + WHOLE_S, "input_at": NOW + WHOLE_S}, WHOLE_S, None),
        ({"opened_at": NOW, "seen_at": NOW + WHOLE_S, "input_at": NOW + WHOLE_S}, WHOLE_S + 1, "for 8 h"),
        ({"opened_at": NOW, "close_requested_at": NOW}, 0.0, "it was closed"),
    ],
)
def test_when_one_ends(fields: dict[str, Any], past_s: float, text: str | None) -> None:
    before = row(**fields)
    after = after_look(before, is_live=True, is_allowed=True, now=NOW + past_s)
    if text is None:
        assert after == before
    else:
        assert text in (after.message or "")
        assert (after.ended_at, after.state) == (NOW + past_s, "ended")
    assert after_look(after, is_live=False, is_allowed=False, now=NOW + 9e9).message == (
        after.message if text is not None else "its attempt has ended, or was stopped"
    )


def test_one_ends_with_its_attempt_and_when_shells_are_turned_off() -> None:
    assert after_look(row(), is_live=False, is_allowed=True, now=NOW).message == (
        "its attempt has ended, or was stopped"
    )
    assert after_look(row(), is_live=True, is_allowed=False, now=NOW).message == (
        "shells were turned off in this service"
    )


def test_chunks_are_deleted_when_they_are_read_or_late() -> None:
    ended = row(ended_at=NOW)
    assert not is_clear(row(), 0, NOW + 9e9)
    assert is_clear(ended, 0, NOW)
    assert not is_clear(ended, 1, NOW + READ_WITHIN_S)
    assert is_clear(ended, 1, NOW + READ_WITHIN_S + 1)


def test_an_answer_opens_adds_what_follows_and_ends() -> None:
    chunks = tuple((number, STDOUT, b"x") for number in (2, 3, 4, 6))
    answer = ShellAnswer(number=1, is_open=True, taken=0, chunks=chunks)
    before = row(output_seq=2)
    assert [one[0] for one in new_chunks(before, answer)] == [3, 4]
    after = after_answer(before, answer, NOW + 1)
    assert (after.opened_at, after.output_seq, after.output_at, after.state) == (NOW + 1, 4, NOW + 1, "open")
    again = after_answer(after, replace(answer, chunks=()), NOW + 2)
    assert again == after
    ended = after_answer(after, replace(answer, chunks=(), message="the end", exit_code=3), NOW + 3)
    assert (ended.state, ended.message, ended.exit_code) == ("ended", "the end", 3)
    assert after_answer(ended, answer, NOW + 4) == ended
    assert new_chunks(ended, answer) == []

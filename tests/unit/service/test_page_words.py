"""Values as the page shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page_scripts import Script, page_script


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with page_script("words.js") as script:
        yield script


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.04 s"),
        (0.5, "0.5 s"),
        (4.0, "4 s"),
        (75, "1 min 15 s"),
        (3600, "1 h"),
        (93_784, "1 d 2 h"),
        (None, ""),
    ],
)
def test_durations_have_at_most_two_units(script: Script, seconds: float | None, text: str) -> None:
    assert script.call("duration", seconds) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(12.345, "12.3 steps/s"), (1234, "1,230 steps/s"), (0.05, "3 steps/min"), (0.001, "3.6 steps/h")],
)
def test_a_pace_has_the_unit_in_which_it_is_read(script: Script, per_s: float, text: str) -> None:
    assert script.call("rate", per_s) == text


def test_what_was_read_says_when_with_the_date_of_another_day(script: Script) -> None:
    at = time.mktime((2026, 7, 1, 13, 5, 9, 0, 0, -1))
    assert script.call("asOf", at, at + 3600) == "as of 13:05:09"
    assert script.call("asOf", at, at + 86_400) == "as of 1 Jul 2026, 13:05:09"
    assert script.call("asOf", None) == ""


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "0.00 USD"),
        (0.0123, "0.0123 USD"),
        (0.0012, "0.0012 USD"),
        (0.05, "0.05 USD"),
        (0.000001, "0.000001 USD"),
        (7.4, "7.40 USD"),
    ],
)
def test_small_amounts_of_money_are_not_rounded_to_nothing(script: Script, usd: float, text: str) -> None:
    assert script.call("money", usd) == text


@pytest.mark.parametrize(
    ("seen_s", "step", "total", "text"),
    [(60, 10, 20, "1 min"), (38, 122, 2_000_000, ""), (10, 5, 10, ""), (86_400, 1000, 2000, "1 d")],
)
def test_the_time_left_is_said_once_enough_was_seen(
    script: Script, seen_s: float, step: int, total: int, text: str
) -> None:
    job = {"state": "running", "step": step, "total_steps": total, "started_at": 1000.0}
    assert script.call("duration", script.call("timeLeft", job, 1000.0 + seen_s)) == text
    assert script.call("timeLeft", {**job, "state": "paused"}, 1000.0 + seen_s) is None


def test_a_loss_says_what_it_cost_in_time_steps_and_money(script: Script) -> None:
    loss = {"total_s": 9.0, "noticed_s": 0.0, "regrouping_s": 6.0, "recomputing_s": 3.0, "steps": 7}
    known = {**loss, "cost": 0.0021, "isOver": True}
    assert (
        script.call("lossText", known)
        == "regrouping and starting 6 s, recomputing 3 s; 7 steps repeated; 0.0021 USD"
    )
    hidden = {**loss, "steps": None, "isOver": False}
    assert script.call("lossText", hidden) == "regrouping and starting 6 s, recomputing 3 s so far"


def test_jobs_that_were_not_cancelled_are_named_with_the_reason(script: Script) -> None:
    ended, gone = "it has ended.", "the service does not answer"
    assert script.call("notCancelled", []) == ""
    assert script.call("notCancelled", [["a", ended]]) == "1 job was not cancelled: a (it has ended)."
    assert (
        script.call("notCancelled", [["a", ended], ["b", gone], ["c", ended]])
        == "3 jobs were not cancelled: a, c (it has ended); b (the service does not answer)."
    )


def test_an_offering_is_taken_apart(script: Script) -> None:
    assert script.call("offering", "Standard_D4s_v5/any/spot") == {
        "size": "Standard_D4s_v5",
        "zone": "",
        "capacity": "spot",
    }


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12).map("\n".join)


@given(before=LINES, after=LINES)
@settings(max_examples=200)
def test_a_difference_has_both_texts(script: Script, before: str, after: str) -> None:
    lines = script.call("difference", before, after)
    assert "\n".join(line["text"] for line in lines if line["kind"] != "more") == before
    assert "\n".join(line["text"] for line in lines if line["kind"] != "less") == after
    if before == after:
        assert {line["kind"] for line in lines} == {"same"}


def test_times_of_a_sentence_are_those_of_the_reader_as_all_others_are(script: Script) -> None:
    said = "ready at about 2026-07-01 12:05:10 UTC; until 2026-07-01 23:59:00 UTC nothing is bought"
    at, until = 1_782_907_510, 1_782_950_340
    expected = (
        f"ready at about {script.call('moment', at)}; until {script.call('moment', until)} nothing is bought"
    )
    assert script.call("localTimes", said) == expected
    assert script.call("localTimes", None) == ""
    assert script.call("localTimes", "step 2026 of 12:05 UTC") == "step 2026 of 12:05 UTC"

"""When the next time of cron comes in a time zone, also where clocks are set."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.spec.cron import last_until, next_after, zone_of

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def following(cron: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    found, moment = [], at(after, zone)
    for _ in range(count):
        coming = next_after(cron, zone, moment)
        assert coming is not None
        moment = coming
        found.append(dt.datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%m-%d %H:%M%z"))
    return found


def test_times_are_those_of_the_zone() -> None:
    assert following("0 3 * * mon-fri", "2026-01-02 12:00", 2) == ["01-05 03:00+0100", "01-06 03:00+0100"]
    assert following("30 0 1 1 *", "2026-01-01 00:30", 1, "Pacific/Kiritimati") == ["01-01 00:30+1400"]


def test_a_time_that_clocks_skip_is_moved_by_as_much_as_they_are() -> None:
    assert following("30 2 * * *", "2026-03-28 00:00", 3) == [
        "03-28 02:30+0100",
        "03-29 03:30+0200",
        "03-30 02:30+0200",
    ]


def test_one_that_they_repeat_comes_once_unless_every_hour_is_named() -> None:
    assert following("30 2 * * *", "2026-10-24 12:00", 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]
    assert following("0 * * * *", "2026-10-25 01:30", 3) == [
        "10-25 02:00+0200",
        "10-25 02:00+0100",
        "10-25 03:00+0100",
    ]


def test_a_leap_day_is_found_over_eight_years_and_what_never_comes_is_none() -> None:
    assert following("0 0 29 2 *", "2096-03-01 00:00", 1, "UTC") == ["02-29 00:00+0000"]
    assert next_after("0 0 30 2 *", "UTC", 0.0) is None


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "", "Europe/Berlin\n", "a" * 99])
def test_an_unknown_zone_is_one_sentence(zone: str) -> None:
    with pytest.raises(
        ValueError, match=r"is no time zone.*write a name such as Europe/Berlin or UTC"
    ) as caught:
        zone_of(zone)
    assert "\n" not in str(caught.value)


MINUTES = st.sampled_from(["0", "30", "*/20", "5,50"])
HOURS = st.sampled_from(["*", "2", "3", "1-3", "23"])
DAYS = st.sampled_from(["*", "1", "29", "*/7"])
ZONES = st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])


@given(MINUTES, HOURS, DAYS, ZONES, st.integers(1_700_000_000, 1_900_000_000))
def test_the_next_time_and_the_last_one_agree(minute: str, hour: str, day: str, zone: str, now: int) -> None:
    cron = f"{minute} {hour} {day} * *"
    coming, last = next_after(cron, zone, now), last_until(cron, zone, now)
    assert coming is not None
    assert last is not None
    assert last <= now < coming
    assert next_after(cron, zone, last) == coming, "nothing comes between them"
    assert last_until(cron, zone, coming) == coming
    assert coming % 60 == 0

"""Windows that come again: what the five fields mean, and calendars compared minute by minute with them."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.cron_fields import calendar, first_of, is_endless
from remora.spec.cron import parse_cron

FIRST = dt.datetime(2028, 1, 1)


def is_open(begins: str, lasts_s: float, at: dt.datetime) -> bool:
    """The slow way: look back for a minute at which it began."""
    fields = parse_cron(begins)
    minutes = int(-(-lasts_s // 60))
    starts = (at - dt.timedelta(minutes=back) for back in range(minutes))
    return any(
        one.minute in fields.minutes and one.hour in fields.hours and fields.begins_on(one.date())
        for one in starts
    )


def has(minutes: int, at: dt.datetime) -> bool:
    return bool(minutes >> int((at - FIRST).total_seconds() // 60) & 1)


@settings(max_examples=60)
@given(
    st.sampled_from(["0 20 * * mon-fri", "*/15 * * * *", "30 6 1,15 * *", "0 0 13 * fri", "59 23 29 2 *"]),
    st.sampled_from([60.0, 90.0, 3600.0, 12 * 3600.0]),
    st.integers(24 * 60, 4 * 365 * 24 * 60),
)
def test_a_calendar_has_the_minutes_of_its_windows(begins: str, lasts_s: float, minute: int) -> None:
    at = FIRST + dt.timedelta(minutes=minute)
    assert has(calendar(begins, lasts_s), at) == is_open(begins, lasts_s, at)


def test_the_fields_mean_what_cron_means() -> None:
    nights = parse_cron("0 20 * jan-mar mon-fri")
    assert (nights.minutes, nights.hours, nights.months) == ({0}, {20}, {1, 2, 3})
    assert nights.weekdays == {1, 2, 3, 4, 5}
    assert parse_cron("5/20 0-6/3 * * 7").minutes == {5, 25, 45}
    assert parse_cron("5/20 0-6/3 * * 7").hours == {0, 3, 6}
    assert parse_cron("* * * * 7").weekdays == {0}
    friday_or_13th = parse_cron("0 0 13 * fri")
    assert friday_or_13th.begins_on(dt.date(2028, 1, 13))
    assert friday_or_13th.begins_on(dt.date(2028, 1, 14))
    assert not friday_or_13th.begins_on(dt.date(2028, 1, 15))
    odd_fridays = parse_cron("0 0 */2 * fri")
    assert odd_fridays.begins_on(dt.date(2028, 1, 7))
    assert not odd_fridays.begins_on(dt.date(2028, 1, 14))


def test_windows_that_touch_do_not_overlap() -> None:
    day, night = calendar("0 8 * * *", 12 * 3600.0), calendar("0 20 * * *", 12 * 3600.0)
    assert day & night == 0
    assert is_endless(day | night)
    assert first_of(calendar("0 20 * * *", 12 * 3600.0 + 1) & day) == "Saturday 1 January 2028 at 08:00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write minute, hour, day, month and weekday"),
        ("@daily", "write minute, hour, day, month and weekday"),
        ("61 * * * *", "'61' is no minute; it goes from 0 to 59"),
        ("* * 0 * *", "'0' is no day of the month; it goes from 1 to 31"),
        ("* * * * funday", "'funday' is no day of the week"),
        ("*/0 * * * *", "'*/0' names no minute"),
        ("5-1 * * * *", "'5-1' names no minute"),
        ("1,,2 * * * *", "is no minute; write a number, a range"),
    ],
)
def test_what_cannot_be_a_time_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_cron(text)

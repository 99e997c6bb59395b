"""Windows that come again: what the five fields mean, and calendars compared minute by minute with them."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.policies.conflicts import conflicts
from cluster.policies.cron_fields import calendar, first_of, is_endless
from cluster.policies.policies import Policies, Window
from cluster.scheduling.limits import ends_at, limits_of
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


def window(begins: str, lasts_s: float, **more: object) -> Window:
    return Window.model_validate({"begins": begins, "lasts_s": lasts_s, **more})


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
    assert has(calendar(window(begins, lasts_s), 2028), at) == is_open(begins, lasts_s, at)


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
    day, night = (calendar(window(f"0 {hour} * * *", 12 * 3600.0), 2028) for hour in (8, 20))
    assert day & night == 0
    assert is_endless(day | night)
    longer = calendar(window("0 20 * * *", 12 * 3600.0 + 1), 2028)
    assert first_of(longer & day, 2028) == "Saturday 1 January 2028 at 08:00"


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia"]
#: Times around which clocks change in one of these zones, and others.
CHANGES = [dt.datetime(2026, 3, 29, 1), dt.datetime(2026, 10, 25, 1), dt.datetime(2027, 4, 3, 15)]


@settings(max_examples=150)
@given(
    st.sampled_from(["0 20 * * mon-fri", "*/15 * * * *", "30 2 * * *", "0 0 25 12 *", "0,30 1-3 * * sun"]),
    st.sampled_from([60.0, 3600.0, 12 * 3600.0, 3 * 86_400.0]),
    st.sampled_from(ZONES),
    st.sampled_from(
        [{}, {"except_dates": ["2026-12-25", "2027-03-28"]}, {"only_dates": ["2026-10-25", "2026-12-25"]}]
    ),
    st.one_of(
        # What begins in the last days of the four years goes on in their first ones.
        st.integers(4 * 24 * 60, 4 * 365 * 24 * 60 - 4 * 24 * 60),
        st.builds(
            lambda at, by: int((at - dt.datetime(2026, 1, 1)).total_seconds() // 60) + by,
            st.sampled_from(CHANGES),
            st.integers(-300, 300),
        ),
    ),
)
def test_a_calendar_says_the_same_as_what_the_planner_asks_at_one_moment(
    begins: str, lasts_s: float, zone: str, dates: dict[str, list[str]], minute: int
) -> None:
    one = window(begins, lasts_s, zone=zone, **dates)
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() + 60.0 * minute
    assert bool(calendar(one, 2026) >> minute & 1) == (ends_at(one, now) is not None)


def test_a_time_of_a_zone_follows_its_clocks() -> None:
    """Ten in the morning in Berlin is nine o'clock UTC in winter, and eight in summer."""
    one = window("0 10 * * *", 3600.0, zone="Europe/Berlin")
    for month, hour in ((1, 9), (7, 8)):
        begin = dt.datetime(2026, month, 15, hour, tzinfo=dt.UTC).timestamp()
        assert ends_at(one, begin) == begin + 3600.0
        assert ends_at(one, begin - 1.0) is None
        assert ends_at(one, begin + 3600.0) is None


def test_a_holiday_has_other_limits_than_the_days_around_it() -> None:
    day = {"begins": "0 0 * * *", "lasts_s": "1d", "zone": "Europe/Berlin"}
    document = {
        "pools": {
            "a": {
                "sizes": ["x"],
                "max_nodes": 9,
                "schedules": [
                    {"window": {**day, "except_dates": ["2026-12-25"]}, "min_nodes": 4},
                    {"window": {**day, "only_dates": ["2026-12-25"]}, "min_nodes": 0, "max_nodes": 1},
                ],
            }
        }
    }
    policies = Policies.model_validate(document)
    assert list(conflicts(policies)) == []
    zone = dt.timezone(dt.timedelta(hours=1))
    limits = [
        limits_of(policies.pools["a"], dt.datetime(2026, 12, 25, hour, tzinfo=zone).timestamp()).min_nodes
        for hour in (0, 12, 23)
    ]
    around = [dt.datetime(2026, 12, 24, 23, 59, tzinfo=zone), dt.datetime(2026, 12, 26, tzinfo=zone)]
    assert limits == [0, 0, 0]
    assert [limits_of(policies.pools["a"], at.timestamp()).min_nodes for at in around] == [4, 4]
    document["pools"]["a"]["schedules"][0]["window"] = day
    (found, *_) = conflicts(Policies.model_validate(document))
    assert found.message.startswith("both windows are open on e.g. Thursday 24 December 2026 at 23:00")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"zone": "Europe/Nowhere"}, "is no time zone that is known"),
        ({"zone": "../../etc/passwd"}, "is no time zone"),
        ({"only_dates": ["25.12.2026"]}, "write a date as 2026-12-25"),
        ({"only_dates": [20261225]}, "write a date as 2026-12-25"),
        ({"except_dates": ["1026-12-25"]}, "of the years 2000 to 2090"),
        ({"except_dates": ["2026-12-25"], "only_dates": ["2026-12-24"]}, "not both"),
        ({"except_dates": ["2026-12-25"] * 367}, "at most 366 items"),
    ],
)
def test_what_is_no_zone_or_date_is_refused_in_a_sentence(more: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        window("0 0 * * *", 60.0, **more)


@pytest.mark.parametrize(
    ("dates", "said"),
    [
        (["2026-12-24"], "'0 0 25 12 *' never comes; there is no such day among its only_dates"),
        (
            ["2026-12-25", "2030-12-25"],
            "dates of windows go from 2026 to 2030; write those of 4 years at most",
        ),
    ],
)
def test_dates_that_mean_nothing_together_are_named(dates: list[str], said: str) -> None:
    own = {"begins": "0 0 25 12 *", "lasts_s": 60, "only_dates": dates}
    policies = Policies.model_validate({"pools": {"a": {"sizes": ["x"], "maintenance": [own]}}})
    (found,) = conflicts(policies)
    assert found.message.startswith(said)


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

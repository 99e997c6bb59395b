"""Recurring time windows that begin at times of cron in a time zone (pure).

A calendar is one whole number with a bit for each minute of four years, in UTC, so that "do these two ever overlap" is
one operation.  Four years hold every day of the month, leap days included, and every day of the week.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from cluster.policies.policies import PoolPolicy, Window
from remora.spec.cron import CronFields, parse_cron, times_on, zone_of

_DAY_MINUTES = 24 * 60
_DAY_BYTES = _DAY_MINUTES // 8
#: The first of the four years where no window names dates, and their number.
_FIRST_YEAR, SPAN_YEARS = 2028, 4
_SPAN_DAYS = 4 * 365 + 1
_SPAN = _SPAN_DAYS * _DAY_MINUTES
#: The calendar that has every minute.
ALWAYS = (1 << _SPAN) - 1


def begins_on(window: Window, fields: CronFields, day: dt.date) -> bool:
    """Whether a window begins on this day of its zone; `fields` are those of its `begins`."""
    if window.only_dates and day not in window.only_dates:
        return False
    return day not in window.except_dates and fields.begins_on(day)


def first_year(pools: Iterable[PoolPolicy]) -> int:
    """The first of the four years of the calendars of these pools: that of the earliest date that a window names."""
    return min((day.year for day in dates_of(pools)), default=_FIRST_YEAR)


def dates_of(pools: Iterable[PoolPolicy]) -> set[dt.date]:
    """All dates that windows name."""
    windows = (one for pool in pools for one in windows_of(pool))
    return {day for one in windows for day in (*one.only_dates, *one.except_dates)}


def windows_of(pool: PoolPolicy) -> list[Window]:
    """The windows of a pool's schedules, and those of its maintenance."""
    return [*(one.window for one in pool.schedules), *pool.maintenance]


@lru_cache(maxsize=128)
def calendar(window: Window, year: int, lasts_s: float | None = None) -> int:
    """Minutes of the four years from `year` within a window, as bits; a part of a minute counts as a whole one.

    With `lasts_s` the window lasts as long.  Raises ValueError.
    """
    fields, place = parse_cron(window.begins), zone_of(window.zone)
    length = window.lasts_s if lasts_s is None else lasts_s
    starts = _starts(fields, place, year, lambda day: begins_on(window, fields, day))
    return _covered(starts, -int(-length // 60))


def _starts(fields: CronFields, place: ZoneInfo, year: int, begins: Callable[[dt.date], bool]) -> int:
    """The minutes at which it begins: days of one offset from UTC together, and those on which it changes alone."""
    by_offset: dict[int, set[dt.date]] = {}
    found = 0
    own, midnight = days(year), dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()
    for day, (before, after) in zip(own, pairwise(_offsets(place, year)), strict=True):
        if not begins(day):
            continue
        if before == after:
            by_offset.setdefault(before, set()).add(day)
            continue
        for at in times_on(day, fields, place):
            found |= 1 << int((at - midnight) // 60 % _SPAN)
    times = sum(1 << (60 * hour + minute) for hour in fields.hours for minute in fields.minutes)
    for offset, some in by_offset.items():
        found |= _moved(_on_days(times, own, some), -offset)
    return found


@lru_cache(maxsize=16)
def _offsets(place: ZoneInfo, year: int) -> list[int]:
    """Minutes that clocks are ahead of UTC when each day of the four years begins, and the first one after them."""
    own = days(year)
    ahead = [
        dt.datetime.combine(day, dt.time(), place).utcoffset() or dt.timedelta()
        for day in (*own, own[-1] + dt.timedelta(days=1))
    ]
    return [int(one.total_seconds() // 60) for one in ahead]


def _on_days(times: int, own: Iterable[dt.date], some: Collection[dt.date]) -> int:
    busy, idle = times.to_bytes(_DAY_BYTES, "little"), bytes(_DAY_BYTES)
    return int.from_bytes(b"".join(busy if day in some else idle for day in own), "little")


def _moved(minutes: int, by: int) -> int:
    """A calendar `by` minutes later; what leaves the four years comes in again at the other end."""
    by %= _SPAN
    moved = minutes << by
    return (moved & ALWAYS) | (moved >> _SPAN)


def is_endless(minutes: int) -> bool:
    """True when a calendar has every minute."""
    return minutes == ALWAYS


def first_of(minutes: int, year: int) -> str:
    """The first minute of a calendar that is not empty, in UTC, e.g. `Monday 3 January 2028 at 20:00`."""
    number = (minutes & -minutes).bit_length() - 1
    at = dt.datetime(year, 1, 1) + dt.timedelta(minutes=number)
    return f"{at:%A} {at.day} {at:%B %Y} at {at:%H:%M}"


def days(year: int) -> list[dt.date]:
    """Each day of the four years from `year`."""
    return [dt.date(year, 1, 1) + dt.timedelta(days=number) for number in range(_SPAN_DAYS)]


def minutes_by_day(minutes: int) -> list[int]:
    """How many minutes of each of these days a calendar has."""
    packed = minutes.to_bytes(_SPAN_DAYS * _DAY_BYTES, "little")
    slices = [packed[begin : begin + _DAY_BYTES] for begin in range(0, len(packed), _DAY_BYTES)]
    # Most days are like many others.
    numbers = {one: int.from_bytes(one, "little").bit_count() for one in set(slices)}
    return [numbers[one] for one in slices]


def _covered(starts: int, length: int) -> int:
    """Each bit spread over `length` bits upwards; what leaves the four years comes in again at their beginning."""
    covered, width = starts, 1
    while width < length:
        step = min(width, length - width)
        covered |= covered << step
        width += step
    while covered > ALWAYS:
        covered = (covered & ALWAYS) | (covered >> _SPAN)
    return covered

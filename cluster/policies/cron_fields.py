"""Recurring time windows that begin at times of cron, in UTC (pure).

A calendar is one whole number with a bit for each minute of four years, so that "do these two ever overlap" is one
operation.  Four years hold every day of the month, leap days included, and every day of the week.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache

from remora.spec.cron import parse_cron

_DAY_MINUTES = 24 * 60
_DAY_BYTES = _DAY_MINUTES // 8
#: The first of the four years.
_FIRST = dt.date(2028, 1, 1)
_SPAN_DAYS = 4 * 365 + 1
_SPAN = _SPAN_DAYS * _DAY_MINUTES
#: The calendar that has every minute.
ALWAYS = (1 << _SPAN) - 1


@lru_cache(maxsize=128)
def calendar(begins: str, lasts_s: float) -> int:
    """Minutes of four years within a window, as bits; a part of a minute counts as a whole one.  Raises ValueError."""
    fields = parse_cron(begins)
    times = sum(1 << (60 * hour + minute) for hour in fields.hours for minute in fields.minutes)
    busy, idle = times.to_bytes(_DAY_BYTES, "little"), bytes(_DAY_BYTES)
    days = (_FIRST + dt.timedelta(days=number) for number in range(_SPAN_DAYS))
    starts = b"".join(busy if fields.begins_on(day) else idle for day in days)
    return _covered(int.from_bytes(starts, "little"), -int(-lasts_s // 60))


def is_endless(minutes: int) -> bool:
    """True when a calendar has every minute."""
    return minutes == ALWAYS


def first_of(minutes: int) -> str:
    """The first minute of a calendar that is not empty, e.g. `Monday 3 January 2028 at 20:00`."""
    number = (minutes & -minutes).bit_length() - 1
    at = dt.datetime.combine(_FIRST, dt.time()) + dt.timedelta(minutes=number)
    return f"{at:%A} {at.day} {at:%B %Y} at {at:%H:%M}"


def days() -> list[dt.date]:
    """Each day of the four years."""
    return [_FIRST + dt.timedelta(days=number) for number in range(_SPAN_DAYS)]


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

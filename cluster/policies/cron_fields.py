"""Recurring time windows, given by the five fields of cron, in UTC (pure).

A calendar is one whole number with a bit for each minute of four years, so that "do these two ever overlap" is one
operation.  Four years hold every day of the month, leap days included, and every day of the week.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: Name, lowest and highest value, and words for values, of each field.
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {word: number for number, word in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 7, {word: number for number, word in enumerate(_DAYS)}),
)
_PART = re.compile(r"(?:(\*)|([a-z0-9]+)(?:-([a-z0-9]+))?)(?:/([0-9]{1,3}))?")
_DAY_MINUTES = 24 * 60
_DAY_BYTES = _DAY_MINUTES // 8
#: The first of the four years.
_FIRST = dt.date(2028, 1, 1)
_SPAN_DAYS = 4 * 365 + 1
_SPAN = _SPAN_DAYS * _DAY_MINUTES
#: The calendar that has every minute.
ALWAYS = (1 << _SPAN) - 1


@dataclass(frozen=True, kw_only=True)
class CronFields:
    """When something begins: values of minute, hour, day of the month, month and day of the week (0: Sunday)."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    #: With both kinds of days restricted, neither by a field that begins with `*`, either suffices, as cron has it.
    either_day: bool

    def begins_on(self, day: dt.date) -> bool:
        """True when it begins on this day."""
        weekday = day.isoweekday() % 7
        if day.month not in self.months:
            return False
        if self.either_day:
            return day.day in self.days or weekday in self.weekdays
        return day.day in self.days and weekday in self.weekdays


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> CronFields:
    """The five fields of e.g. `0 20 * * mon-fri`.  Raises ValueError in one sentence."""
    words = text.lower().split()
    if len(words) != len(_FIELDS):
        raise ValueError(
            f"{text[:60]!r} is no time of cron: write minute, hour, day, month and weekday, e.g. '0 20 * * mon-fri'"
        )
    minutes, hours, days, months, weekdays = (
        _values(word, *field) for word, field in zip(words, _FIELDS, strict=True)
    )
    return CronFields(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either_day=not words[2].startswith("*") and not words[4].startswith("*"),
    )


def _values(word: str, name: str, lowest: int, highest: int, words: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:20]!r} is no {name}; write a number, a range such as 1-5, */15, or *")
        star, first, last, step = match.groups()
        begin = lowest if star else _value(first, name, lowest, highest, words)
        end = begin if first and not last and not step else highest
        end = _value(last, name, lowest, highest, words) if last else end
        if begin > end or step == "0" * len(step or "0"):
            raise ValueError(f"{part[:20]!r} names no {name}")
        found.update(range(begin, end + 1, int(step or 1)))
    return frozenset(found)


def _value(word: str, name: str, lowest: int, highest: int, words: dict[str, int]) -> int:
    value = int(word) if word.isdecimal() and len(word) < 4 else words.get(word)
    if value is None or not lowest <= value <= highest:
        raise ValueError(f"{word[:20]!r} is no {name}; it goes from {lowest} to {highest}")
    return value


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

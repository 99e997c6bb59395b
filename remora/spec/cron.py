"""Times of cron: what its five fields mean, and when the next one comes in a time zone.  Pure.

A time that clocks skip in spring is moved by as much as they are; one that they repeat in autumn comes once, unless the
fields name every hour.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

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
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,40}(?:/[A-Za-z0-9_+-]{1,40}){0,2}")
#: Days within which every date comes again: there are eight years between two leap days at the turn of a century.
_DAYS_AHEAD = 8 * 366 + 1


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


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """A time zone by its name.  Raises ValueError in one sentence."""
    if not _ZONE.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is no time zone; write a name such as Europe/Berlin or UTC")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        why = (
            "is no time zone that is known"
            if _has_zones()
            else "cannot be looked up: this machine has no time zones"
        )
        raise ValueError(f"{name[:60]!r} {why}; write a name such as Europe/Berlin or UTC") from None


@lru_cache(maxsize=1)
def _has_zones() -> bool:
    """Looks through all files of time zones, which takes a tenth of a second."""
    return bool(available_timezones())


@lru_cache(maxsize=4096)
def next_after(cron: str, zone: str, after: float) -> float | None:
    """The first time after `after`, seconds since 1970; None: it never comes.  Raises ValueError."""
    fields, place = parse_cron(cron), zone_of(zone)
    today = dt.datetime.fromtimestamp(after, place).date()
    # A time of yesterday may be moved into today.
    for number in range(-1, _DAYS_AHEAD):
        day = today + dt.timedelta(days=number)
        if fields.begins_on(day):
            found = [at for at in times_on(day, fields, place) if at > after]
            if found:
                return min(found)
    return None


@lru_cache(maxsize=4096)
def last_until(cron: str, zone: str, until: float) -> float | None:
    """The last time at or before `until`; None: there was none in the years before.  Raises ValueError."""
    fields, place = parse_cron(cron), zone_of(zone)
    today = dt.datetime.fromtimestamp(until, place).date()
    for number in range(_DAYS_AHEAD):
        day = today - dt.timedelta(days=number)
        if fields.begins_on(day):
            found = [at for at in times_on(day, fields, place) if at <= until]
            if found:
                return max(found)
    return None


def times_on(day: dt.date, fields: CronFields, place: ZoneInfo) -> set[float]:
    """When it begins on a day of this zone, in seconds since 1970, whether or not its fields name the day."""
    folds = (0, 1) if len(fields.hours) == 24 else (0,)
    return {
        dt.datetime.combine(day, dt.time(hour, minute, fold=fold), place).timestamp()
        for hour in fields.hours
        for minute in fields.minutes
        for fold in folds
    }

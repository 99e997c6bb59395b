"""Durations and sizes as people write them.  Pure."""

from __future__ import annotations

import math
import re
from datetime import datetime

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_BUDGET = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(?:USD)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")

#: No duration in a specification is longer: ten years.
LONGEST_S = 10 * 365 * 86400.0
#: No budget in a specification is larger, in USD.
LARGEST_BUDGET = 1e9
#: No moment in a specification is later: the year 2286.
LATEST = 1e10
#: No size in a specification is bigger: one pebibyte.
LARGEST_BYTES = 1024**5

DURATION_FORM = "a duration such as 30s, 5m or 1h30m, or a number of seconds"
SIZE_FORM = "a size such as 512MiB or 32GiB, or a number of bytes"
BUDGET_FORM = "an amount of money such as 50 USD, or a number of USD, above 0"
MOMENT_FORM = "a date and time with its zone, such as 2026-12-01T08:00Z"


def parse_duration(value: object) -> float:
    """Seconds of `30s`, `5m`, `1h30m`, `250ms`, or of a plain number.

    Raises ValueError saying what is expected; infinite, negative and longer than ten years are refused.
    """
    if isinstance(value, str):
        seconds = _duration_from_text(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= LONGEST_S else math.inf
    else:
        raise ValueError(f"expected {DURATION_FORM}")  # noqa: TRY004 - pydantic reports ValueError only
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError("expected a duration between 0 and ten years")
    return seconds


def _duration_from_text(text: str) -> float:
    parts = _DURATION_PART.findall(text[:64])
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"expected {DURATION_FORM}")
    return math.fsum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_budget(value: object) -> float:
    """USD of `50 USD`, `12.50`, or of a plain number.

    Raises ValueError saying what is expected; zero, infinite amounts and other currencies are refused.
    """
    if isinstance(value, str) and (found := _BUDGET.fullmatch(value.strip())):
        value = float(found[1])
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LARGEST_BUDGET:
        raise ValueError(f"expected {BUDGET_FORM}")
    return float(value)


def parse_moment(value: object) -> float:
    """Seconds since 1970 of `2026-12-01T08:00Z`, of a `datetime` with a zone, or of a plain number of seconds.

    Raises ValueError saying what is expected; a time without a zone may mean anything, and is refused.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"expected {MOMENT_FORM}") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"expected {MOMENT_FORM}")
        value = value.timestamp()
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LATEST:
        raise ValueError(f"expected {MOMENT_FORM}")
    return float(value)


def parse_size(value: object) -> int:
    """Bytes of `32GiB`, `500MB`, or of a plain whole number.

    Raises ValueError saying what is expected; zero and more than one pebibyte are refused.
    """
    if isinstance(value, str):
        size = _size_from_text(value.strip())
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        raise ValueError(f"expected {SIZE_FORM}")  # noqa: TRY004 - pydantic reports ValueError only
    if not 1 <= size <= LARGEST_BYTES:
        raise ValueError("expected a size between 1 byte and 1 PiB")
    return size


def _size_from_text(text: str) -> int:
    match = _SIZE.fullmatch(text[:64])
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(f"expected {SIZE_FORM}")
    size = float(match[1]) * _SIZE_UNITS[match[2]]
    return int(size) if size <= LARGEST_BYTES else LARGEST_BYTES + 1


def format_duration(seconds: float) -> str:
    """Short text for people: `42s`, `3m 05s`, `2h 07m`, `4d 03h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def format_size(size_bytes: float) -> str:
    """Short text for people: `17 B`, `2.5 KiB`, `1.0 GiB`."""
    if size_bytes < 1024:
        return f"{int(size_bytes)} B"
    power = min(4, int(math.log2(size_bytes)) // 10)
    return f"{size_bytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"

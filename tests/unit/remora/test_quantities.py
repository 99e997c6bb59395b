"""Durations, sizes, amounts and moments: what people write is read, and what is shown to them says the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.spec.quantities import (
    LARGEST_BUDGET,
    LARGEST_BYTES,
    LATEST,
    LONGEST_S,
    format_duration,
    format_size,
    parse_budget,
    parse_duration,
    parse_moment,
    parse_size,
)

#: Seconds and bytes of each unit.
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@pytest.mark.parametrize(
    ("parse", "least", "most", "too_little", "too_much"),
    [
        (parse_duration, 0.0, LONGEST_S, -0.001, math.nextafter(LONGEST_S, math.inf)),
        (parse_size, 1, LARGEST_BYTES, 0, LARGEST_BYTES + 1),
        (parse_budget, 1e-6, LARGEST_BUDGET, 0.0, math.nextafter(LARGEST_BUDGET, math.inf)),
        (parse_moment, 1e-6, LATEST, 0.0, math.nextafter(LATEST, math.inf)),
    ],
)
def test_a_limit_itself_may_be_written_and_nothing_beyond_it(
    parse: Callable[[object], float], least: float, most: float, too_little: float, too_much: float
) -> None:
    assert (parse(least), parse(most)) == (least, most)
    for beyond in (
        too_little,
        too_much,
        math.inf,
        -math.inf,
        math.nan,
        10**400,
        True,
        None,
        [],
        "",
        "-1",
        "x",
    ):
        with pytest.raises(ValueError, match="expected"):
            parse(beyond)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from(list(SECONDS))), min_size=1, max_size=6))
def test_the_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse_duration(f" {text} ") == pytest.approx(sum(number * SECONDS[unit] for number, unit in parts))
    for wrong in (f"{text}!", f"!{text}", f"{text}9", text.upper() if text.upper() != text else "1"):
        with pytest.raises(ValueError, match="expected a duration such as"):
            parse_duration(wrong)


@given(st.integers(1, 999), st.sampled_from(list(BYTES)), st.sampled_from(["", " "]))
def test_a_size_has_the_bytes_of_its_unit(number: int, unit: str, between: str) -> None:
    assert parse_size(f"{number}{between}{unit}") == number * BYTES[unit]
    assert parse_size(f"{number}.5{between}{unit}") == int((number + 0.5) * BYTES[unit])


@pytest.mark.parametrize(
    ("written", "usd"), [("50 USD", 50.0), ("50USD", 50.0), (" 12.50 ", 12.5), ("0.000001", 1e-6), (7, 7.0)]
)
def test_an_amount_is_in_usd_whether_or_not_that_is_written(written: object, usd: float) -> None:
    assert parse_budget(written) == usd


@pytest.mark.parametrize("written", ["50 EUR", "50 usd", "USD 50", "-1 USD", "0 USD", "1.2.3", "1" * 13])
def test_an_amount_in_another_currency_or_none_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="expected an amount of money such as 50 USD"):
        parse_budget(written)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)), st.integers(-720, 840))
def test_a_moment_is_the_same_in_each_of_its_forms(moment: datetime, minutes_east: int) -> None:
    there = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(minutes=minutes_east)))
    at = there.timestamp()
    assert parse_moment(f" {there.isoformat()} ") == parse_moment(there) == parse_moment(at) == at
    for without_zone in (moment, moment.isoformat(), str(moment.date())):
        with pytest.raises(ValueError, match="expected a date and time with its zone"):
            parse_moment(without_zone)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0s"), (59.9, "59s"), (60, "1m 00s"), (3599, "59m 59s"), (3600, "1h 00m"), (7265, "2h 01m"),
     (86_399, "23h 59m"), (86_400, "1d 00h"), (90_000, "1d 01h")],
)  # fmt: skip
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2.5 * 2**30, "2.5 GiB"), (2**52, "4096.0 TiB")],
)
def test_a_size_is_shown_in_its_largest_unit(size_bytes: float, shown: str) -> None:
    assert format_size(size_bytes) == shown


@given(st.floats(-100.0, LONGEST_S))
def test_a_duration_that_is_shown_is_right_but_for_what_is_left_out(seconds: float) -> None:
    shown = format_duration(seconds)
    longest = max(0.0, seconds)
    left_out_s = 1.0 if longest < 3600.0 else 60.0 if longest < 86400.0 else 3600.0
    assert 0.0 <= longest - parse_duration(shown.replace(" ", "")) < left_out_s
    assert len(shown.split()) == (1 if longest < 60.0 else 2)


@given(st.floats(0.0, 2.0**60))
def test_a_size_that_is_shown_is_right_but_for_what_is_left_out(size_bytes: float) -> None:
    number, unit = format_size(size_bytes).split()
    assert abs(float(number) - size_bytes / BYTES[unit]) <= (1.0 if unit == "B" else 0.05001)
    assert size_bytes < 1024.0 or float(number) >= 1.0
    assert unit == "TiB" or float(number) <= 1024.0

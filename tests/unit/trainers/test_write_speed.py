"""Which checkpoints are stored in time before their machine goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainers.supervisor.write_speed import MARGIN_S, WriteSpeed, fits

SIZES = st.integers(0, 10**13)
SPEEDS = st.floats(1.0, 1e11)
TIMES = st.floats(0.0, 1e6)


@given(SIZES, SPEEDS, TIMES)
def test_without_a_deadline_everything_fits(size: int, speed: float, now: float) -> None:
    assert fits(size, speed, None, now)


@given(SIZES, SPEEDS, TIMES, TIMES)
def test_what_fits_is_there_before_the_machine_goes(
    size: int, speed: float, now: float, left_s: float
) -> None:
    if fits(size, speed, now + left_s, now):
        assert size / speed <= left_s - MARGIN_S + 1e-6
    else:
        assert size / speed > left_s - MARGIN_S - 1e-6


@given(SIZES, SPEEDS, st.floats(1.0, 10.0), TIMES, TIMES)
def test_more_bytes_and_less_time_never_fit_better(
    size: int, speed: float, factor: float, now: float, left_s: float
) -> None:
    if fits(int(size * factor), speed, now + left_s, now):
        assert fits(size, speed, now + left_s, now)
    if fits(size, speed, now + left_s, now):
        assert fits(size, speed * factor, now + left_s, now)


def measured(speed: WriteSpeed, size_bytes: int, took_s: float) -> None:
    speed.end(speed.begin(size_bytes, 100.0), 100.0 + took_s)


def test_the_slower_of_the_last_two_writes_counts() -> None:
    speed = WriteSpeed(100.0)
    assert speed.bytes_per_s(0.0) == 100.0
    measured(speed, 1000, 1.0)
    assert speed.bytes_per_s(0.0) == 1000.0, "what was measured replaces what was assumed"
    measured(speed, 10, 1.0)
    measured(speed, 500, 1.0)
    assert speed.bytes_per_s(0.0) == 10.0
    measured(speed, 700, 1.0)
    assert speed.bytes_per_s(0.0) == 500.0
    measured(speed, 0, 9.0)
    assert speed.bytes_per_s(0.0) == 500.0, "an empty write says nothing"


def test_a_write_under_way_says_how_fast_it_is_at_most() -> None:
    speed = WriteSpeed(1e9)
    write = speed.begin(1000, 100.0)
    assert speed.bytes_per_s(100.0) == 1e9, "nothing is known yet"
    assert speed.bytes_per_s(110.0) == 100.0
    assert speed.waiting_bytes == 1000
    speed.end(write, 120.0)
    assert (speed.bytes_per_s(500.0), speed.waiting_bytes) == (50.0, 0)


def test_a_write_that_fails_says_nothing() -> None:
    speed = WriteSpeed(100.0)
    speed.drop(speed.begin(10, 0.0))
    assert (speed.bytes_per_s(1000.0), speed.waiting_bytes) == (100.0, 0)

"""A step is overdue by the job's own history, and by nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.driver.hang import ENOUGH, FACTOR, StepWatch

BEGIN = 1_000_000.0


def watch_of(steps: list[float], *, least_s: float = 100.0, workers: int = 2) -> tuple[StepWatch, float]:
    """A watch that saw steps of these lengths, and the time at which the last of them ended."""
    watch, now = StepWatch(least_s), BEGIN
    watch.go_on(now)
    for length in steps:
        now += length
        watch.step(now, workers)
    return watch, now


@pytest.mark.parametrize(
    ("steps", "quiet_s", "is_overdue", "why"),
    [
        ([1.0] * 5, 100.0, False, "less than the limit for all steps"),
        ([1.0] * 5, 101.0, True, "more than the limit, and than ten times the longest"),
        ([1.0, 30.0, 1.0, 1.0], 299.0, False, "less than ten times the longest"),
        ([1.0, 30.0, 1.0, 1.0], 301.0, True, "more than ten times the longest"),
        ([1.0] * (ENOUGH - 1), 1e6, False, "no history"),
        ([30.0] + [1.0] * 1000, 101.0, True, "what was long ago does not count"),
    ],
)
def test_a_step_is_overdue_by_the_history(
    steps: list[float], quiet_s: float, is_overdue: bool, why: str
) -> None:
    watch, now = watch_of(steps)
    assert (watch.overdue(now + quiet_s, 2) is not None) is is_overdue, why


def test_it_says_how_long_steps_take() -> None:
    watch, now = watch_of([1.0, 4.0, 2.0])
    overdue = watch.overdue(now + 150.0, 2)
    assert overdue is not None
    assert (overdue.quiet_s, overdue.longest_s) == (150.0, 4.0)


@pytest.mark.parametrize(("longest_s", "slow_after_s"), [(0.01, 1.0), (1.0, 3.0)])
def test_a_step_is_worth_a_look_long_before_it_is_overdue(longest_s: float, slow_after_s: float) -> None:
    watch, now = watch_of([longest_s] * 5)
    assert watch.slow(now + 0.99 * slow_after_s, 2) is None
    assert watch.slow(now + 1.01 * slow_after_s, 2) is not None


def test_fewer_workers_may_take_longer() -> None:
    watch, now = watch_of([20.0] * 4, workers=4)
    assert watch.overdue(now + 300.0, 4) is not None
    assert watch.overdue(now + 300.0, 1) is None
    assert watch.overdue(now + 900.0, 1) is not None


def test_time_that_is_held_does_not_count_and_is_no_step() -> None:
    watch, now = watch_of([1.0] * 5)
    watch.hold()
    assert watch.overdue(now + 1e6, 2) is None
    watch.go_on(now + 1e6)
    assert watch.overdue(now + 1e6 + 50.0, 2) is None
    overdue = watch.overdue(now + 1e6 + 150.0, 2)
    assert overdue is not None
    assert overdue.longest_s == 1.0
    watch.hold()
    watch.step(now + 2e6, 2)
    assert watch.overdue(now + 2e6 + 150.0, 2) is not None, "a step that began in a pause is no history"


@given(st.lists(st.floats(0.001, 1e4), min_size=ENOUGH, max_size=50), st.floats(0.1, 1e4))
def test_a_job_whose_steps_stay_as_they_are_is_never_ended(steps: list[float], least_s: float) -> None:
    watch, now = watch_of(steps, least_s=least_s)
    assert watch.overdue(now + FACTOR * max(steps) * 0.999, 2) is None

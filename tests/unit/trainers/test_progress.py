"""Steps done again and seconds lost are counted, nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainers.driver.progress import Progress


@given(groups=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8))
def test_repeated_steps_are_exactly_the_overlap(groups: list[tuple[int, int]]) -> None:
    """Each worker group resumes at some step (never after the newest) and does some steps."""
    progress, newest, overlap = Progress(), 0, 0
    for resume, count in groups:
        first = min(resume, newest) + 1
        progress = progress.regroup()
        for step in range(first, first + count):
            progress = progress.report(step, None, float(step))
        overlap += len(range(first, min(newest + 1, first + count)))
        newest = max(newest, first + count - 1 if count else 0)
    assert progress.repeated_steps == overlap
    assert (progress.step or 0) == newest


@given(
    before=st.floats(0, 1e6), loss_after=st.floats(0, 100), pause=st.floats(0, 100), again=st.integers(0, 5)
)
def test_lost_seconds_last_from_the_last_step_to_the_next_new_one(
    before: float, loss_after: float, pause: float, again: int
) -> None:
    progress = Progress().report(10, 50, before).lose(before + loss_after).regroup()
    back = before + loss_after + pause
    for step in range(11 - again, 11):
        progress = progress.report(step, None, back)
    assert progress.lost_s == 0.0, "a repeated step is not a new one"
    progress = progress.report(11, None, back)
    assert progress.lost_s == max(0.0, back - before)
    assert (progress.lost_since, progress.total_steps) == (None, 50)


def test_a_second_loss_before_a_new_step_is_the_same_loss() -> None:
    progress = Progress().report(1, None, 5.0).report(2, None, 10.0).lose(12.0).regroup()
    progress = progress.report(1, None, 18.0).lose(20.0).regroup()
    assert progress.report(3, None, 30.0).lost_s == 20.0
    assert progress.losses == 1
    assert progress.report(3, None, 30.0).lose(40.0).losses == 2


def test_a_step_reported_twice_is_one_step() -> None:
    progress = Progress(step=5, high_water=5).report(5, None, 1.0).report(5, None, 1.1).report(6, None, 1.2)
    assert progress.repeated_steps == 1


def test_a_later_attempt_repeats_what_an_earlier_one_did() -> None:
    progress = Progress(step=100, high_water=100)
    for step in range(91, 111):
        progress = progress.report(step, None, float(step))
    assert progress.repeated_steps == 10


def test_a_loss_before_the_first_step_counts_from_the_loss() -> None:
    assert Progress().lose(5.0).report(1, None, 8.0).lost_s == 3.0


def test_a_loss_that_no_new_step_follows_is_open_until_what_was_lost_is_done_again() -> None:
    progress = Progress()
    for step in range(1, 101):
        progress = progress.report(step, 100, float(step))
    progress = progress.lose(101.0).regroup()
    for step in range(84, 101):
        progress = progress.report(step, 100, 30.0 + step)
    assert (progress.repeated_steps, progress.lost_s) == (17, 0.0)
    assert progress.open_lost_s(500.0) == 30.0, "what the command does after its last step is no loss"


def test_a_loss_that_is_not_won_back_is_open_until_the_end() -> None:
    progress = Progress().report(10, None, 10.0)
    assert progress.open_lost_s(99.0) == 0.0
    progress = progress.lose(12.0).regroup().report(8, None, 20.0)
    assert progress.open_lost_s(25.0) == 15.0
    assert progress.report(10, None, 30.0).lose(31.0).regroup().open_lost_s(45.0) == 35.0
    assert progress.report(11, None, 30.0).open_lost_s(45.0) == 0.0


def test_an_attempt_that_has_not_come_further_than_the_one_before_loses_what_is_counted_between_them() -> (
    None
):
    progress = Progress(step=100, high_water=100, inherited=100)
    progress = progress.report(81, None, 10.0).lose(11.0).regroup().report(90, None, 20.0)
    assert progress.open_lost_s(30.0) == 0.0
    progress = progress.report(101, None, 31.0)
    assert (progress.lost_s, progress.lost_since) == (0.0, None)
    assert progress.lose(32.0).regroup().report(102, None, 41.0).lost_s == 10.0

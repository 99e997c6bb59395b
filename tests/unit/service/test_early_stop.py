"""Which jobs of an array are stopped early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.queue.early_stop import LEAST, Score, first_comparison, observe, stopped
from service.queue.rows import JobRow
from tests.service_fakes import job_row


def element(mode: str = "min", first_step: int = 10, **fields: Any) -> JobRow:
    rule = {"metric": "loss", "mode": mode, "first_step": first_step}
    return job_row(array_id="array_1", stop_rule=rule, **{"compared_at": first_step, **fields})


def scores_of(job: JobRow, reports: list[tuple[int, float | None]]) -> list[tuple[int, float]]:
    found = []
    for step, value in reports:
        job, score = observe(job, step, {"loss": value, "other": 1.0})
        if score is not None:
            assert (score.array_id, score.job_id) == ("array_1", job.id)
            found.append((score.step, score.value))
    return found


def test_a_job_is_compared_at_steps_that_double_by_its_best_value() -> None:
    reports: list[tuple[int, float | None]] = [
        (1, 5.0),
        (9, 2.0),
        (10, 3.0),
        (19, 4.0),
        (20, 1.0),
        (40, None),
    ]
    assert scores_of(element(), reports) == [(10, 2.0), (20, 1.0), (40, 1.0)]
    assert scores_of(element("max"), reports) == [(10, 5.0), (20, 5.0), (40, 5.0)]


def test_steps_that_are_not_reported_are_passed_over() -> None:
    assert scores_of(element(), [(85, 1.0), (90, 2.0), (160, 3.0)]) == [(80, 1.0), (160, 1.0)]


def test_a_job_without_the_metric_is_compared_once_it_has_it() -> None:
    assert scores_of(element(), [(10, None), (15, None), (17, 2.0)]) == [(10, 2.0)]


def test_jobs_of_arrays_that_stop_none_have_no_score() -> None:
    assert first_comparison(job_row()) is None
    assert first_comparison(element(first_step=7)) == 7
    assert scores_of(job_row(array_id="array_1"), [(10, 1.0)]) == []


def is_stopped(own: float, others: list[float], mode: str = "min") -> bool:
    job = element(mode)
    score = Score(array_id="array_1", step=10, job_id=job.id, value=own)
    after, event = stopped(job, score, [own, *others], 1000.0)
    assert (after.stopped_early is not None) == (event is not None)
    return event is not None


@pytest.mark.parametrize(
    ("own", "others", "stops"),
    [
        (9.0, [1.0, 2.0], False),
        (9.0, [1.0, 2.0, 3.0], True),
        (2.5, [1.0, 2.0, 3.0], True),
        (1.5, [1.0, 2.0, 3.0], False),
        (1.0, [1.0, 1.0, 1.0], False),
        (3.0, [1.0, 2.0, 4.0, 5.0], False),
        (3.5, [1.0, 2.0, 3.0, 5.0], True),
    ],
)
def test_the_better_half_goes_on(own: float, others: list[float], stops: bool) -> None:
    assert is_stopped(own, others) is stops
    assert is_stopped(-own, [-one for one in others], "max") is stops


def test_it_says_why() -> None:
    score = Score(array_id="array_1", step=10, job_id="j", value=9.0)
    after, event = stopped(element(attempt=2), score, [9.0, 1.0, 2.0, 3.0], 1000.0)
    said = "at step 10 its best loss is 9, and 3 of the 4 jobs of its array that came there have a better one"
    assert after.stopped_early == said
    assert event is not None
    assert (event.kind, event.message, event.attempt) == ("job.stopped_early", said, 2)
    assert stopped(after, score, [9.0, 1.0, 2.0, 3.0], 1000.0) == (after, None)


@given(st.lists(st.floats(-9, 9), min_size=LEAST, max_size=12))
def test_of_those_that_have_come_at_least_half_would_go_on(values: list[float]) -> None:
    stays = [own for at, own in enumerate(values) if not is_stopped(own, values[:at] + values[at + 1 :])]
    assert len(stays) * 2 >= len(values)
    assert min(values) in stays


def counted(policy: str, mode: str = "min", **rule: Any) -> JobRow:
    """An element whose array stops jobs by a policy of Azure ML."""
    whole = {"every": 1, "delay": 0, "slack_factor": None, "slack_amount": None, "percent": None, **rule}
    return job_row(array_id="array_1", stop_rule={"metric": "loss", "mode": mode, "policy": policy, **whole})


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        ("bandit", [(2, 3.0), (4, 2.0), (6, 2.0)]),
        ("median", [(2, 4.0), (4, 3.5), (6, 4.0)]),
        ("truncation", [(2, 3.0), (4, 4.0), (6, 6.0)]),
    ],
)
def test_the_policies_of_azure_ml_count_reports_of_the_metric(
    policy: str, values: list[tuple[int, float]]
) -> None:
    # Steps that are done again after a loss, and those without the metric, are no further report.
    reports: list[tuple[int, float | None]] = [
        (10, 5.0), (20, 3.0), (25, None), (30, 2.0), (20, 9.0), (30, 9.0), (40, 4.0), (50, 4.0), (60, 6.0),
    ]  # fmt: skip
    assert first_comparison(counted(policy)) is None
    assert scores_of(counted(policy, every=2), reports) == values
    assert scores_of(counted(policy, every=2, delay=3), reports) == values[1:]


def ends(job: JobRow, own: float, others: list[float]) -> bool:
    score = Score(array_id="array_1", step=2, job_id=job.id, value=own)
    after, event = stopped(job, score, [own, *others], 1000.0)
    assert (after.stopped_early is not None) == (event is not None)
    return event is not None


@pytest.mark.parametrize(
    ("rule", "own", "others", "stops"),
    [
        # As in the documentation of Azure ML: 0.8 / 1.2 is 0.67, and 0.8 - 0.2 is 0.6.
        ({"slack_factor": 0.2, "mode": "max"}, 0.66, [0.8], True),
        ({"slack_factor": 0.2, "mode": "max"}, 0.67, [0.8], False),
        ({"slack_amount": 0.2, "mode": "max"}, 0.59, [0.8], True),
        ({"slack_amount": 0.2, "mode": "max"}, 0.61, [0.8], False),
        ({"slack_factor": 0.2}, 1.21, [1.0, 5.0], True),
        ({"slack_factor": 0.2}, 1.19, [1.0, 5.0], False),
        ({"slack_factor": 0.2}, 1.0, [], False),
        ({"slack_factor": 0.2, "mode": "max"}, -1.0, [-2.0], False),
    ],
)
def test_a_bandit_ends_what_is_beyond_the_slack(
    rule: dict[str, Any], own: float, others: list[float], stops: bool
) -> None:
    assert ends(counted("bandit", **rule), own, others) is stops


def test_median_stopping_compares_the_best_value_with_the_means_of_all() -> None:
    assert ends(replace(counted("median"), best_value=3.1), 4.0, [3.0, 2.0])
    assert not ends(replace(counted("median"), best_value=2.9), 4.0, [3.0, 2.0])
    assert ends(replace(counted("median", "max"), best_value=2.9), 2.0, [3.0, 4.0])


def test_truncation_ends_a_share_of_those_that_came_there() -> None:
    job = counted("truncation", percent=20)
    assert ends(job, 9.0, [1.0, 2.0, 3.0, 4.0])
    assert not ends(job, 4.0, [1.0, 2.0, 3.0, 9.0])
    assert not ends(job, 9.0, [1.0, 2.0, 3.0]), "a fifth of four is none"
    assert not ends(job, 9.0, [9.0, 1.0, 2.0, 3.0]), "which of two that are equal?"
    assert ends(counted("truncation", "max", percent=50), 1.0, [2.0])

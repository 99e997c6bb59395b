"""Which jobs of an array are stopped early, because others do better at the same step (pure).

Jobs are compared at steps that double: asynchronous successive halving (Li et al., MLSys 2020).  A job goes on while
its best value so far is among the better half of those that have come to that step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from service.queue.rows import JobRow, NewEvent

#: Jobs that have come to a step before any is stopped there.
LEAST = 4


@dataclass(frozen=True, kw_only=True)
class Score:
    """The best value of a job when it came to a step at which jobs are compared."""

    array_id: str
    step: int
    job_id: str
    value: float


def first_comparison(job: JobRow) -> int | None:
    """The step at which the job is compared first; None: its array stops none."""
    return None if job.stop_rule is None else int(job.stop_rule["first_step"])


def observe(job: JobRow, step: int, values: Mapping[str, float | None]) -> tuple[JobRow, Score | None]:
    """The job has reported values for a step; its score, when it is compared there.

    A job that has not reported the metric by then is compared at its first step with it.
    """
    at, array_id = job.compared_at, job.array_id
    if job.stop_rule is None or at is None or array_id is None:
        return job, None
    value = values.get(job.stop_rule["metric"])
    if value is not None:
        better = min if job.stop_rule["mode"] == "min" else max
        job = replace(job, best_value=value if job.best_value is None else better(value, job.best_value))
    if step < at or job.best_value is None:
        return job, None
    while at * 2 <= step:
        at *= 2
    score = Score(array_id=array_id, step=at, job_id=job.id, value=job.best_value)
    return replace(job, compared_at=2 * at), score


def stopped(job: JobRow, score: Score, values: Sequence[float], now: float) -> tuple[JobRow, NewEvent | None]:
    """The job as it goes on, or with why it is stopped; `values` are all scores of its array at that step."""
    if job.stop_rule is None or job.stopped_early is not None or len(values) < LEAST:
        return job, None
    if job.stop_rule["mode"] == "min":
        ahead = sum(value < score.value for value in values)
    else:
        ahead = sum(value > score.value for value in values)
    if ahead < ceil(len(values) / 2):
        return job, None
    metric = str(job.stop_rule["metric"])
    message = (
        f"at step {score.step} its best {metric} is {score.value:g}, and {ahead} of the {len(values)} jobs of its"
        " array that came there have a better one"
    )
    event = NewEvent(at=now, kind="job.stopped_early", message=message, attempt=job.attempt)
    return replace(job, stopped_early=message), event

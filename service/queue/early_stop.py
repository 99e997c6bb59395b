"""Which jobs of an array are stopped early, because others do better at the same step (pure).

`halving` compares jobs at steps that double: asynchronous successive halving (Li et al., MLSys 2020).  A job goes on
while its best value so far is among the better half of those that have come to that step.

The other policies are those of Azure ML.  They count the steps at which a job reports the metric, and compare it with
the jobs of its array that have come to the same number:
https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#early-termination
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from statistics import median
from typing import Any

from service.queue.rows import JobRow, NewEvent

#: Jobs that have come to a step before `halving` stops any there.
LEAST = 4


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a job is compared by: with `halving` its best value at a step, else a value at a number of reports."""

    array_id: str
    step: int
    job_id: str
    value: float


def first_comparison(job: JobRow) -> int | None:
    """The step at which the job is compared first; None: its array stops none, or counts reports."""
    if job.stop_rule is None or _policy(job.stop_rule) != "halving":
        return None
    return int(job.stop_rule["first_step"])


def observe(job: JobRow, step: int, values: Mapping[str, float | None]) -> tuple[JobRow, Score | None]:
    """The job has reported values for a step; its score, when it is compared there.

    With `halving` a job that has not reported the metric by then is compared at its first step with it.  The other
    policies count a step that is done again once.
    """
    rule = job.stop_rule
    if rule is None or job.array_id is None:
        return job, None
    value, array_id = values.get(rule["metric"]), job.array_id
    if _policy(rule) != "halving":
        return _count(job, array_id, step, value)
    at = job.compared_at
    if at is None:
        return job, None
    if value is not None:
        job = replace(job, best_value=_best(rule, job.best_value, value))
    if step < at or job.best_value is None:
        return job, None
    while at * 2 <= step:
        at *= 2
    score = Score(array_id=array_id, step=at, job_id=job.id, value=job.best_value)
    return replace(job, compared_at=2 * at), score


def _count(job: JobRow, array_id: str, step: int, value: float | None) -> tuple[JobRow, Score | None]:
    """One more report of the metric, unless its step was counted before."""
    rule, is_again = job.stop_rule, job.metric_step is not None and step <= job.metric_step
    if rule is None or value is None or not isfinite(value) or is_again:
        return job, None
    count, best = job.metric_reports + 1, _best(rule, job.best_value, value)
    job = replace(
        job, best_value=best, metric_reports=count, metric_sum=job.metric_sum + value, metric_step=step
    )
    if count < rule["delay"] or count % rule["every"]:
        return job, None
    compared = {"bandit": best, "median": job.metric_sum / count, "truncation": value}[_policy(rule)]
    return job, Score(array_id=array_id, step=count, job_id=job.id, value=compared)


def stopped(job: JobRow, score: Score, values: Sequence[float], now: float) -> tuple[JobRow, NewEvent | None]:
    """The job as it goes on, or with why it is stopped; `values` are all scores of its array at that step."""
    if job.stop_rule is None or job.stopped_early is not None:
        return job, None
    why = _POLICIES[_policy(job.stop_rule)]
    if (text := why(job.stop_rule, job, score, values)) is None:
        return job, None
    event = NewEvent(at=now, kind="job.stopped_early", message=text, attempt=job.attempt)
    return replace(job, stopped_early=text), event


def _halving(rule: Mapping[str, Any], job: JobRow, score: Score, values: Sequence[float]) -> str | None:  # noqa: ARG001
    ahead = sum(_is_worse(rule, score.value, value) for value in values)
    if len(values) < LEAST or ahead < ceil(len(values) / 2):
        return None
    return (
        f"at step {score.step} its best {rule['metric']} is {score.value:g}, and {ahead} of the {len(values)} jobs of"
        " its array that came there have a better one"
    )


def _bandit(rule: Mapping[str, Any], job: JobRow, score: Score, values: Sequence[float]) -> str | None:  # noqa: ARG001
    is_min = rule["mode"] == "min"
    best = min(values) if is_min else max(values)
    if rule["slack_factor"] is not None:
        share = 1.0 + float(rule["slack_factor"])
        limit = best * share if is_min else best / share
    else:
        amount = float(rule["slack_amount"])
        limit = best + amount if is_min else best - amount
    if score.value == best or not _is_worse(rule, score.value, limit):
        return None
    return (
        f"{_at(score)} its best {rule['metric']} is {score.value:g}, and the best one of its array is {best:g}, of"
        f" which the slack allows {limit:g}"
    )


def _median(rule: Mapping[str, Any], job: JobRow, score: Score, values: Sequence[float]) -> str | None:
    middle = median(values)
    if job.best_value is None or not _is_worse(rule, job.best_value, middle):
        return None
    return (
        f"{_at(score)} its best {rule['metric']} is {job.best_value:g}, and {middle:g} is the median of the means of"
        f" the {len(values)} jobs of its array that came there"
    )


def _truncation(rule: Mapping[str, Any], job: JobRow, score: Score, values: Sequence[float]) -> str | None:  # noqa: ARG001
    # Those that are as bad count with it, so that no more end than are asked for.
    last = sum(not _is_worse(rule, score.value, value) for value in values)
    if last > len(values) * int(rule["percent"]) // 100:
        return None
    return (
        f"{_at(score)} its {rule['metric']} of {score.value:g} is among the worst {rule['percent']} percent of the"
        f" {len(values)} jobs of its array that came there"
    )


_POLICIES = {"halving": _halving, "bandit": _bandit, "median": _median, "truncation": _truncation}


def _policy(rule: Mapping[str, Any]) -> str:
    # Rules that were stored before there were several have none.
    return str(rule.get("policy", "halving"))


def _best(rule: Mapping[str, Any], before: float | None, value: float) -> float:
    if before is None:
        return value
    return min(before, value) if rule["mode"] == "min" else max(before, value)


def _is_worse(rule: Mapping[str, Any], value: float, other: float) -> bool:
    return value > other if rule["mode"] == "min" else value < other


def _at(score: Score) -> str:
    return f"at its report {score.step} of the metric"

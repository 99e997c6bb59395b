"""What a job's owner allows it to cost and until when it is wanted, by its specification as accepted (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.queue.rows import AttemptRow, JobRow


def budget_of(spec: Mapping[str, Any]) -> float | None:
    """USD that the job may spend; None sets no limit."""
    return _number(spec, "budget")


def deadline_of(spec: Mapping[str, Any]) -> float | None:
    """When the job is wanted, in seconds since 1970; None: whenever."""
    return _number(spec, "deadline")


def repeats_s(spec: Mapping[str, Any]) -> float:
    """Seconds between two checkpoints that the job is asked for; 0 where the job does not fix them.

    What has not been saved yet is counted besides, so that it is right also where checkpoints cost more than thought.
    """
    policy = spec.get("checkpoint")
    interval = policy.get("interval") if isinstance(policy, Mapping) else None
    return float(interval) if isinstance(interval, int | float) else 0.0


def _number(spec: Mapping[str, Any], name: str) -> float | None:
    limits = spec.get("limits")
    value = limits.get(name) if isinstance(limits, Mapping) else None
    return None if value is None else float(value)


def work_left_s(job: JobRow, attempt: AttemptRow | None, now: float) -> float | None:
    """Seconds that the job still trains if it goes on as it did; None while that cannot be known."""
    if job.total_steps is None or not job.step:
        return None
    running_s = 0.0 if attempt is None or attempt.started_at is None else max(0.0, now - attempt.started_at)
    trained_s = job.trained_s + running_s
    return max(0, job.total_steps - job.step) * trained_s / job.step

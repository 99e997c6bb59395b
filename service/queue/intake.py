"""Whether a job may enter the queue, and if not, which number it would exceed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why a job may not enter."""

    #: Stable word for programs.
    code: str
    message: str
    hint: str


def check(active_jobs: int, max_active_jobs: int) -> Refusal | None:
    """None when one more job may wait or run beside `active_jobs` others."""
    if active_jobs < max_active_jobs:
        return None
    return Refusal(
        code="too_many_jobs",
        message=f"{active_jobs} jobs wait or run and the limit is {max_active_jobs}",
        hint="wait until jobs end or cancel some; the operator sets REMORA_MAX_ACTIVE_JOBS",
    )

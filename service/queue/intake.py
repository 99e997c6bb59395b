"""Whether jobs may enter the queue, and if not, which number they would exceed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class JobLimits:
    """How many jobs may wait or run."""

    #: Of all projects together, the operator's setting.
    jobs: int
    #: Of one project, where its policy says so.
    of_projects: Mapping[str, int] = field(default_factory=dict)


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


def check_project(project: str, active_jobs: int, most: int) -> Refusal | None:
    """None when one more job of the project may wait or run beside `active_jobs` others of it."""
    if active_jobs < most:
        return None
    return Refusal(
        code="too_many_jobs_of_project",
        message=f"{active_jobs} jobs of the project {project} wait or run and its limit is {most}",
        hint="wait until jobs of the project end or cancel some; the policies have the limit",
    )

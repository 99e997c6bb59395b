"""Whether something may be added to what the service keeps, and if not, which limit it would exceed (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cluster.policies.policies import Policies
from remora.spec.quantities import format_size


@dataclass(frozen=True)
class JobLimits:
    """How many jobs may wait or run, and what may be kept of their projects."""

    #: Of all projects together, the operator's setting.
    jobs: int
    #: With the limits of each project.
    policies: Policies = field(default_factory=Policies)


@dataclass(frozen=True)
class Refusal:
    """Why something may not be added."""

    #: Stable word for programs.
    code: str
    message: str
    hint: str


class LimitReached(Exception):
    """A limit would be exceeded, so nothing was added."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Kept(StrEnum):
    """What is counted of each project and each principal; the words are keys of the policies."""

    BUNDLE_BYTES = "bundle_bytes"
    OUTPUT_BYTES = "output_bytes"
    LOG_LINES = "log_lines"
    SECRETS = "secrets"
    SCHEDULES = "schedules"
    TOKENS = "tokens"
    ALERTS = "alerts"


#: What people call it, the stable word of a refusal, and how to use less.
_WORDS = {
    Kept.BUNDLE_BYTES: (
        "of code bundles",
        "too_many_bundle_bytes",
        "leave files out by .remoraignore; a bundle that no job needs is deleted some days after its last use",
    ),
    Kept.OUTPUT_BYTES: ("of outputs", "too_many_output_bytes", "delete jobs whose outputs are not needed"),
    Kept.LOG_LINES: ("log lines", "too_many_log_lines", "print less, or delete jobs"),
    Kept.SECRETS: ("secrets", "too_many_secrets", "delete some: remora secrets delete"),
    Kept.SCHEDULES: ("schedules", "too_many_schedules", "delete some: remora schedules delete"),
    Kept.TOKENS: ("tokens", "too_many_tokens", "revoke some: remora tokens revoke"),
    Kept.ALERTS: ("alerts", "too_many_alerts", "delete some: remora alerts delete"),
}


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


def check_kept(whose: str, kind: Kept, kept: int, more: int, most: int) -> Refusal | None:
    """None when `more` may be kept beside what is `kept` already of this project or principal."""
    if kept + more <= most:
        return None
    what, code, hint = _WORDS[kind]
    message = f"{whose} has {amount_of(kind, kept)} {what}"
    if kind in (Kept.BUNDLE_BYTES, Kept.OUTPUT_BYTES) and more:
        message += f", {amount_of(kind, more)} more are asked for,"
    return Refusal(
        code=code,
        message=f"{message} and its limit is {amount_of(kind, most)}",
        hint=f"{hint}; {kind} in the policies is the limit",
    )


def amount_of(kind: Kept, amount: int) -> str:
    """An amount for people: bytes with their unit."""
    is_bytes = kind in (Kept.BUNDLE_BYTES, Kept.OUTPUT_BYTES)
    return f"{format_size(amount)} ({amount} bytes)" if is_bytes else str(amount)


def output_bytes_left(most: int, kept: int, own: int) -> int:
    """Bytes that the outputs of a job may have, which has `own` of what is `kept` of its project."""
    return max(0, most - (kept - own))


#: The newest lines of a job that the limit of its project leaves it: what it printed last says why it failed.
LINES_LEFT = 1000


def lines_over(stored: int, new: int, kept: int, most: int | None) -> int:
    """How many of a job's oldest lines go, of those `stored` and then of the `new` ones.

    `kept` is what its project has with the new ones.
    """
    if most is None or kept <= most:
        return 0
    return max(0, min(kept - most, stored + new - LINES_LEFT))

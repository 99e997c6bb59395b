"""A project's quotas: GPUs at a time, and USD of a day and of a month (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cluster.policies.policies import Policies, ProjectPolicy
from cluster.scheduling.money import end_of, ends_of
from cluster.scheduling.view import Spending
from cluster.scheduling.words import count


def gpus_of(worker: Mapping[str, float], workers: int) -> float:
    """GPUs of this many workers."""
    return workers * worker.get("GPU", 0.0)


def counted_workers(held: int, least: int, most: int) -> int:
    """Workers that a running job counts with: those that it has, at least its smallest group.

    While it has none yet, or lost all of them, it counts with all that it may use: it is about to take them.
    """
    return max(held, least) if held else most


def allowed_workers(
    project: str,
    policy: ProjectPolicy | None,
    *,
    worker: Mapping[str, float],
    workers: int,
    gpus_held: float,
) -> tuple[int, str]:
    """How many of these workers a project that holds `gpus_held` GPUs may have beside them, and why not all."""
    per_worker = gpus_of(worker, 1)
    if policy is None or policy.gpus is None or per_worker <= 0:
        return workers, ""
    allowed = max(0, math.floor((policy.gpus - gpus_held) / per_worker + 1e-9))
    return min(workers, allowed), f"project {project!r} may use {count(policy.gpus, 'GPU')} at a time"


def why_no_money(project: str, policy: ProjectPolicy | None, spent: Spending, now: float) -> str | None:
    """Why nothing more is bought for a project at this time, and until when; or None."""
    if policy is None:
        return None
    for period, used, limit in (
        ("day", spent.today, policy.usd_per_day),
        ("month", spent.this_month, policy.usd_per_month),
    ):
        if limit is not None and used >= limit:
            ends = ends_of(period, end_of(period, now), "its limit")
            return f"project {project!r} has spent {used:.2f} of {limit:.2f} USD of the {period}, {ends}"
    return None


def never_allowed(
    project: str, policy: ProjectPolicy | None, worker: Mapping[str, float], workers: int
) -> str | None:
    """Why a project may never have this many of these workers at a time, or None."""
    gpus = gpus_of(worker, workers)
    if policy is None or policy.gpus is None or gpus <= policy.gpus + 1e-9:
        return None
    return (
        f"its smallest worker group needs {count(math.ceil(gpus), 'GPU')}, "
        f"and project {project!r} may use {policy.gpus} at a time"
    )


def has_quotas(policies: Policies) -> bool:
    """A policy limits what some project uses."""
    return counts_money(policies) or any(one.gpus is not None for one in policies.projects.values())


def counts_money(policies: Policies) -> bool:
    """A policy limits what some project spends."""
    projects = policies.projects.values()
    return any(limit is not None for one in projects for limit in (one.usd_per_day, one.usd_per_month))

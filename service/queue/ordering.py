"""Whose turn it is: higher priority first, then who came first."""

from __future__ import annotations

from collections.abc import Iterable

from service.queue.rows import JobRow


def turn_key(job: JobRow) -> tuple[int, float, str]:
    """Sort key: the smallest one is next."""
    return (-job.priority, job.created_at, job.id)


def in_order(jobs: Iterable[JobRow], now: float) -> list[JobRow]:
    """The jobs that may start now, next one first; those that back off until later are left out."""
    return sorted((job for job in jobs if job.not_before <= now), key=turn_key)

"""Whose turn it is: higher priority first, then jobs whose deadline is near, then who came first."""

from __future__ import annotations

from collections.abc import Container, Iterable

from service.queue.rows import JobRow

#: A turn: the smallest one is next.
Turn = tuple[int, bool, float, str]


def turn_key(job: JobRow, *, is_urgent: bool = False) -> Turn:
    """Sort key: the smallest one is next."""
    return (-job.priority, not is_urgent, job.created_at, job.id)


def in_order(jobs: Iterable[JobRow], now: float, urgent: Container[str] = ()) -> list[JobRow]:
    """The jobs that may start now, next one first; those that back off until later are left out.

    `urgent` are those whose deadline is near, by id (`service.queue.hurry`).
    """
    ready = (job for job in jobs if job.not_before <= now)
    return sorted(ready, key=lambda job: turn_key(job, is_urgent=job.id in urgent))

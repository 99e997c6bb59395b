"""The order of the queue: higher priority first, then jobs whose deadline is near, then the oldest."""

from __future__ import annotations

from collections.abc import Container, Iterable

from service.queue.rows import JobRow

#: Sort key of the queue: the job with the smallest key is next.
QueueKey = tuple[int, bool, float, str]
#: The message of a job while others are ahead of it; `placed` adds how many when it is read.
WAITS_FOR_TURN = "waits for its turn"
#: How the message of the next job begins while there are not enough nodes for it.
WAITS_FOR_NODES = "waits for nodes:"


def placed(message: str | None, ahead: int | None, *, in_project: bool) -> str | None:
    """The message of a job with its place in the queue, by the jobs that are ahead of it; None: that is not known."""
    if message != WAITS_FOR_TURN or not ahead:
        return message
    jobs = "1 job" if ahead == 1 else f"{ahead} jobs"
    of_project = " of its project" if in_project else ""
    return f"{message}: {jobs}{of_project} {'is' if ahead == 1 else 'are'} ahead of it"


def queue_key(job: JobRow, *, is_urgent: bool = False) -> QueueKey:
    """Sort key: the smallest one is next."""
    return (-job.priority, not is_urgent, job.created_at, job.id)


def in_order(jobs: Iterable[JobRow], now: float, urgent: Container[str] = ()) -> list[JobRow]:
    """The jobs that may start now, next one first; those that back off until later are left out.

    `urgent` are those whose deadline is near, by id (`service.queue.urgency`).
    """
    ready = (job for job in jobs if job.not_before <= now)
    return sorted(ready, key=lambda job: queue_key(job, is_urgent=job.id in urgent))

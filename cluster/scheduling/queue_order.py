"""The order of the queue: higher priority first, then jobs whose deadline is near, then the oldest (pure)."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol, TypeVar

#: Waiting jobs that are decided about at a time; those behind them go on waiting in the queue.
WINDOW = 200
#: The same of each project, where projects have shares or quotas.
WINDOW_OF_EACH = 50
#: How many times as many a plan of purchases is shown, one after the other, as long as all that are shown have nodes.
WIDTHS = (1, 7, 50)
#: Sort key of the queue: the job with the smallest key is next.
QueueKey = tuple[int, bool, float, str]
#: The message of a job while others are ahead of it; `placed` adds how many when it is read.
WAITS_IN_QUEUE = "waits in the queue"
#: How the message of the next job begins while there are not enough nodes for it.
WAITS_FOR_NODES = "waits for nodes:"


class Queued(Protocol):
    """What the order of a job depends on: its row has that, and its demand."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def priority(self) -> int:
        """The highest comes first."""
        ...

    @property
    def created_at(self) -> float:
        """When it was submitted."""
        ...


JobT = TypeVar("JobT", bound=Queued)


def placed(message: str | None, ahead: int | None, *, in_project: bool) -> str | None:
    """The message of a job with its place in the queue, by the jobs that are ahead of it; None: that is not known."""
    if message != WAITS_IN_QUEUE or not ahead:
        return message
    jobs = "1 job" if ahead == 1 else f"{ahead} jobs"
    of_project = " of its project" if in_project else ""
    return f"{message}: {jobs}{of_project} {'is' if ahead == 1 else 'are'} ahead of it"


def queue_key(job: Queued, *, is_urgent: bool = False) -> QueueKey:
    """Sort key: the smallest one is next."""
    return (-job.priority, not is_urgent, job.created_at, job.id)


def in_order(jobs: Iterable[JobT], urgent: Container[str] = ()) -> list[JobT]:
    """The jobs, next one first; `urgent` are those whose deadline is near, by id (`slack.urgent_among`)."""
    return sorted(jobs, key=lambda job: queue_key(job, is_urgent=job.id in urgent))

"""Jobs of one array: how many of them may be in the queue or run, and which ones follow (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ArrayRow:
    """Many jobs that one specification describes."""

    id: str
    name: str
    project: str
    created_at: float
    #: The JobSpec as accepted, with its array.
    spec: dict[str, Any]
    #: Jobs that it was made of.
    size: int
    most_at_once: int | None = None
    #: Id of the principal that submitted it.
    submitted_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class ArrayQueue:
    """An array some of whose jobs have ended or were paused."""

    array_id: str
    most_at_once: int | None
    #: Its jobs that wait or run, without those that are held back.
    active: int
    #: Ids of jobs that are held back, in their order.
    held: Sequence[str]


def released(queues: Sequence[ArrayQueue]) -> list[str]:
    """Ids of the jobs that are held back no longer."""
    found: list[str] = []
    for queue in queues:
        free = len(queue.held) if queue.most_at_once is None else max(0, queue.most_at_once - queue.active)
        found += queue.held[:free]
    return found


def waits_for_array(array_id: str, most_at_once: int) -> str:
    """For people: why a job of an array is held back."""
    return f"waits for other jobs of its array {array_id}, of which {most_at_once} may run at once"


def counted(states: Mapping[str, int], size: int) -> dict[str, int]:
    """Jobs by state, with those that were deleted."""
    found = dict(states)
    if (gone := size - sum(states.values())) > 0:
        found["deleted"] = gone
    return found

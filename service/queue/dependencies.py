"""Which other jobs a job waits for, and what their ends mean for it (pure).

A job names only jobs that exist already when it is submitted, so that no two jobs ever wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from remora.states import JobState
from service.queue.rows import JobRow


class Wanted(StrEnum):
    """How the other job has to end."""

    SUCCESS = "success"
    FAILURE = "failure"
    ANY = "any"


#: Which states are the wanted end; any other end can not become it any more.
_ENDS: Mapping[Wanted, frozenset[JobState]] = {
    Wanted.SUCCESS: frozenset({JobState.SUCCEEDED}),
    Wanted.FAILURE: frozenset({JobState.FAILED}),
    Wanted.ANY: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
}
#: Jobs that a message names.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """One job waits for the end of another one."""

    job_id: str
    other_id: str
    other_name: str
    wanted: Wanted
    #: How the other one ended; None: it has not ended.
    ended_as: JobState | None = None

    @property
    def is_met(self) -> bool:
        """The other job has ended as wanted."""
        return self.ended_as in _ENDS[self.wanted]

    @property
    def is_impossible(self) -> bool:
        """The other job has ended otherwise."""
        return self.ended_as is not None and not self.is_met

    @property
    def in_words(self) -> str:
        """`the success of prepare (job_...)`, for people."""
        end = "end" if self.wanted is Wanted.ANY else self.wanted.value
        return f"the {end} of {self.other_name} ({self.other_id})"


def dependencies_of(job: JobRow, others: Mapping[str, JobRow]) -> list[Dependency]:
    """What the job's specification asks for; `others` are the jobs that it names, by id."""
    return [
        Dependency(
            job_id=job.id,
            other_id=one["job"],
            other_name=others[one["job"]].name,
            wanted=Wanted(one["when"]),
            ended_as=others[one["job"]].state if others[one["job"]].state.is_terminal else None,
        )
        for one in job.spec.get("after", ())
    ]


def waits_for(dependencies: Sequence[Dependency]) -> str | None:
    """For people: what a job waits for; None: for no other job any more."""
    waiting = [one.in_words for one in dependencies if not one.is_met]
    if not waiting:
        return None
    more = f", and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    return f"waits for {', '.join(waiting[:_NAMED])}{more}"


def why_impossible(dependencies: Iterable[Dependency]) -> str | None:
    """For people: why a job can never start; None: it still may."""
    for one in dependencies:
        if one.is_impossible and one.ended_as is not None:
            return f"it was to start after {one.in_words}, which ended as {one.ended_as.value}"
    return None

"""Profiles that owners ask for of a rank of a running job (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from remora.states import JobState
from service.queue.lifecycle import Decision
from service.queue.owners_changes import ChangeRefused, check_not_ended
from service.queue.rows import JobRow, NewEvent
from trainers.profiles import MOST_STEPS, PROFILE_S

#: Traces of one job: each may have tens of MiB.
MOST_PROFILES = 20
#: Requests of one job, with those that had no trace.
MOST_REQUESTS = 200
#: Seconds after which a driver that has not said how a profile went will not do so any more.
LOST_S = 2 * PROFILE_S

ProfileState = Literal["requested", "running", "ready", "failed"]


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A profile of one rank; times are seconds since 1970."""

    job_id: str
    #: 1, 2, ... of the job's profiles.
    number: int
    attempt: int
    rank: int
    #: How many steps were asked for.
    steps: int
    requested_at: float
    #: When its driver had taken the request, and when it ended.
    taken_at: float | None = None
    ended_at: float | None = None
    #: Why there is none, in one sentence.
    message: str | None = None
    #: The file in the storage (`trainers.profiles.profile_name`), and what it holds.
    file: str | None = None
    profiled_steps: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def state(self) -> ProfileState:
        """How far it is."""
        if self.ended_at is not None:
            return "failed" if self.file is None else "ready"
        return "requested" if self.taken_at is None else "running"


def request_profile(
    job: JobRow, known: Sequence[ProfileRow], rank: int, steps: int, now: float
) -> tuple[Decision, ProfileRow]:
    """A profile of the next steps of a rank; `known` are those that the job has.  Raises ChangeRefused."""
    check_not_ended(job, "profiled")
    if job.state is not JobState.RUNNING:
        raise ChangeRefused(f"the job has no workers that train now: it is {job.state.value}")
    if not 1 <= steps <= MOST_STEPS:
        raise ChangeRefused(f"{steps} steps cannot be profiled together: ask for 1 to {MOST_STEPS}")
    if not 0 <= rank < job.world_size:
        raise ChangeRefused(f"the job has no rank {rank}: it has {job.world_size} workers now, from rank 0")
    if any(one.ended_at is None for one in known):
        raise ChangeRefused("a profile of the job is under way already: ask again when it has ended")
    if sum(one.file is not None for one in known) >= MOST_PROFILES:
        raise ChangeRefused(f"the job has {MOST_PROFILES} profiles already, as many as it may")
    if len(known) >= MOST_REQUESTS:
        raise ChangeRefused(f"the job was profiled {MOST_REQUESTS} times already, as often as it may")
    number = max((one.number for one in known), default=0) + 1
    row = ProfileRow(
        job_id=job.id, number=number, attempt=job.attempt, rank=rank, steps=steps, requested_at=now
    )
    event = NewEvent(
        at=now,
        kind="job.profile_requested",
        message=f"its owner asked for a profile of {steps} steps of rank {rank}",
        data={"profile": number, "rank": rank, "steps": steps},
    )
    return Decision(job, None, (event,)), row


def ended(row: ProfileRow, is_live: bool, now: float) -> ProfileRow:
    """The profile after a look at it; `is_live`: its attempt has not ended."""
    if row.ended_at is not None or (is_live and now - row.requested_at <= LOST_S):
        return row
    why = (
        f"its driver has not said within {LOST_S:g} s how it went; it may be of an older release"
        if is_live
        else "the attempt ended before the profile was there"
    )
    return replace(row, ended_at=now, message=why)

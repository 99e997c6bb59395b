"""When the job of a schedule is submitted, and what happens to times that were missed or overlap (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cluster.scheduling.formatting import clock
from remora.spec.cron import last_until, next_after

#: Seconds after which a time counts as missed: no controller ran when it came.
MISSED_AFTER_S = 300.0
#: Seconds until the times of a schedule are looked for again that could not be found.
RETRY_S = 3600.0


class Outcome(StrEnum):
    """What became of one time of a schedule."""

    #: Its job, or the jobs of its array, were submitted.
    SUBMITTED = "submitted"
    #: The job of the time before had not ended.
    OVERLAPPED = "overlapped"
    #: No controller ran when it came.
    MISSED = "missed"
    #: Its job could not be submitted; the message says why.
    REFUSED = "refused"
    #: Who submitted the schedule may not submit to its project any more.
    PAUSED = "paused"


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    """A specification that is submitted again and again."""

    id: str
    name: str
    project: str
    created_at: float
    #: The JobSpec as accepted, with its schedule.
    spec: dict[str, Any]
    #: The next time that is not decided about yet.
    next_at: float
    #: Of the request that made it.
    key: str | None = None
    body_digest: str | None = None
    #: Id of the principal that submitted it, and in whose name its jobs are submitted.
    submitted_by: str | None = None
    #: Id of the token by which it was proved who that is; None: by an issuer, or nothing had to be proved.
    credential: str | None = None
    #: Groups of which the submitter was a member; None: not known, as it was stored by a release that did not ask.
    groups: list[str] | None = field(default_factory=list)

    @property
    def cron(self) -> str:
        """Its time of cron."""
        return str(self.spec["schedule"]["cron"])

    @property
    def zone(self) -> str:
        """The time zone in which it is meant."""
        return str(self.spec["schedule"]["zone"])


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One time of a schedule, and what became of it."""

    schedule_id: str
    #: The time itself, seconds since 1970, and when it was decided about.
    at: float
    decided_at: float
    outcome: Outcome
    #: One sentence for people.
    message: str
    #: What was submitted.
    job_id: str | None = None
    array_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleDecision:
    """What follows now that the next time of a schedule has come."""

    #: Times of which nothing is submitted.
    left_out: tuple[RunRow, ...] = ()
    #: The time for which its job is submitted now; None: for none.
    submit_at: float | None = None
    #: The job is to wait for the end of the one before.
    waits: bool = False
    #: The time after all that are decided.
    next_at: float


def decide(schedule: ScheduleRow, now: float, *, is_active: bool) -> ScheduleDecision:
    """Decide about all times that have come; `is_active` says that what was submitted last has not ended."""
    rules, first = schedule.spec["schedule"], schedule.next_at
    newest = max(first, last_until(schedule.cron, schedule.zone, now) or first)
    following = next_after(schedule.cron, schedule.zone, max(now, newest))
    left_out: list[RunRow] = []

    def leave_out(at: float, outcome: Outcome, message: str) -> None:
        row = RunRow(schedule_id=schedule.id, at=at, decided_at=now, outcome=outcome, message=message)
        left_out.append(row)

    if newest > first:
        said = f"no controller ran at this time, nor at others before {clock(newest)}"
        leave_out(first, Outcome.MISSED, said)
    submit_at: float | None = newest
    if now - newest > MISSED_AFTER_S and rules["missed"] == "skip":
        leave_out(newest, Outcome.MISSED, f"no controller ran at this time, but at {clock(now)}")
        submit_at = None
    elif is_active and rules["overlap"] == "skip":
        leave_out(newest, Outcome.OVERLAPPED, "what was submitted before has not ended")
        submit_at = None
    return ScheduleDecision(
        left_out=tuple(left_out),
        submit_at=submit_at,
        waits=submit_at is not None and is_active and rules["overlap"] == "wait",
        next_at=now + RETRY_S if following is None else following,
    )


def refuse(schedule: ScheduleRow, why: str, now: float) -> ScheduleDecision:
    """The times of a schedule cannot be found now; they are looked for again later."""
    row = RunRow(
        schedule_id=schedule.id, at=schedule.next_at, decided_at=now, outcome=Outcome.REFUSED, message=why
    )
    return ScheduleDecision(left_out=(row,), next_at=now + RETRY_S)

"""What Azure's Scheduled Events say, and what each of them means for a node (pure).

A document lists all events of a machine's scope; an event that is done or cancelled is no longer in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

#: Version of the metadata service's interface.
API_VERSION = "2020-07-01"

#: A Preempt gives at most this notice, even if its NotBefore says more: a wrong clock must not make it longer.
PREEMPT_NOTICE_S = 30.0
#: What is counted on when an event has begun, or its time has passed and it has not: observed evictions came within ten
#: seconds, and a drain without any window would save nothing.
LEAST_WINDOW_S = 5.0
#: Longest pause that leaves the work where it is.  Ray's head waits two seconds for each answer, and one between two
#: checks (see `cluster/local/environment.py`): a machine that leaves three unanswered, which takes eight seconds at
#: least, is dead to it and killed when it wakes.  The rest is for pauses that last a little longer than announced.
LONGEST_PAUSE_S = 6.0
#: A longer pause cannot be meant, and counts as one of unknown length.
_LONGEST_S = 86_400.0
#: Texts from elsewhere are cut to this length before they are logged or reported.
_TEXT_LIMIT = 200


class MalformedDocument(ValueError):
    """The metadata service answered something that is no document; the message says what is wrong."""


class EventType(StrEnum):
    """What the cloud may do to a machine; others may come, and are kept as their word."""

    FREEZE = "Freeze"
    REBOOT = "Reboot"
    REDEPLOY = "Redeploy"
    PREEMPT = "Preempt"
    TERMINATE = "Terminate"


#: After these the machine is gone or has lost its processes.
_ENDS = frozenset({EventType.REBOOT, EventType.REDEPLOY, EventType.PREEMPT, EventType.TERMINATE})


@dataclass(frozen=True, kw_only=True)
class ScheduledEvent:
    """One entry of a document."""

    id: str
    #: An `EventType`, or a word that is not known yet.
    type: str
    #: Names of the machines that it concerns.
    resources: tuple[str, ...] = ()
    #: Earliest begin by the platform's clock, seconds since 1970; None once it has begun, or when it cannot be read.
    not_before: float | None = None
    #: It has begun.
    is_started: bool = False
    #: Expected seconds of interruption; None: unknown.
    duration_s: float | None = None
    description: str = ""
    #: `Platform`, or `User` when a user requested it.
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """All current events."""

    #: Changes whenever the events do.
    incarnation: int
    events: tuple[ScheduledEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DrainNotice:
    """The machine will be gone, lose its processes or stand still: its work has to leave before `deadline_at`."""

    #: Seconds since 1970 by this machine's clock.
    deadline_at: float
    reason: str
    #: Its processes end then, as they do not where it merely stands still.
    ends_processes: bool = True


@dataclass(frozen=True, kw_only=True)
class Pause:
    """The machine will stand still for a moment and go on; nothing has to leave it."""

    reason: str
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Worth reporting, nothing has to be done: a rebalance recommendation, or an unknown event type."""

    reason: str


Meaning = DrainNotice | Pause | Advice


def parse(body: object) -> Document:
    """A document from the answer's JSON.  Entries that cannot be understood are left out.

    Raises MalformedDocument when the answer as a whole is none.
    """
    if not isinstance(body, Mapping):
        raise MalformedDocument("the answer is no JSON object")
    events, incarnation = body.get("Events"), body.get("DocumentIncarnation")
    if not isinstance(events, list):
        raise MalformedDocument("the answer has no list of Events")
    if not isinstance(incarnation, int) or isinstance(incarnation, bool):
        raise MalformedDocument("the answer has no DocumentIncarnation")
    read = (_event(entry) for entry in events)
    return Document(incarnation=incarnation, events=tuple(event for event in read if event is not None))


def _event(entry: object) -> ScheduledEvent | None:
    if not isinstance(entry, Mapping):
        return None
    event_id, kind = entry.get("EventId"), entry.get("EventType")
    if not isinstance(event_id, str) or not event_id or not isinstance(kind, str) or not kind:
        return None
    resources = entry.get("Resources")
    known = {word.value.casefold(): word.value for word in EventType}
    return ScheduledEvent(
        id=event_id[:_TEXT_LIMIT],
        type=known.get(kind.casefold(), kind[:_TEXT_LIMIT]),
        resources=tuple(str(name) for name in resources) if isinstance(resources, list) else (),
        not_before=_time(entry.get("NotBefore")),
        is_started=str(entry.get("EventStatus", "")).casefold() == "started",
        duration_s=_duration(entry.get("DurationInSeconds")),
        description=str(entry.get("Description") or "")[:_TEXT_LIMIT],
        source=str(entry.get("EventSource") or "")[:_TEXT_LIMIT],
    )


def _time(text: object) -> float | None:
    """Seconds since 1970 of `Tue, 09 Aug 2022 17:07:32 GMT`; a time without a zone is UTC."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, IndexError, TypeError, OverflowError):
        return None


def _duration(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # Compared before it is converted: JSON has integers that no float holds.
    return float(value) if 0 <= value <= _LONGEST_S else None


def concerns(event: ScheduledEvent, machine: str) -> bool:
    """True when the event names the machine; Azure's names do not care about case."""
    return machine.casefold() in {name.casefold() for name in event.resources}


def meaning(event: ScheduledEvent, now: float, skew_s: float = 0.0) -> Meaning | None:
    """What an event means that is seen for the first time `now`, by this machine's clock; None: nothing.

    `skew_s` is how much the platform's clock is ahead of this machine's.
    """
    who = " of its owner's" if event.source.casefold() == "user" else ""
    said = f": {event.description}" if event.description else ""
    if event.type in _ENDS:
        return DrainNotice(
            deadline_at=_deadline(event, now, skew_s), reason=f"{event.type}{who} by the cloud{said}"
        )
    if event.type == EventType.FREEZE:
        # 0 means that it interrupts nothing.
        if event.duration_s == 0:
            return None
        if event.duration_s is not None and event.duration_s <= LONGEST_PAUSE_S:
            return Pause(reason=f"{event.type}{who} by the cloud{said}", duration_s=event.duration_s)
        # Ray gives up a machine that is silent for longer: for its work it is as good as gone.
        how_long = "an unknown time" if event.duration_s is None else f"{event.duration_s:.0f} s"
        return DrainNotice(
            deadline_at=_deadline(event, now, skew_s),
            reason=f"{event.type} for {how_long}{who} by the cloud{said}",
            ends_processes=False,
        )
    if "rebalance" in event.type.casefold():
        return Advice(reason=f"the cloud recommends to leave this machine ({event.type}){said}")
    return Advice(reason=f"the cloud announces {event.type!r}, which is not known here{said}")


def _deadline(event: ScheduledEvent, now: float, skew_s: float) -> float:
    soonest = now + LEAST_WINDOW_S
    if event.is_started:
        return soonest
    longest = now + PREEMPT_NOTICE_S if event.type == EventType.PREEMPT else math.inf
    if event.not_before is None:
        return min(longest, soonest)
    return max(soonest, min(event.not_before - skew_s, longest))

"""Which notifications a fact causes (pure).

A fact is written in the transaction of what it reports, and forgotten in the transaction that stores what follows from
it.  Each notification has a key, of which an alert has one at most: what was reported is not reported again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from remora.alert_kinds import AlertKind, Channel, DeliveryState
from remora.roles import EVERYWHERE
from service.queue.rows import JobRow, NewEvent, NodeRow

#: Characters of a notification's sentence, and of its fields as JSON.
LONGEST_MESSAGE, LONGEST_DATA = 2000, 4000
#: What a job's event reports, by its kind; `job.budget` only with some of its data.
_OF_EVENTS: Mapping[str, AlertKind] = {
    "job.succeeded": AlertKind.JOB_ENDED,
    "job.failed": AlertKind.JOB_ENDED,
    "job.cancelled": AlertKind.JOB_ENDED,
    "worker.straggles": AlertKind.STRAGGLER,
    "worker_group.hung": AlertKind.HANG,
    "job.budget": AlertKind.BUDGET,
    "worker.miscomputed": AlertKind.NODE_SICK,
    "worker.gpu_failed": AlertKind.NODE_SICK,
    "worker.misread": AlertKind.NODE_SICK,
    "checkpoint.refused": AlertKind.CHECKPOINT_MISSED,
    "checkpoint.abandoned": AlertKind.CHECKPOINT_MISSED,
    "checkpoint.incomplete": AlertKind.CHECKPOINT_MISSED,
    "checkpoint.ignored": AlertKind.CHECKPOINT_MISSED,
    # From these on a job is watched: `service.queue.alert_watches`.
    "job.queued": AlertKind.JOB_WAITS,
    "attempt.started": AlertKind.JOB_SLOW,
}
#: Kinds of which a fact alone is nothing to report.
WATCHED = frozenset({AlertKind.JOB_WAITS, AlertKind.JOB_SLOW})


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something that alerts may report."""

    #: Grows with every fact; 0: it was not stored yet.
    seq: int = 0
    kind: AlertKind
    #: Seconds since 1970.
    at: float
    #: Empty: a node's, which belongs to no project.
    project: str
    #: Id of the principal that submitted the job.
    submitted_by: str | None = None
    #: Id of the job or the node, and the job's name.
    about: str
    name: str = ""
    #: Kind and number of the event, and its sentence.
    event: str
    event_seq: int
    attempt: int | None = None
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AlertRow:
    """Whom to notify of what: of the jobs of a project, of one's own there, or of the whole cluster (`*`)."""

    id: str
    project: str
    #: Id of the principal that created it, and by what that had its roles, as in `service.queue.schedules`.
    owner: str
    credential: str | None = None
    groups: list[str] | None = None
    #: Only of jobs that its owner submitted.
    is_own_only: bool
    kinds: list[str]
    channel: Channel
    #: What is shown of where to: the host of a URL, or the e-mail address.
    address: str
    #: The URL with its secret, or the address, encrypted.
    key_id: str
    ciphertext: bytes = field(repr=False)
    #: Seconds after which a waiting job is reported.
    wait_s: float
    #: Parts of a budget in percent, ascending.
    budget_percents: list[int]
    #: Times as long as usual that a step takes when a job is slow.
    slow_factor: float
    created_at: float
    #: When the next notification may be sent; None: there is none.
    due_at: float | None = None
    #: Deliveries that failed in a row, and why the last one did.
    failures: int = 0
    error: str | None = None
    #: When its receiver said that it is gone for ever.
    ended_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class NotificationRow:
    """One message of an alert."""

    #: Sent with every try, so that receivers can drop doubles.
    id: str
    alert_id: str
    #: What it reports; an alert reports it once.
    key: str
    #: When it happened, and when this was stored.
    at: float
    created_at: float
    kind: str
    message: str
    data: dict[str, Any]
    state: DeliveryState = DeliveryState.PENDING
    tries: int = 0
    error: str | None = None
    settled_at: float | None = None
    #: Grows with every notification; 0: it was not stored yet.
    seq: int = 0


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a notification says, before it has an id."""

    key: str
    at: float
    kind: AlertKind
    message: str
    data: Mapping[str, Any]


def facts_of(job: JobRow, first_seq: int, events: Iterable[NewEvent]) -> list[Fact]:
    """What alerts may report among new events of a job, the first of which has the number `first_seq`."""
    return [
        Fact(
            kind=kind,
            at=event.at,
            project=job.project,
            submitted_by=job.submitted_by,
            about=job.id,
            name=job.name,
            event=event.kind,
            event_seq=seq,
            attempt=event.attempt,
            message=_short(event.message),
            data=_small(event.data),
        )
        for seq, event in enumerate(events, start=first_seq)
        if (kind := _kind_of(event)) is not None
    ]


def _kind_of(event: NewEvent) -> AlertKind | None:
    kind = _OF_EVENTS.get(event.kind)
    if kind is AlertKind.BUDGET and event.data.get("step") is None:
        # It allows the job again.
        return None
    return kind


def fact_of_node(before: NodeRow, after: NodeRow, events: Iterable[NewEvent]) -> Fact | None:
    """A node is found to be sick: once for each node."""
    if before.sick_since is not None or after.sick_since is None:
        return None
    newest = max(events, key=lambda event: event.at, default=None)
    return Fact(
        kind=AlertKind.NODE_SICK,
        at=after.sick_since,
        project="",
        about=after.id,
        event="node.sick" if newest is None else newest.kind,
        event_seq=after.event_seq,
        message=_short((after.message if newest is None else newest.message) or "it is sick"),
        data={"pool": after.pool, "cluster": after.cluster},
    )


def concerns(alert: AlertRow, fact: Fact) -> bool:
    """Whether an alert is about the job or node of a fact, whatever it reports."""
    if alert.ended_at is not None:
        return False
    if alert.project != EVERYWHERE and alert.project != fact.project:
        return False
    return not alert.is_own_only or (fact.submitted_by is not None and fact.submitted_by == alert.owner)


def wants(alert: AlertRow, fact: Fact) -> bool:
    """Whether an alert reports a fact, or begins to watch by it."""
    if not concerns(alert, fact):
        return False
    failed_only = AlertKind.JOB_ENDED.value not in alert.kinds and AlertKind.JOB_FAILED.value in alert.kinds
    if fact.kind is AlertKind.JOB_ENDED and failed_only:
        return fact.event == "job.failed"
    return fact.kind.value in alert.kinds


def message_of(alert: AlertRow, fact: Fact) -> Message | None:
    """What the alert says because of the fact; None: nothing, or nothing yet."""
    if not wants(alert, fact) or fact.kind in WATCHED:
        return None
    subject = f"job {fact.name} ({fact.about})" if fact.project else f"node {fact.about}"
    return Message(
        key=key_of(fact),
        at=fact.at,
        kind=fact.kind,
        message=_short(f"{subject}: {fact.message}"),
        data=data_of(fact),
    )


def key_of(fact: Fact) -> str:
    """What a notification of the fact reports: equal for facts of which one is enough."""
    match fact.kind:
        case AlertKind.STRAGGLER:
            return f"straggler:{fact.about}:{fact.attempt}:{str(fact.data.get('rank'))[:20]}"
        case AlertKind.BUDGET:
            day = datetime.fromtimestamp(fact.at, UTC).date().isoformat()
            return f"budget-step:{str(fact.data.get('step'))[:20]}:{day}"
        case AlertKind.CHECKPOINT_MISSED:
            step = fact.data.get("step")
            which = f"event {fact.event_seq}" if step is None else f"step {str(step)[:20]}"
            return f"checkpoint:{fact.about}:{fact.attempt}:{which}"
    return f"{fact.kind.value}:{fact.about}:{fact.event_seq}"


def data_of(fact: Fact) -> dict[str, Any]:
    """The fields of a notification about a job or a node."""
    what: dict[str, Any] = {"event": fact.event, "event_seq": fact.event_seq, "details": dict(fact.data)}
    if not fact.project:
        return {**what, "node_id": fact.about}
    return {
        **what,
        "project": fact.project,
        "job_id": fact.about,
        "job_name": fact.name,
        "attempt": fact.attempt,
    }


def _short(text: str) -> str:
    """One line, of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."


def _small(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event, which a driver may have sent, or none of them where they are many."""
    found = {name: value for name, value in data.items() if isinstance(value, str | int | float | bool)}
    return found if sum(len(name) + len(str(value)) for name, value in found.items()) <= LONGEST_DATA else {}

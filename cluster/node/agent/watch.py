"""The agent's decisions from scheduled events and health: a pure state transition from one look to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.node.agent.scheduled_events import (
    Advice,
    Document,
    DrainNotice,
    Meaning,
    Pause,
    ScheduledEvent,
    concerns,
    meaning,
)
from cluster.scheduling.formatting import clock

#: Seconds before a deadline at which workers are ended softly when the head has not accepted the drain: a SIGTERM lets
#: a script write what it has, and its processes take that long to end.
SOFT_END_S = 5.0
#: Seconds that a head which was asked for a drain has to answer, however near the deadline is: one that is well does so
#: within a second.
ANSWER_S = 2.0
#: Seconds that the work of a sick machine has to leave it: nothing takes the machine, a checkpoint may take its time.
SICK_DRAIN_S = 600.0
#: A later notice moves a drain only when its deadline is sooner by at least this many seconds.
_SOONER_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DrainNode:
    """Request a drain of this node from the head; repeated until the head accepts it."""

    deadline_at: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Acknowledge:
    """Approve an event, so that the cloud need not wait any longer."""

    event_id: str


@dataclass(frozen=True, kw_only=True)
class EndSoftly:
    """End this machine's workers with SIGTERM: their deadline is near and the head has not accepted the drain."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Something to log and to show to operators."""

    message: str


Action = DrainNode | Acknowledge | EndSoftly | Report


@dataclass(frozen=True, kw_only=True)
class KnownEvent:
    """An event that concerns this machine."""

    event: ScheduledEvent
    means: Meaning | None
    is_acknowledged: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """What the agent remembers from look to look."""

    known: Mapping[str, KnownEvent] = field(default_factory=dict)
    #: The deadline that the head has accepted; None: none.
    drained_until: float | None = None
    #: When the head was first asked for a drain that is still wanted; None: it was not.
    asked_at: float | None = None
    ended_softly: bool = False
    #: Since the machine is sick: when its work shall have left.
    sick: DrainNotice | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is seen at one moment."""

    #: Seconds since 1970 by this machine's clock.
    now: float
    #: The newest document; None when the metadata service did not answer with one.
    document: Document | None = None
    #: How much the platform's clock is ahead of this machine's.
    skew_s: float = 0.0
    #: Nothing of the cluster's work is on this node any more; None: unknown, the head does not answer.
    is_empty: bool | None = None
    #: What is wrong with the machine, a sentence each.
    problems: Sequence[str] = ()


def step(state: State, machine: str, look: Look) -> tuple[State, list[Action]]:
    """The next state, and what to do now; `drained` and `acknowledged` record what succeeded."""
    actions: list[Action] = []
    if look.document is not None:
        # Without a document nothing is known to be cancelled: what was heard last holds.
        state, actions = _hear(state, machine, look, look.document)
    if look.problems and state.sick is None:
        reason = f"this machine is sick: {'; '.join(look.problems)}"
        state = replace(state, sick=DrainNotice(deadline_at=look.now + SICK_DRAIN_S, reason=reason))
        actions.append(Report(message=reason))
    due = _soonest(_drains(state))
    if due is None:
        state = replace(state, asked_at=None)
    elif state.drained_until is None or due.deadline_at < state.drained_until - _SOONER_S:
        actions.append(DrainNode(deadline_at=due.deadline_at, reason=due.reason))
        state = replace(state, asked_at=look.now if state.asked_at is None else state.asked_at)
    if (last := _unheard(state, look.now)) is not None:
        actions.append(EndSoftly(reason=f"{last.reason}; the head did not answer"))
        state = replace(state, ended_softly=True)
    actions.extend(_acknowledgements(state, look))
    return state, actions


def _unheard(state: State, now: float) -> DrainNotice | None:
    """What ends this machine's processes in a moment, if the head has not accepted the drain although it had time."""
    if state.drained_until is not None or state.asked_at is None or state.ended_softly:
        return None
    # A machine that stands still keeps its processes: to end them here would lose what the pause may leave.
    ending = _soonest([drain for drain in _drains(state) if drain.ends_processes])
    if ending is None or now < max(ending.deadline_at - SOFT_END_S, state.asked_at + ANSWER_S):
        return None
    return ending


def _hear(state: State, machine: str, look: Look, document: Document) -> tuple[State, list[Action]]:
    actions: list[Action] = []
    known: dict[str, KnownEvent] = {}
    for event in document.events:
        if not concerns(event, machine):
            continue
        before = state.known.get(event.id)
        if before is None:
            means = meaning(event, look.now, look.skew_s)
            known[event.id] = KnownEvent(event=event, means=means)
            actions.append(Report(message=_said(event, means, look.now)))
        else:
            known[event.id] = _again(before, event, look)
    for gone in sorted(state.known.keys() - known.keys()):
        actions.append(Report(message=f"the cloud's event {gone} is done or cancelled"))
    return replace(state, known=known), actions


def _again(before: KnownEvent, event: ScheduledEvent, look: Look) -> KnownEvent:
    """An event that is still listed; one that has begun, or comes sooner, has a nearer deadline."""
    means = meaning(event, look.now, look.skew_s)
    if before.is_acknowledged:
        # It begins because we let it: its work has left, and nothing has to hurry.
        return replace(before, event=event)
    if isinstance(before.means, DrainNotice) and isinstance(means, DrainNotice):
        means = min(before.means, means, key=lambda drain: drain.deadline_at)
    return replace(before, event=event, means=means)


def _said(event: ScheduledEvent, means: Meaning | None, now: float) -> str:
    match means:
        case DrainNotice():
            left_s = means.deadline_at - now
            return (
                f"{means.reason}; its work has to leave this machine within {left_s:.0f} s, by"
                f" {clock(means.deadline_at)}"
            )
        case Pause():
            return f"{means.reason}; this machine pauses for {means.duration_s:g} s, and its work stays"
        case None:
            return f"{event.type} by the cloud interrupts nothing"
        case _:
            return means.reason


def _drains(state: State) -> list[DrainNotice]:
    ordered = [known.means for known in state.known.values() if isinstance(known.means, DrainNotice)]
    return ordered if state.sick is None else [*ordered, state.sick]


def _soonest(drains: Sequence[DrainNotice]) -> DrainNotice | None:
    return min(drains, key=lambda drain: drain.deadline_at, default=None)


def _acknowledgements(state: State, look: Look) -> list[Action]:
    """Approvals of events whose work has left a drained node: the cloud need not wait for those.

    Any other approval would only let the machine be taken sooner, with what is still being written on it.  A deadline
    is no reason for one: ours is often sooner than the cloud's, and at its own the cloud goes on by itself.  One
    approval counts for every machine that an event names, and only this one is known to be empty: an event that names
    several gets none.
    """
    if state.drained_until is None or look.is_empty is not True:
        return []
    return [
        Acknowledge(event_id=event_id)
        for event_id, known in state.known.items()
        if isinstance(known.means, DrainNotice)
        and not known.is_acknowledged
        and not known.event.is_started
        and len({name.casefold() for name in known.event.resources}) == 1
    ]


def says(state: State) -> str | None:
    """What is announced to this machine now and needs no drain, for operators; None: nothing."""
    words = {
        _said(known.event, known.means, 0.0)
        for known in state.known.values()
        if isinstance(known.means, Pause | Advice)
    }
    return "; ".join(sorted(words)) or None


def drained(state: State, deadline_at: float) -> State:
    """The head has accepted a drain."""
    return replace(state, drained_until=deadline_at)


def acknowledged(state: State, event_id: str) -> State:
    """The cloud has taken the answer."""
    known = state.known.get(event_id)
    if known is None:
        return state
    return replace(state, known={**state.known, event_id: replace(known, is_acknowledged=True)})

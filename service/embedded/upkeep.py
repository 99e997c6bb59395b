"""Decides which processes of the embedded service to start, end or give up, from their observed state (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

#: The first pause before a part that ended is started again; it doubles while the part keeps ending early.
FIRST_PAUSE_S = 0.5
#: The longest of these pauses.
LONGEST_PAUSE_S = 30.0
#: Seconds after which a running part counts as healthy; its next end counts as its first.
STEADY_S = 30.0
#: Ends in a row after which a part that never worked is given up.
TRIES = 4
#: Seconds without a connection after which the head is ended and started again.
HEAD_TIMEOUT_S = 60.0


class Part(StrEnum):
    """What the embedded service is made of, beside the nodes, which are the controller's."""

    HEAD = "head"
    API = "API"
    CONTROLLER = "controller"
    #: Only where Azure is emulated.
    EMULATOR = "emulator"


@dataclass(frozen=True, kw_only=True)
class PartView:
    """One part as seen now.  Times are seconds of any one clock."""

    is_alive: bool = False
    #: The head accepts connections, the API answers, the controller did not end at once.
    is_ready: bool = False
    #: It was ready at least once.
    was_ready: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    #: Ends in a row, each soon after its start.
    failures: int = 0


@dataclass(frozen=True)
class Start:
    """Start a part.  Starting the head means: adopt the one that runs, else clear its nodes away and start one."""

    part: Part


@dataclass(frozen=True)
class End:
    """End a part."""

    part: Part


@dataclass(frozen=True)
class GiveUp:
    """A part cannot be made to work; stop everything and say why."""

    part: Part


Action = Start | End | GiveUp


def observe(view: PartView, *, is_alive: bool, is_ready: bool, now: float) -> PartView:
    """The view with what is seen now."""
    if is_alive:
        return replace(view, is_alive=True, is_ready=is_ready, was_ready=view.was_ready or is_ready)
    if not view.is_alive:
        return view
    was_steady = view.started_at is not None and now - view.started_at >= STEADY_S
    failures = 1 if was_steady else view.failures + 1
    return replace(view, is_alive=False, is_ready=False, ended_at=now, failures=failures)


def started(view: PartView, now: float) -> PartView:
    """The view of a part that was started or adopted just now."""
    return replace(view, is_alive=True, is_ready=False, started_at=now)


def decide(parts: Mapping[Part, PartView], now: float) -> list[Action]:
    """What to do now with the parts of one cluster, in this order; nothing when all is well or a pause is not over."""
    hopeless = [part for part, view in parts.items() if not view.was_ready and view.failures >= TRIES]
    if hopeless:
        return [GiveUp(hopeless[0])]
    head, controller = parts[Part.HEAD], parts[Part.CONTROLLER]
    # Only with the first cluster.
    api, emulator = parts.get(Part.API), parts.get(Part.EMULATOR)
    actions: list[Action] = []
    if controller.is_alive and not (head.is_alive and (emulator is None or emulator.is_alive)):
        # It is connected to a cluster, or known to a cloud, that is no more.
        actions.append(End(Part.CONTROLLER))
    if not head.is_alive:
        # The emulator's machines were that cluster's.
        actions += [End(Part.EMULATOR)] if emulator is not None and emulator.is_alive else []
        actions += [Start(Part.HEAD)] if _is_due(head, now) else []
    elif not head.is_ready and head.started_at is not None and now - head.started_at > HEAD_TIMEOUT_S:
        actions.append(End(Part.HEAD))
    if api is not None and not api.is_alive and _is_due(api, now):
        actions.append(Start(Part.API))
    if emulator is not None and not emulator.is_alive and head.is_ready and _is_due(emulator, now):
        actions.append(Start(Part.EMULATOR))
    stands = head.is_ready and (emulator is None or emulator.is_ready)
    if not controller.is_alive and stands and _is_due(controller, now):
        actions.append(Start(Part.CONTROLLER))
    return actions


def pause_s(failures: int) -> float:
    """Seconds between an end and the next start."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** max(0, min(failures - 1, 30)))


def _is_due(view: PartView, now: float) -> bool:
    return view.ended_at is None or now >= view.ended_at + pause_s(view.failures)

"""Heartbeats of node agents: how they are written and read, and how long the newest one has been unchanged (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: Seconds between two signs of life.
HEARTBEAT_S = 5.0
#: An agent without a new one for so long is silent: its client of Ray may take a minute to start anew.
SILENT_S = 24 * HEARTBEAT_S
#: An agent that has not heard of its cloud for so long is deaf: the first answer of Azure may take two minutes.
DEAF_S = 300.0
#: Two looks count as no more than this, however far they lie apart: a head that was away, or a listener that slept,
#: would make all agents silent at once.  A service that spares its cloud looks every half minute, and these looks count
#: in full; what is left until an agent is silent is enough for its client of Ray to start anew.
LONGEST_LOOK_S = 8 * HEARTBEAT_S
#: Longest text that is taken over.
_TEXT_LIMIT = 500


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One sign of life, as far as others than the agent need it."""

    #: Seconds since 1970 by the machine's own clock.
    at: float
    #: Why its node is drained, or is about to be.
    leaves: str | None = None
    #: For how long its metadata service has given it no answer; 0.0 of an agent that does not say so.
    deaf_s: float = 0.0
    #: What its cloud has announced that moves nothing, such as a short pause.
    says: str | None = None
    #: Something is wrong with the machine.
    is_sick: bool = False


@dataclass(frozen=True, kw_only=True)
class AgentStatus:
    """What is heard of one agent."""

    beat: Heartbeat
    #: For how long this has been its newest sign of life, by the clock of who listens: a machine's own may be wrong.
    unchanged_s: float = 0.0

    @property
    def is_silent(self) -> bool:
        """It should have given many signs of life since."""
        return self.unchanged_s > SILENT_S

    @property
    def is_deaf(self) -> bool:
        """It gives signs of life, and yet would hear of no eviction."""
        return self.beat.deaf_s > DEAF_S


def written(
    at: float, problems: Sequence[str], leaves: str | None, deaf_s: float = 0.0, says: str | None = None
) -> str:
    """A sign of life as it is left with the head; `problems` are what is wrong with the machine."""
    return json.dumps(
        {"at": at, "problems": list(problems), "leaves": leaves, "deaf_s": deaf_s, "says": says}
    )


def read(told: bytes) -> Heartbeat | None:
    """The same, read; None when it cannot be."""
    try:
        document = json.loads(told)
        at, deaf_s = float(document["at"]), document.get("deaf_s")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return Heartbeat(
        at=at,
        leaves=_text(document.get("leaves")),
        deaf_s=deaf_s if isinstance(deaf_s, float) else 0.0,
        says=_text(document.get("says")),
        is_sick=bool(document.get("problems")),
    )


def _text(value: object) -> str | None:
    return value[:_TEXT_LIMIT] if isinstance(value, str) and value else None


def listen(
    before: Mapping[str, AgentStatus], beats: Mapping[str, Heartbeat], since_last_s: float
) -> dict[str, AgentStatus]:
    """What is heard now, by node id, `since_last_s` after `before`; who has never been heard is in neither."""
    more_s = min(since_last_s, LONGEST_LOOK_S)
    now = {node_id: AgentStatus(beat=beat) for node_id, beat in beats.items()}
    for node_id, hearing in now.items():
        last = before.get(node_id)
        if last is not None and last.beat.at == hearing.beat.at:
            now[node_id] = replace(hearing, unchanged_s=last.unchanged_s + more_s)
    return now

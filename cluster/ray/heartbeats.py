"""Heartbeats of node agents: how they are written and read, and for how long the newest one is unchanged (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: Seconds between two heartbeats.
HEARTBEAT_S = 5.0
#: An agent without a new one for this long is silent: its client of Ray may take a minute to start again.
SILENT_S = 24 * HEARTBEAT_S
#: Seconds without an answer of the metadata service after which it is reported: Azure's first may take two minutes.
UNANSWERED_S = 300.0
#: The time between two looks counts as no more than this: a head that was away, or a controller that was suspended,
#: would make all agents silent at once.  A service that spares its cloud looks every half minute, and these looks count
#: in full; what is left until an agent is silent is enough for its client of Ray to start again.
LONGEST_LOOK_S = 8 * HEARTBEAT_S
#: Characters of a text that are kept.
_TEXT_LIMIT = 500


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One heartbeat, as far as the controller needs it."""

    #: Seconds since 1970 by the machine's own clock.
    at: float
    #: Why its node is drained, or is about to be.
    leaves: str | None = None
    #: For how long its metadata service has given it no answer; 0.0 of an agent that does not say so.
    unanswered_s: float = 0.0
    #: What its cloud has announced that needs no drain, such as a short pause.
    says: str | None = None
    #: Something is wrong with the machine.
    is_sick: bool = False


@dataclass(frozen=True, kw_only=True)
class AgentStatus:
    """What is known of one agent from its heartbeats."""

    heartbeat: Heartbeat
    #: For how long this has been its newest heartbeat, by the reader's clock: a machine's own may be wrong.
    unchanged_s: float = 0.0

    @property
    def is_silent(self) -> bool:
        """It should have sent many heartbeats since."""
        return self.unchanged_s > SILENT_S

    @property
    def is_unanswered(self) -> bool:
        """It sends heartbeats, but would not learn of an eviction."""
        return self.heartbeat.unanswered_s > UNANSWERED_S


def written(
    at: float, problems: Sequence[str], leaves: str | None, unanswered_s: float = 0.0, says: str | None = None
) -> str:
    """A heartbeat as it is stored with the head; `problems` are what is wrong with the machine."""
    return json.dumps(
        {"at": at, "problems": list(problems), "leaves": leaves, "unanswered_s": unanswered_s, "says": says}
    )


def read(stored: bytes) -> Heartbeat | None:
    """The heartbeat in a stored text; None when it cannot be read."""
    try:
        document = json.loads(stored)
        at, unanswered_s = float(document["at"]), document.get("unanswered_s")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return Heartbeat(
        at=at,
        leaves=_text(document.get("leaves")),
        unanswered_s=unanswered_s if isinstance(unanswered_s, float) else 0.0,
        says=_text(document.get("says")),
        is_sick=bool(document.get("problems")),
    )


def _text(value: object) -> str | None:
    return value[:_TEXT_LIMIT] if isinstance(value, str) and value else None


def listen(
    before: Mapping[str, AgentStatus], heartbeats: Mapping[str, Heartbeat], since_last_s: float
) -> dict[str, AgentStatus]:
    """The status of each agent by node id, `since_last_s` after `before`; agents without a heartbeat are in neither."""
    more_s = min(since_last_s, LONGEST_LOOK_S)
    now = {node_id: AgentStatus(heartbeat=heartbeat) for node_id, heartbeat in heartbeats.items()}
    for node_id, status in now.items():
        last = before.get(node_id)
        if last is not None and last.heartbeat.at == status.heartbeat.at:
            now[node_id] = replace(status, unchanged_s=last.unchanged_s + more_s)
    return now

"""The agent's loops: read events and GPU health, decide by `watch`, act; a silent service does not block the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from cluster.node.agent.head_client import Head
from cluster.node.agent.health import Health
from cluster.node.agent.metadata import Heard, MetadataAway
from cluster.node.agent.watch import (
    Acknowledge,
    Action,
    DrainNode,
    EndSoftly,
    Look,
    Report,
    State,
    acknowledged,
    drained,
    says,
    step,
)

log = logging.getLogger(__name__)

#: Seconds between two questions for events, as Azure advises.
POLL_S = 1.0
#: Additional seconds after a request that failed with an unexpected error: its traceback is logged each time.
AGAIN_S = 4.0
#: Seconds between two looks at the GPUs.
HEALTH_S = 30.0


class Metadata(Protocol):
    """What the agent needs of `MetadataService`."""

    def name(self) -> str:
        """The machine's name, as events call it.  Raises MetadataAway."""
        ...

    def listen(self) -> Heard:
        """The current events.  Raises MetadataAway."""
        ...

    def acknowledge(self, event_id: str) -> None:
        """Approve an event: the cloud need not wait any longer.  Raises MetadataAway."""
        ...


class Agent:
    """One machine's agent.  `listen`, `look_after` and `step` may each run in a thread of their own."""

    def __init__(
        self,
        machine: str,
        metadata: Metadata,
        head: Head,
        end_softly: Callable[[str], None],
        gpus: Callable[[], Health] = Health,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`end_softly` gets a reason and ends the machine's workers with SIGTERM.

        `machine` is its name in events; when that is empty the metadata service is asked for it.
        """
        self._machine = machine
        self._metadata = metadata
        self._head = head
        self._end_softly = end_softly
        self._gpus = gpus
        self._clock = clock
        self._heard: Heard | None = None
        self._health = Health()
        self._complaint = ""
        self.state = State()

    def run(self, stopping: threading.Event) -> None:
        """Watch until `stopping` is set."""
        # The first answer may take two minutes, and a GPU's driver may hang: neither may delay the other.
        for name, work in (("metadata", self._keep_listening), ("gpus", self._keep_looking)):
            threading.Thread(target=work, args=(stopping,), name=name, daemon=True).start()
        while not stopping.wait(POLL_S):
            self.step()

    def _keep_listening(self, stopping: threading.Event) -> None:
        pause_s = 0.0
        while not stopping.wait(POLL_S + pause_s):
            # An unexpected error must not end the watch for notices while heartbeats go on.
            try:
                pause_s = self.listen()
            except Exception:
                log.exception("listening to the metadata service failed; trying again")
                pause_s = AGAIN_S

    def _keep_looking(self, stopping: threading.Event) -> None:
        while True:
            try:
                self.look_after()
            except Exception:
                log.exception("looking at the GPUs failed; trying again")
            if stopping.wait(HEALTH_S):
                return

    def listen(self) -> float:
        """Ask once for events; seconds to pause beyond the usual."""
        try:
            if not self._machine:
                # Asked here, as this answer may take as long as the first document, and nothing else waits here.
                self._machine = self._metadata.name()
            self._heard = self._metadata.listen()
        except MetadataAway as away:
            # The last document holds: an event that cannot be read any more is not cancelled.
            if str(away) != self._complaint:
                log.warning("%s; trying again", away)
            self._complaint = str(away)
            return away.pause_s
        self._complaint = ""
        self._head.heard()
        return 0.0

    def look_after(self) -> None:
        """Look once at the GPUs."""
        self._health = self._gpus()
        self._head.say(self._health.problems)

    def step(self) -> None:
        """Carry out what is to be done now; never waits for the head."""
        if self._head.drained_until is not None:
            self.state = drained(self.state, self._head.drained_until)
        heard = self._heard
        look = Look(
            now=self._clock(),
            document=heard.document if heard is not None else None,
            skew_s=heard.skew_s if heard is not None else 0.0,
            is_empty=self._head.is_empty,
            problems=self._health.problems,
        )
        self.state, actions = step(self.state, self._machine, look)
        self._head.announce(says(self.state))
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case DrainNode():
                self._head.drain(action.deadline_at, action.reason)
            case Acknowledge():
                self._acknowledge(action.event_id)
            case EndSoftly():
                log.warning("workers are ended: %s", action.reason)
                self._end_softly(action.reason)
            case Report():
                log.info("%s", action.message)

    def _acknowledge(self, event_id: str) -> None:
        try:
            self._metadata.acknowledge(event_id)
        except MetadataAway as away:
            log.warning("the event %s was not acknowledged, it is tried again: %s", event_id, away)
            return
        self.state = acknowledged(self.state, event_id)
        log.info("the event %s was acknowledged", event_id)

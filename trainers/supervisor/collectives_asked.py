"""Asks a script which collectives it began last."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

from remora.script import channel
from trainers.last_collectives import LastCollective, read_collectives
from trainers.processes.child import Child

#: Seconds in which a script has to answer: a thread of its own does, whatever the others wait for.
_ANSWER_S = 2.0


class CollectivesAsked:
    """One question at a time, as the driver asks them; answers come from another thread."""

    def __init__(self) -> None:
        self._has_answered = threading.Event()
        self._asked_at = 0.0
        self._found: tuple[LastCollective, ...] | None = None

    def ask(self, child: Child) -> None:
        """Ask; a script that does not use `remora.training` never answers."""
        self._has_answered.clear()
        self._found, self._asked_at = None, time.monotonic()
        child.send({"type": "dump"})

    def receive(self, message: channel.Message) -> None:
        """The script answers."""
        self._found = read_collectives(message.get("groups"))
        self._has_answered.set()

    def answer(self) -> list[dict[str, object]] | None:
        """What it has said, some time after it was asked at most; None: nothing."""
        self._has_answered.wait(max(0.0, _ANSWER_S - (time.monotonic() - self._asked_at)))
        return None if self._found is None else [asdict(one) for one in self._found]

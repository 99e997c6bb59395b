"""What one rank has to say, on its way to the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray

#: Seconds that bulk messages (lines, reports) wait for others to travel with.
_GATHER_S = 0.25
#: Bytes of lines that wait for the driver before the script's own writes have to wait.
_BACKLOG_BYTES = 8 << 20


class Outbox:
    """Messages of one rank on their way to the driver: in order, in batches, one batch at a time."""

    def __init__(self, driver: Any, generation: int, slot: int, on_driver_gone: Callable[[], None]) -> None:
        self._driver = driver
        #: Number of the worker group that the messages to come belong to.
        self.generation = generation
        self._slot = slot
        self._on_driver_gone = on_driver_gone
        self._changed = threading.Condition()
        self._messages: list[dict[str, Any]] = []
        self._bytes = 0
        self._is_urgent = False
        self._has_reported = False
        self._is_closed = False
        self._is_dead = False
        self._drops_lines = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._pump, name="outbox", daemon=True)
        self._thread.start()

    def put(self, message: dict[str, Any]) -> None:
        """Send a message soon; anything but a report goes at once."""
        with self._changed:
            self._messages.append(message)
            # The first report says that training runs, and is awaited.
            self._is_urgent = self._is_urgent or message["type"] != "report" or not self._has_reported
            self._has_reported = self._has_reported or message["type"] == "report"
            self._wake_pump()

    def put_line(self, stream: str, text: str) -> None:
        """Send a line of output; waits while too much is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < _BACKLOG_BYTES or self._is_dead)
            if self._is_dead or (self._drops_lines and stream != "remora"):
                self._dropped += 1
                return
            self._messages.append({"type": "log", "stream": stream, "text": text})
            self._bytes += len(text) + 1
            self._wake_pump()

    def _wake_pump(self) -> None:
        # Not for every report of a script that makes hundreds of steps a second: it gathers them anyway.
        if self._is_urgent or len(self._messages) == 1:
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until the driver has everything."""
        with self._changed:
            if self._dropped:
                self._messages.append({"type": "dropped", "lines": self._dropped})
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _pump(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._messages or self._is_closed)
                if not self._is_urgent and not self._is_closed:
                    self._changed.wait_for(lambda: self._is_urgent or self._is_closed, _GATHER_S)
                batch, self._messages = self._messages, []
                generation = self.generation
                self._is_urgent = False
                if not batch:
                    return
            try:
                answer = ray.get(self._driver.deliver.remote(generation, self._slot, batch))
            except ray.exceptions.RayError:
                with self._changed:
                    self._is_dead = True
                    self._changed.notify_all()
                self._on_driver_gone()
                return
            with self._changed:
                self._bytes = sum(len(m["text"]) + 1 for m in self._messages if m["type"] == "log")
                self._drops_lines = bool(answer.get("log_is_full"))
                self._changed.notify_all()

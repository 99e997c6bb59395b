"""Sends one rank's messages and lines of output to the driver, in batches, with flow control for lines.

The driver serves thousands of workers, so it gets those messages alone that it needs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from remora.script import channel
from trainers.worker_identity import WorkerIdentity

#: Seconds that bulk messages (lines, reports) wait, so that one batch holds many.
_GATHER_S = 0.25
#: Kinds of messages that wait for others.
_BULK = frozenset({"report", "pace", "load"})
#: Kinds after which nothing follows.
_ENDS = frozenset({"exit", "trouble", "damaged"})
#: Bytes of lines that wait for the driver before the script's own writes have to wait.
_BACKLOG_BYTES = 512 << 10
#: Bytes of lines in one batch, and before the driver has reported how many it accepts.
_BATCH_BYTES, _FIRST_BYTES = 256 << 10, 64 << 10
#: Seconds until a driver that accepts no lines is asked again.
_ASK_AGAIN_S = 0.5


class Outbox:
    """Messages of one rank on their way to the driver, in batches, one batch at a time.

    Messages are in order, and so are lines; a message does not wait for lines, but for the end of the command, which
    comes after all of them.
    """

    def __init__(self, driver: Any, generation: int, slot: int, on_driver_gone: Callable[[], None]) -> None:
        self._driver = driver
        self._generation = generation
        self._slot = slot
        self._on_driver_gone = on_driver_gone
        self._changed = threading.Condition()
        self._messages: list[dict[str, Any]] = []
        self._lines = WaitingLines()
        #: Bytes of lines that are being sent to the driver, and that it accepts.
        self._sent_bytes, self._accepted_bytes = 0, _FIRST_BYTES
        #: Messages that are sent once no line waits.
        self._ends: list[dict[str, Any]] = []
        self._is_urgent = False
        self._has_reported = False
        #: Lines are sent whether the driver accepts more or not.
        self._is_flushing = False
        self._is_closed = False
        self._is_dead = False
        self._drops_lines = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._pump, name="outbox", daemon=True)
        self._thread.start()

    @property
    def generation(self) -> int:
        """Number of the worker group that the messages to come belong to."""
        return self._generation

    @generation.setter
    def generation(self, generation: int) -> None:
        with self._changed:
            self._generation = generation
            self._has_reported = False

    def put(self, message: dict[str, Any]) -> None:
        """Send a message soon; anything but a report goes at once."""
        with self._changed:
            if self._is_dead:
                return
            kind = message["type"]
            (self._ends if kind in _ENDS else self._messages).append(message)
            self._is_flushing = self._is_flushing or kind in _ENDS
            # The first report of a worker group says that training runs, and is awaited.
            self._is_urgent = self._is_urgent or kind not in _BULK or not self._has_reported
            self._has_reported = self._has_reported or kind == "report"
            self._wake_pump()

    def put_lines(self, stream: str, text: str) -> None:
        """Send lines of output; blocks while too many bytes wait.  Our own (`remora`) may be twice as many."""
        most = _BACKLOG_BYTES if stream != "remora" else 2 * _BACKLOG_BYTES
        with self._changed:
            self._changed.wait_for(lambda: self._waiting_bytes < most or self._is_dead)
            if self._is_dead or (self._drops_lines and stream != "remora"):
                self._dropped += text.count("\n") + 1
                return
            self._lines.add(stream, text)
            self._wake_pump()

    @property
    def _waiting_bytes(self) -> int:
        return self._lines.size_bytes + self._sent_bytes

    def _wake_pump(self) -> None:
        # Not for every report of a script that makes hundreds of steps a second: the pump gathers them.
        if self._is_urgent or len(self._messages) <= 1:
            self._changed.notify_all()

    def flush(self) -> None:
        """The command ends: send its lines now, whether the driver accepts more or not."""
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Send what is left, and wait until the driver has it."""
        with self._changed:
            if self._dropped:
                self._ends.append({"type": "dropped", "lines": self._dropped})
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _pump(self) -> None:
        # Not at the top: `remora dev` runs a worker without Ray, which takes a second to import.
        import ray

        while True:
            with self._changed:
                batch, generation = self._next_batch(), self.generation
                if not batch and self._is_closed:
                    return
            try:
                answer = ray.get(self._driver.deliver.remote(generation, self._slot, batch))
            except ray.exceptions.RayError:
                self._give_up()
                self._on_driver_gone()
                return
            self._take_answer(batch, answer)

    def _take_answer(self, batch: list[dict[str, Any]], answer: dict[str, Any]) -> None:
        with self._changed:
            self._sent_bytes = 0
            # A driver that was started by an older version takes what it gets.
            self._accepted_bytes = int(answer.get("log_room", _BATCH_BYTES))
            self._drops_lines = bool(answer["log_is_full"])
            if not answer.get("log_is_taken", True):
                self._lines.put_back(
                    message for message in batch if message["type"] == "log" and not message.get("hurried")
                )
            self._changed.notify_all()

    def _next_batch(self) -> list[dict[str, Any]]:
        """Wait for the next batch; an empty one asks how many bytes the driver accepts, or reports the end."""
        self._changed.wait_for(lambda: self._has_news or self._lines.size_bytes)
        if not self._is_urgent and not self._is_closed:
            self._changed.wait_for(lambda: self._is_urgent or self._is_closed or self._has_batch, _GATHER_S)
        if not self._has_news and not self._may_send_lines:
            self._changed.wait_for(lambda: self._has_news or self._may_send_lines, _ASK_AGAIN_S)
        batch, self._messages, self._is_urgent = self._messages, [], False
        before = self._lines.size_bytes
        if self._flushes:
            batch += [{**message, "hurried": True} for message in self._lines.take(_BATCH_BYTES)]
        elif self._accepted_bytes > 0:
            batch += self._lines.take(min(_BATCH_BYTES, self._accepted_bytes))
        self._sent_bytes = before - self._lines.size_bytes
        if not self._lines.size_bytes:
            batch += self._ends
            self._ends = []
        return batch

    @property
    def _has_news(self) -> bool:
        return bool(self._messages or self._ends or self._is_closed)

    @property
    def _has_batch(self) -> bool:
        return self._lines.size_bytes >= _BATCH_BYTES and (
            self._accepted_bytes >= _BATCH_BYTES or self._flushes
        )

    @property
    def _flushes(self) -> bool:
        return self._is_flushing or self._is_closed

    @property
    def _may_send_lines(self) -> bool:
        return self._accepted_bytes > 0 or self._flushes

    def _give_up(self) -> None:
        """Drop everything: the driver is gone."""
        with self._changed:
            self._is_dead = True
            self._messages.clear()
            self._lines.clear()
            self._sent_bytes = 0
            self._changed.notify_all()


class WaitingLines:
    """Texts of one or more lines each, in the order in which they were printed."""

    def __init__(self) -> None:
        self._texts: deque[tuple[str, str]] = deque()
        #: Bytes of all of them as UTF-8, with their newlines.
        self.size_bytes = 0

    def add(self, stream: str, text: str) -> None:
        """One or more lines, with newlines between them."""
        self._texts.append((stream, text))
        self.size_bytes += _size_of(text)

    def take(self, limit_bytes: int) -> list[channel.Message]:
        """Remove the oldest lines of about `limit_bytes`, at least one, and return them as messages."""
        taken: list[tuple[str, str]] = []
        while self._texts and limit_bytes > 0:
            stream, text = self._texts.popleft()
            # Characters are bytes, or fewer: the text ends with the line in which the limit is reached.
            cut = text.find("\n", limit_bytes)
            if cut >= 0:
                self._texts.appendleft((stream, text[cut + 1 :]))
                text = text[:cut]
            taken.append((stream, text))
            size = _size_of(text)
            limit_bytes -= size
            self.size_bytes -= size
        return [
            {"type": "log", "stream": stream, "text": "\n".join(text for _, text in texts)}
            for stream, texts in groupby(taken, lambda one: one[0])
        ]

    def put_back(self, messages: Iterable[channel.Message]) -> None:
        """Put lines that the driver did not take back to the front."""
        texts = [(message["stream"], message["text"]) for message in messages]
        self._texts.extendleft(reversed(texts))
        self.size_bytes += sum(_size_of(text) for _, text in texts)

    def clear(self) -> None:
        """Drop all lines."""
        self._texts.clear()
        self.size_bytes = 0


def _size_of(text: str) -> int:
    return len(text.encode(errors="replace")) + 1


#: `pace` messages (how long a worker's own part of a step takes) per second, of all workers together.
PACES_PER_S = 128


class ReportFilter:
    """Decides for one worker, by what was passed on before."""

    def __init__(self) -> None:
        self._has_reported = False
        #: Number of the worker group of the newest `pace` that was passed on, and when that was.
        self._paced: tuple[int, float] | None = None

    def is_needed(self, message: channel.Message, identity: WorkerIdentity, now: float) -> bool:
        """True when the driver needs it; `now` is in seconds of a monotonic clock."""
        match message["type"]:
            case "report":
                # Rank 0 counts the steps; of the others the driver wants to know that they train at all.
                is_first, self._has_reported = not self._has_reported, True
                return is_first or identity.rank == 0
            case "pace":
                return self._is_pace_due(identity, now)
        return True

    def _is_pace_due(self, identity: WorkerIdentity, now: float) -> bool:
        if self._paced is not None:
            generation, at = self._paced
            if generation == identity.generation and now - at < identity.world_size / PACES_PER_S:
                return False
        self._paced = (identity.generation, now)
        return True

"""What an attempt reports to the service: every record passes here into the journal, and `ended` closes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainers.driver.journal import Journal
from trainers.driver.progress import Progress
from trainers.plan import Record, RecordKind

#: Bytes of lines not yet fetched above which workers hold further lines back, and their scripts wait in `write`.
HOLD_BYTES = 4 << 20
#: Seconds without a fetch after which lines count as not fetched at all: no script waits, the oldest are left out.
AWAY_S = 30.0

#: Records not yet fetched above which events are counted and left out: a script causes some of them.
MOST_WAITING = 20_000


class Account:
    """Records of one attempt; what follows its last record is dropped."""

    def __init__(
        self,
        log_limit_bytes: int,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is written down for people, `monotonic` measures the time since records were fetched."""
        self._journal = Journal()
        self._monotonic = monotonic
        self._asked_at = monotonic()
        self._log_limit_bytes = log_limit_bytes
        self._log_bytes = 0
        self._log_dropped = 0
        self._events_left_out = 0
        self._now = now
        self._totals: dict[str, Any] = {}
        #: Seconds, in all, for which the training loop waited for checkpoints.
        self.stalled_s = 0.0
        self._is_closed = False

    def records(self, after: int, limit: int) -> list[Record]:
        """Records after that number, `limit` rows at most; those up to it are forgotten."""
        self._asked_at = self._monotonic()
        if self._events_left_out:
            text = f"{self._events_left_out} events were left out: they were not fetched in time"
            self._events_left_out = 0
            self._journal.print(self._now(), 0, "remora", text, len(text))
        return self._journal.after(after, limit)

    def free_log_bytes(self, workers: int) -> int:
        """Bytes of lines that each of `workers` workers that print may send next."""
        if self._monotonic() - self._asked_at > AWAY_S:
            return HOLD_BYTES
        return max(0, HOLD_BYTES - self._journal.line_bytes) // workers

    @property
    def log_is_full(self) -> bool:
        """True when no further line of the command is kept."""
        return self._log_bytes >= self._log_limit_bytes

    def event(self, kind: str, message: str, **data: Any) -> None:
        """Something happened; `data` are its fields on the page of events."""
        self.put("event", {"kind": kind, "message": message, "data": data})

    def put(self, kind: RecordKind, body: dict[str, Any]) -> int | None:
        """A record whose body is made already; its number, or None when it is dropped.

        Metrics go through `measure`, lines through `line`.
        """
        if self._is_closed:
            return None
        if kind == "event" and self._journal.waiting >= MOST_WAITING:
            self._events_left_out += 1
            return None
        return self._journal.append(self._now(), kind, body)

    def put_whole(self, kind: RecordKind, body: dict[str, Any]) -> int | None:
        """The same for a record that replaces earlier ones of its kind; those are forgotten where possible."""
        return None if self._is_closed else self._journal.append(self._now(), kind, body, is_whole=True)

    def is_stored(self, record: int) -> bool:
        """True when the service has stored the record of that number."""
        return self._journal.is_stored(record)

    def measure(self, body: dict[str, Any]) -> None:
        """The metrics of a step: `{"step", "world_size", "values"}`."""
        if not self._is_closed:
            self._journal.measure(self._now(), body)

    def load(self, rank: int, load: dict[str, Any]) -> None:
        """How busy a worker was since it said so before, on the node of which address."""
        if not self._is_closed:
            now = self._now()
            self._journal.load(now, rank, {**load, "at": now})

    def line(self, rank: int, stream: str, text: str) -> None:
        """One or more lines of a worker's output, kept until the log is full; stream `remora` is Remora's own."""
        if self._is_closed:
            return
        data = text.encode(errors="replace")
        was_full = self.log_is_full
        if stream != "remora":
            text, data = self._until_full(text, data)
            if was_full:
                return
        self._log_bytes += len(data) + 1
        self._journal.print(self._now(), rank, stream, text, len(data))
        if self.log_is_full and not was_full:
            text = f"the log of this attempt reached {self._log_limit_bytes} bytes; later lines are dropped"
            self._journal.print(self._now(), rank, "remora", text, len(text))

    def _until_full(self, text: str, data: bytes) -> tuple[str, bytes]:
        """The lines up to the one with which the log is full; those after it are counted."""
        if self.log_is_full:
            self._log_dropped += data.count(b"\n") + 1
            return "", b""
        end = data.find(b"\n", max(0, self._log_limit_bytes - self._log_bytes - 1))
        if end < 0:
            return text, data
        self._log_dropped += data.count(b"\n", end)
        return data[:end].decode(), data[:end]

    def progress(self, **changes: Any) -> None:
        """State of the attempt, as it changes."""
        self.put("progress", changes)

    def size(self, workers: Mapping[str, int], **changes: Any) -> None:
        """How many workers train on the node of which address (none: `{}`), and what changed with that."""
        self.progress(**changes, world_size=sum(workers.values()), workers=dict(workers))

    def totals(self, progress: Progress) -> None:
        """Counters of the attempt; only those that changed are reported."""
        now: dict[str, Any] = {
            "step": progress.step,
            "total_steps": progress.total_steps,
            "repeated_steps": progress.repeated_steps,
            "lost_s": round(progress.lost_s, 3),
            "stalled_s": round(self.stalled_s, 3) or None,
        }
        changed = {
            name: value
            for name, value in now.items()
            if value is not None and self._totals.get(name) != value
        }
        if changed:
            self._totals.update(changed)
            if not self._is_closed:
                self._journal.count(self._now(), changed)

    def last_records(self, last_word: dict[str, Any]) -> list[Record]:
        """What is to be stored of an attempt that ends with `last_word`; without lines and metrics."""
        now = self._now()
        gone = {"world_size": 0, "workers": {}}
        return [
            *self._journal.without_lines(),
            Record(seq=0, at=now, kind="progress", body=gone),
            Record(seq=0, at=now, kind="ended", body=last_word),
        ]

    def ended(self, last_word: dict[str, Any]) -> None:
        """The attempt is over, for the reason that `last_word` gives; nothing follows."""
        if self._log_dropped:
            text = f"{self._log_dropped} lines were dropped: the limit of this attempt's log was reached"
            self.line(0, "remora", text)
        self.size({})
        if not self._is_closed:
            self._journal.end(self._now(), "ended", last_word)
        self._is_closed = True

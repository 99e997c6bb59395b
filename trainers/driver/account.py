"""What an attempt tells the service: every record goes through here into the journal, and `ended` closes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainers.driver.journal import Journal
from trainers.driver.progress import Progress
from trainers.plan import Record, RecordKind


class Account:
    """Records of one attempt; what comes after its last word is dropped."""

    def __init__(self, log_limit_bytes: int, now: Callable[[], float] = time.time) -> None:
        self._journal = Journal()
        self._log_limit_bytes = log_limit_bytes
        self._log_bytes = 0
        self._log_dropped = 0
        self._now = now
        self._totals: dict[str, Any] = {}
        self._is_closed = False

    def records(self, after: int, limit: int) -> list[Record]:
        """Records after that number; those up to it are forgotten."""
        return self._journal.after(after, limit)

    @property
    def log_is_full(self) -> bool:
        """True when no further line of the command is kept."""
        return self._log_bytes >= self._log_limit_bytes

    def event(self, kind: str, message: str, **data: Any) -> None:
        """Something happened; `data` are its fields on the page of events."""
        self.put("event", {"kind": kind, "message": message, "data": data})

    def put(self, kind: RecordKind, body: dict[str, Any]) -> int | None:
        """A record whose body is made already; its number, or None when it is dropped.  Lines go through `line`."""
        return None if self._is_closed else self._journal.append(self._now(), kind, body)

    def put_whole(self, kind: RecordKind, body: dict[str, Any]) -> int | None:
        """The same for a record that says all that those of its kind before it said; they are forgotten if they can."""
        return None if self._is_closed else self._journal.append(self._now(), kind, body, is_whole=True)

    def is_stored(self, record: int) -> bool:
        """True when the service has stored the record of that number."""
        return self._journal.is_stored(record)

    def line(self, rank: int, stream: str, text: str) -> None:
        """A line of a worker's output, kept until the log is full; stream `remora` is for words of our own."""
        if self.log_is_full and stream != "remora":
            self._log_dropped += 1
            return
        was_full = self.log_is_full
        self._log_bytes += len(text.encode(errors="replace")) + 1
        self.put("log", {"rank": rank, "stream": stream, "text": text})
        if self.log_is_full and not was_full:
            text = f"the log of this attempt reached {self._log_limit_bytes} bytes; later lines are dropped"
            self.put("log", {"rank": rank, "stream": "remora", "text": text})

    def progress(self, **changes: Any) -> None:
        """State of the attempt, as it changes."""
        self.put("progress", changes)

    def size(self, workers: Mapping[str, int], **changes: Any) -> None:
        """How many workers train on the node of which address (none: `{}`), and what changed with that."""
        self.progress(**changes, world_size=sum(workers.values()), workers=dict(workers))

    def totals(self, progress: Progress) -> None:
        """Counters of the attempt; only those that changed are told."""
        now: dict[str, Any] = {
            "step": progress.step,
            "total_steps": progress.total_steps,
            "repeated_steps": progress.repeated_steps,
            "lost_s": round(progress.lost_s, 3),
        }
        changed = {
            name: value
            for name, value in now.items()
            if value is not None and self._totals.get(name) != value
        }
        if changed:
            self._totals.update(changed)
            self.put("progress", changed)

    def ended(self, last_word: dict[str, Any]) -> None:
        """The attempt is over, for the reason that `last_word` gives; nothing follows."""
        if self._log_dropped:
            text = f"{self._log_dropped} lines were dropped: the limit of this attempt's log was reached"
            self.put("log", {"rank": 0, "stream": "remora", "text": text})
        self.size({})
        self.put("ended", last_word)
        self._is_closed = True

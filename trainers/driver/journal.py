"""What an attempt has reported and the service has not stored yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from trainers.driver.pending import PendingLines, PendingMetrics
from trainers.plan import Record, RecordKind

#: Characters of records that are handed out at once.
_ANSWER_SIZE = 1 << 20
#: Lines of one record.
_RECORD_LINES = 1000


class Journal:
    """Records in order, kept until they are acknowledged; safe to use from several threads.

    Counters, metrics and lines get their numbers when they are first handed out, so that what was not fetched yet can
    still be put together or left out; everything else when it is reported, and goes before them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[Record] = deque()
        self._next = 1
        self._stored = 0
        self._handed_out = 0
        #: Place of the newest record of each kind of which only the newest counts.
        self._newest: dict[RecordKind, int] = {}
        self._counters: tuple[float, dict[str, Any]] | None = None
        #: What each rank uses, which goes with the totals.
        self._loads: dict[int, dict[str, Any]] = {}
        self._metrics = PendingMetrics()
        self._lines = PendingLines()
        #: The very last record, which goes behind everything else.
        self._last: tuple[float, RecordKind, dict[str, Any]] | None = None

    def append(self, at: float, kind: RecordKind, body: dict[str, Any], *, is_whole: bool = False) -> int:
        """Add a record; returns its number.

        One that is `is_whole` says all that those of its kind before it said: of those not handed out yet, the newest
        one is kept, so that they cannot fill the memory while nothing is fetched.
        """
        with self._lock:
            if is_whole:
                self._forget_body(self._newest.get(kind, 0))
                self._newest[kind] = self._next
            return self._number(at, kind, body)

    def count(self, at: float, counters: dict[str, Any]) -> None:
        """Add totals as a `progress` record, or bring the one up to date that was not handed out yet."""
        with self._lock:
            before = self._counters[1] if self._counters is not None else {}
            self._counters = (at, {**before, **counters})

    def load(self, at: float, rank: int, load: dict[str, Any]) -> None:
        """Add what a worker uses to the totals; of those of one rank not handed out yet, the newest is kept."""
        with self._lock:
            before = self._counters[1] if self._counters is not None else {}
            self._counters = (at, before)
            self._loads[rank] = load

    def measure(self, at: float, body: dict[str, Any]) -> None:
        """Add the metrics of a step; see `PendingMetrics` for which are kept."""
        with self._lock:
            self._metrics.add(at, body)

    def print(self, at: float, rank: int, stream: str, text: str, size_bytes: int) -> None:
        """Add one or more lines with their size in bytes; see `PendingLines` for which are kept."""
        with self._lock:
            self._lines.add(at, rank, stream, text, size_bytes)

    def end(self, at: float, kind: RecordKind, body: dict[str, Any]) -> None:
        """Add the last record of all: it is handed out behind everything that was reported by now."""
        with self._lock:
            self._metrics.finish()
            self._last = (at, kind, body)

    def without_lines(self) -> list[Record]:
        """All that is not acknowledged but lines and metrics, in order; the totals have no number yet, which is 0."""
        with self._lock:
            kept = [record for record in self._records if record.kind not in ("log", "metric")]
            if self._counters is not None:
                kept.append(Record(seq=0, at=self._counters[0], kind="progress", body=self._counters[1]))
            return kept

    @property
    def waiting(self) -> int:
        """Records with numbers that are not acknowledged."""
        with self._lock:
            return len(self._records)

    @property
    def line_bytes(self) -> int:
        """Bytes of lines that were not handed out yet."""
        with self._lock:
            return self._lines.counted_bytes

    def after(self, seq: int, limit: int) -> list[Record]:
        """The oldest records after `seq`, `limit` rows at most; those up to it are stored elsewhere and forgotten here.

        Each line is a row, and so is each other record.
        """
        with self._lock:
            self._stored = max(self._stored, seq)
            while self._records and self._records[0].seq <= seq:
                self._records.popleft()
            handed: list[Record] = []
            rows = size = 0
            for record in self._in_order(limit):
                handed.append(record)
                rows += rows_of(record)
                size += _size_of(record)
                if rows >= limit or size >= _ANSWER_SIZE:
                    break
            self._handed_out = max(self._handed_out, handed[-1].seq if handed else 0)
            return handed

    def _in_order(self, limit: int) -> Iterator[Record]:
        """At most `limit` records: those with numbers, and then others, which get theirs now."""
        yield from list(islice(self._records, limit))
        if len(self._records) >= limit:
            return
        if self._counters is not None:
            (at, body), self._counters = self._counters, None
            loads, self._loads = self._loads, {}
            yield self._numbered(at, "progress", {**body, "loads": loads} if loads else body)
        for at, body in self._metrics.take():
            yield self._numbered(at, "metric", body)
        while texts := self._lines.take():
            # All of a chunk get numbers at once; what does not fit goes into the next answer.
            yield from [
                self._numbered(at, "log", {"rank": rank, "stream": stream, "text": part})
                for at, rank, stream, text in texts
                for part in _parts(text)
            ]
        if self._last is not None:
            last, self._last = self._last, None
            yield self._numbered(*last)

    def _numbered(self, at: float, kind: RecordKind, body: dict[str, Any]) -> Record:
        self._number(at, kind, body)
        return self._records[-1]

    def _number(self, at: float, kind: RecordKind, body: dict[str, Any]) -> int:
        seq = self._next
        self._records.append(Record(seq=seq, at=at, kind=kind, body=body))
        self._next += 1
        return seq

    def _forget_body(self, seq: int) -> None:
        """Keep the number of a record, but not its contents."""
        if seq > self._handed_out and self._records:
            place = seq - self._records[0].seq
            self._records[place] = Record(seq=seq, at=self._records[place].at, kind="progress", body={})

    def is_stored(self, seq: int) -> bool:
        """True when the record of that number was acknowledged."""
        with self._lock:
            return seq <= self._stored


def _parts(text: str) -> list[str]:
    """The lines of a text as texts of not too many lines."""
    if text.count("\n") < _RECORD_LINES:
        return [text]
    lines = text.split("\n")
    firsts = range(0, len(lines), _RECORD_LINES)
    return ["\n".join(lines[first : first + _RECORD_LINES]) for first in firsts]


def rows_of(record: Record) -> int:
    """Rows that a record is in the store: one for each line of a `log`."""
    return int(record.body["text"].count("\n")) + 1 if record.kind == "log" else 1


def _size_of(record: Record) -> int:
    match record.kind:
        case "log":
            return len(record.body["text"])
        case "metric":
            return 100 * len(record.body["values"])
    return 0

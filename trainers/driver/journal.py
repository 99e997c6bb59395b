"""What an attempt has told and nobody has stored yet."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from trainers.plan import Record, RecordKind


class Journal:
    """Records in order, kept until they are acknowledged; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[Record] = deque()
        self._next = 1
        self._stored = 0

    def append(self, at: float, kind: RecordKind, body: dict[str, Any]) -> int:
        """Add a record at the end; returns its number."""
        with self._lock:
            seq = self._next
            self._records.append(Record(seq=seq, at=at, kind=kind, body=body))
            self._next += 1
            return seq

    def after(self, seq: int, limit: int) -> list[Record]:
        """The oldest `limit` records after `seq`; those up to it are stored elsewhere and are forgotten here."""
        with self._lock:
            self._stored = max(self._stored, seq)
            while self._records and self._records[0].seq <= seq:
                self._records.popleft()
            return [record for record, _ in zip(self._records, range(limit), strict=False)]

    def is_stored(self, seq: int) -> bool:
        """True when the record of that number was acknowledged."""
        with self._lock:
            return seq <= self._stored

    @property
    def is_drained(self) -> bool:
        """True when every record was acknowledged."""
        with self._lock:
            return not self._records

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

    def append(self, at: float, kind: RecordKind, body: dict[str, Any]) -> None:
        """Add a record at the end."""
        with self._lock:
            self._records.append(Record(seq=self._next, at=at, kind=kind, body=body))
            self._next += 1

    def after(self, seq: int, limit: int) -> list[Record]:
        """The oldest `limit` records after `seq`; those up to it are stored elsewhere and are forgotten here."""
        with self._lock:
            while self._records and self._records[0].seq <= seq:
                self._records.popleft()
            return [record for record, _ in zip(self._records, range(limit), strict=False)]

    @property
    def is_drained(self) -> bool:
        """True when every record was acknowledged."""
        with self._lock:
            return not self._records

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
        self._handed_out = 0
        #: Place of the newest record of each kind of which only the newest counts.
        self._newest: dict[RecordKind, int] = {}

    def append(self, at: float, kind: RecordKind, body: dict[str, Any], *, is_whole: bool = False) -> int:
        """Add a record at the end; returns its number.

        One that is `is_whole` says all that those of its kind before it said: of what nobody was given yet, the newest
        one is kept, so that they cannot fill the memory while nobody asks.
        """
        with self._lock:
            seq = self._next
            if is_whole:
                self._forget_body(self._newest.get(kind, 0))
                self._newest[kind] = seq
            self._records.append(Record(seq=seq, at=at, kind=kind, body=body))
            self._next += 1
            return seq

    def _forget_body(self, seq: int) -> None:
        """Leave the number of a record, which says nothing any more."""
        if seq > self._handed_out and self._records:
            place = seq - self._records[0].seq
            self._records[place] = Record(seq=seq, at=self._records[place].at, kind="progress", body={})

    def after(self, seq: int, limit: int) -> list[Record]:
        """The oldest `limit` records after `seq`; those up to it are stored elsewhere and are forgotten here."""
        with self._lock:
            self._stored = max(self._stored, seq)
            while self._records and self._records[0].seq <= seq:
                self._records.popleft()
            handed = [record for record, _ in zip(self._records, range(limit), strict=False)]
            self._handed_out = max(self._handed_out, handed[-1].seq if handed else 0)
            return handed

    def is_stored(self, seq: int) -> bool:
        """True when the record of that number was acknowledged."""
        with self._lock:
            return seq <= self._stored

    @property
    def is_drained(self) -> bool:
        """True when every record was acknowledged."""
        with self._lock:
            return not self._records

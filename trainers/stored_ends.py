"""How attempts ended, in one small file per attempt beside its claim: a driver may be lost before it was polled.

A driver writes the file before it hands out its last record.  The file has what the service may not have stored by
then: records of states, events, checkpoints and outputs, but no lines and no metrics.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from trainers.plan import Record
from trainers.storage import NotReadable, Storage

log = logging.getLogger(__name__)

#: Bytes of one file; an end that needs more is not stored, for without its other records it would say too little.
MOST_BYTES = 4 << 20


class StoredEnds:
    """The ends of the attempts of one job.  Every method raises StorageError when the storage fails."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._folder = f"jobs/{job_id}/claims"

    def write(self, attempt_id: str, records: Sequence[Record]) -> bool:
        """Store the last records of an attempt; those with the number 0 come after all others.

        False: they are too long to be stored.
        """
        rows = [(one.seq, one.at, one.kind, one.body) for one in records]
        content = json.dumps(rows, default=str).encode()
        if len(content) > MOST_BYTES:
            log.warning("the end of attempt %s is not stored: it has %d bytes", attempt_id, len(content))
            return False
        self._storage.write_bytes(self._name(attempt_id), content)
        return True

    def read(self, attempt_id: str, after: int) -> list[Record]:
        """The records after the number `after`, the end as the last one; none where no end is stored."""
        try:
            content = self._storage.read_bytes(self._name(attempt_id), MOST_BYTES)
        except FileNotFoundError:
            return []
        except NotReadable as error:
            log.warning("the stored end of attempt %s is not used: %s", attempt_id, error)
            return []
        records = records_in(content, after)
        if not records:
            log.warning("the stored end of attempt %s is not used: it is no list of records", attempt_id)
        return records

    def _name(self, attempt_id: str) -> str:
        return f"{self._folder}/{attempt_id}.end"


def records_in(content: bytes, after: int) -> list[Record]:
    """The records of a file that come after the number `after`; none where they are not as a driver writes them."""
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        return []
    if not isinstance(rows, list) or not all(map(_is_row, rows)) or not rows or rows[-1][2] != "ended":
        return []
    return list(_numbered(rows, after))


def _numbered(rows: Sequence[Any], after: int) -> Iterator[Record]:
    newest = max(after, *(row[0] for row in rows))
    for seq, at, kind, body in rows:
        if seq == 0:
            newest += 1
        if seq == 0 or seq > after:
            yield Record(seq=seq or newest, at=float(at), kind=kind, body=body)


def _is_row(row: object) -> bool:
    """Whether it is a number, a time, the kind of a record and its body."""
    match row:
        case [int(seq), (int() | float()) as at, str(), dict()]:
            return 0 <= seq < 2**53 and 0 <= at < 2**53
    return False

"""Reads which checkpoints a job has in its storage, in threads, so that no loop waits for a storage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from remora.process_log import about
from service.loops.attempt_traces import about_attempt
from service.loops.tick import Tick
from service.queue import driver_records
from service.queue.driver_records import CheckpointListRecord
from service.queue.rows import AttemptRow, JobRow
from service.storage_locations import UnknownStore, url_of
from service.store import checkpoints
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.selection import description
from trainers.plan import Record
from trainers.storage import Storage

log = logging.getLogger(__name__)

#: Parallel reads, and attempts that one tick takes up.
_AT_ONCE, MOST = 4, 100
#: Seconds before a storage that failed is read again: at first, and at most.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 300.0


@dataclass
class _Reading:
    """The read of the storage of one attempt's job."""

    under_way: Future[CheckpointListRecord] | None = None
    pause_s: float = _PAUSE_S
    again_at: float = 0.0


class Listing:
    """Reads lists of checkpoints; used by one thread, which starts others for the reads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[str, str], CheckpointListRecord] | None = None,
    ) -> None:
        """`clock` is monotonic; `read` gets a job's id and the URL of its storage."""
        self._clock = clock
        self._read = read or read_list
        self._readings: dict[str, _Reading] = {}

    def ask(self, attempt_id: str, job_id: str, url: str) -> CheckpointListRecord | None:
        """What the job has in the storage, after this attempt; None: it is not known yet, ask again."""
        reading = self._readings.setdefault(attempt_id, _Reading())
        if reading.under_way is None:
            if self._clock() >= reading.again_at and self._under_way() < _AT_ONCE:
                reading.under_way = self._begin(job_id, url)
            return None
        if not reading.under_way.done():
            return None
        done, reading.under_way = reading.under_way, None
        error = done.exception()
        if error is None:
            return done.result()
        log.warning(
            "the checkpoints of %s cannot be listed, it is tried again: %s",
            job_id,
            error,
            extra=about(job=job_id),
        )
        reading.again_at = self._clock() + reading.pause_s
        reading.pause_s = min(2 * reading.pause_s, _MAX_PAUSE_S)
        return None

    def forget_others(self, attempt_ids: Iterable[str]) -> None:
        """Drop the reads of all other attempts."""
        kept = set(attempt_ids)
        self._readings = {one: reading for one, reading in self._readings.items() if one in kept}

    def wait(self, timeout_s: float) -> None:
        """Wait until the reads under way have ended."""
        for reading in self._readings.values():
            if reading.under_way is not None:
                reading.under_way.exception(timeout_s)

    def _under_way(self) -> int:
        return sum(one.under_way is not None and not one.under_way.done() for one in self._readings.values())

    def _begin(self, job_id: str, url: str) -> Future[CheckpointListRecord]:
        future: Future[CheckpointListRecord] = Future()

        def read() -> None:
            try:
                found = self._read(job_id, url)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        # The end of the process does not wait for a storage either.
        threading.Thread(target=read, name="list-checkpoints", daemon=True).start()
        return future


def read_list(job_id: str, url: str, opened: Callable[[str], Storage] = Storage) -> CheckpointListRecord:
    """The job's checkpoints in a storage, which `opened` opens by its URL.

    Raises StorageError, and ValueError for a list that cannot be stored.
    """
    catalog = Catalog(opened(url), job_id)
    body = [description(one, catalog.location(one)) for one in catalog.listed()]
    said = driver_records.read(Record(seq=1, at=0.0, kind="checkpoints", body={"checkpoints": body}))
    if not isinstance(said, CheckpointListRecord):
        raise ValueError(f"what it says of them cannot be stored: {said}"[:500])  # noqa: TRY004
    return said


def settle(tick: Tick, listing: Listing, ended: Iterable[tuple[JobRow, AttemptRow]]) -> None:
    """Make lists agree with storages after attempts of which nothing runs any more.  Raises Fenced."""
    # 1. Start the reads; none is waited for.
    found: dict[str, CheckpointListRecord | None] = {}
    asked: set[str] = set()
    for job, attempt in ended:
        if job.attempt != attempt.attempt or job.pruned_at is not None:
            found[attempt.id] = None
            continue
        try:
            url = url_of(tick.settings, job.facts.checkpoint_store)
        except UnknownStore as error:
            log.warning(
                "the checkpoints of %s stay listed as they are: %s",
                job.id,
                error,
                extra=about_attempt(job, attempt, tick.settings),
            )
            found[attempt.id] = None
            continue
        asked.add(attempt.id)
        if (listed := listing.ask(attempt.id, job.id, url)) is not None:
            found[attempt.id] = listed
    listing.forget_others(asked - found.keys())
    # 2. Write the lists that were read; a controller that dies before this reads them again.
    if found:
        tick.apply(partial(checkpoints.settle, found=found, now=tick.now))

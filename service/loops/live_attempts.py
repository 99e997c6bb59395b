"""The attempts that have not ended, loaded once per tick, and all that the tick writes about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from remora.process_log import about
from remora.states import AttemptState, EndReason
from service.loops.attempt_traces import about_attempt
from service.loops.tick import Tick
from service.policies_in_force import policies_in_force
from service.queue import lifecycle
from service.queue.rows import AttemptRow, JobRow
from service.store import jobs as store
from service.store.failures import Fenced, is_database_wide
from service.store.ingest import ingest_all
from trainers.plan import Record

log = logging.getLogger(__name__)

#: Rows in one transaction, so that submissions do not wait for a long one.
MOST_ROWS = 5000

JobAttempt = tuple[JobRow, AttemptRow]
Write = Callable[[sa.Connection, Sequence[str]], store.Changed]


class LiveAttempts:
    """For one tick and one thread.  No other thread writes attempts under the lease, so they are as this tick wrote
    them; what the API writes of their jobs meanwhile, for example a cancellation, is seen by the next tick.

    All of it raises Fenced.
    """

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._pairs: dict[str, JobAttempt] | None = None

    def pairs(self) -> list[JobAttempt]:
        """Attempts that have not ended, oldest first, with their jobs."""
        if self._pairs is None:
            found = self._tick.load(partial(store.live_attempts, cluster=self._tick.cluster))
            self._pairs = {attempt.id: (job, attempt) for job, attempt in found}
        return list(self._pairs.values())

    def add(self, pairs: Iterable[JobAttempt]) -> None:
        """These attempts were just made."""
        if self._pairs is not None:
            self._pairs.update({attempt.id: (job, attempt) for job, attempt in pairs})

    def store_records(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Store records of drivers, by the ids of their attempts."""
        now, settings = self._tick.now, self._tick.settings

        def work(connection: sa.Connection, ids: Sequence[str]) -> store.Changed:
            policies = policies_in_force(connection, settings)
            return ingest_all(connection, {one: records[one] for one in ids}, now, policies)

        for part in _parts(records):
            self._write(part, work)

    def change(self, decisions: Mapping[str, store.Decide]) -> None:
        """Store decisions about these attempts; each is made on the locked rows."""
        self._write(
            list(decisions),
            lambda connection, ids: store.change_attempts(connection, {i: decisions[i] for i in ids}),
        )

    def launched(self, attempt_ids: Iterable[str]) -> None:
        """The drivers of these attempts have said that they have their plans."""
        now = self._tick.now

        def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision:
            return lifecycle.Decision(job, lifecycle.launched(attempt, now))

        self.change(dict.fromkeys(attempt_ids, decide))

    def end(self, ends: Mapping[str, tuple[EndReason, str]]) -> None:
        """End attempts whose drivers do not report it; attempts that have ended stay as they are."""
        self.change({attempt_id: self._ending(*why) for attempt_id, why in ends.items()})

    def _ending(self, reason: EndReason, message: str) -> store.Decide:
        def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
            if attempt.ended_at is not None:
                return None
            log.info(
                "attempt %d of %s ended: %s: %s",
                attempt.attempt,
                job.id,
                reason.value,
                message,
                extra=about_attempt(job, attempt, self._tick.settings),
            )
            return lifecycle.end_attempt(job, attempt, reason, message, self._tick.now, by_driver=False)

        return decide

    def _write(self, attempt_ids: Sequence[str], work: Write) -> None:
        """Write in one transaction; when that fails, in one per attempt: one attempt's fault affects no other."""
        if not attempt_ids:
            return
        try:
            changed = self._tick.apply(lambda connection: work(connection, attempt_ids))
        except Fenced:
            self._pairs = None
            raise
        except Exception as error:
            if isinstance(error, DBAPIError) and is_database_wide(error):
                self._pairs = None
                raise
            if len(attempt_ids) == 1:
                changed = store.Changed(failed={attempt_ids[0]: error})
            else:
                for attempt_id in attempt_ids:
                    self._write([attempt_id], work)
                return
        for attempt_id, why in changed.failed.items():
            log.error(
                "attempt %s cannot be brought on, it is tried again",
                attempt_id,
                exc_info=why,
                extra=about(attempt=attempt_id),
            )
        self._note(changed.pairs)

    def _note(self, pairs: Mapping[str, JobAttempt]) -> None:
        if self._pairs is None:
            return
        for attempt_id, pair in pairs.items():
            if pair[1].state is AttemptState.ENDED:
                self._pairs.pop(attempt_id, None)
            else:
                self._pairs[attempt_id] = pair


def _parts(records: Mapping[str, Sequence[Record]]) -> list[list[str]]:
    """The attempts in parts of at most `MOST_ROWS` rows; one with more rows is a part of its own."""
    parts: list[list[str]] = []
    left = 0
    for attempt_id, new in records.items():
        rows = sum(_rows_of(record) for record in new)
        if not parts or rows > left:
            parts.append([])
            left = MOST_ROWS
        parts[-1].append(attempt_id)
        left -= rows
    return parts


def _rows_of(record: Record) -> int:
    """A log's text makes a row for each line; whether it is a text at all is checked when it is stored."""
    return str(record.body.get("text", "")).count("\n") + 1 if record.kind == "log" else 1

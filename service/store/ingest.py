"""What drivers tell becomes rows: every record exactly once, in one transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from remora.states import AttemptState, JobState
from service.queue import lifecycle, records
from service.queue.rows import AttemptRow, JobRow, NewEvent
from service.store import jobs, outputs
from service.store.leases import Lease
from service.store.rows import upsert
from service.store.tables import checkpoints, log_lines, metrics
from trainers.plan import Record

log = logging.getLogger(__name__)


@dataclass
class _Batch:
    """What one transaction is going to store."""

    job: JobRow
    attempt: AttemptRow
    now: float
    events: list[NewEvent] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    points: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: By step: the row of a checkpoint, or None when it was removed.
    checkpoints: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    #: The job's outputs when they changed.
    outputs: dict[str, Any] | None = None
    #: False when the driver could not bring that list up to date.
    outputs_are_complete: bool = True

    def decide(self, decision: lifecycle.Decision) -> None:
        """Take over what the life cycle decided."""
        self.job = decision.job
        self.attempt = decision.attempt or self.attempt
        self.events.extend(decision.events)

    def tell(self, at: float, kind: str, message: str, data: dict[str, Any]) -> None:
        """Append an event of the attempt."""
        self.events.append(
            NewEvent(at=at, kind=kind, message=message, attempt=self.attempt.attempt, data=data)
        )


def ingest(
    connection: sa.Connection, lease: Lease, attempt_id: str, new: Sequence[Record], now: float
) -> AttemptRow | None:
    """Store records of an attempt and let them change it; the attempt afterwards, or None if there is no such one.

    Records that are stored already are skipped, and so is everything of an attempt that has ended.  Behind a gap
    inside `new` nothing is taken: it is asked for again.  When `new` begins behind a gap, the driver has lost what is
    missing; that is told as an event.  Raises Fenced.
    """
    lease.guard(connection)
    found = jobs.get_attempt(connection, attempt_id)
    job = jobs.lock_job(connection, found.job_id) if found is not None else None
    attempt = jobs.get_attempt(connection, attempt_id)
    if job is None or attempt is None:
        return None
    if attempt.state is AttemptState.ENDED:
        return attempt
    batch = _Batch(job, attempt, now)
    for record in _in_sequence(attempt, new, batch):
        _take(batch, record)
        batch.attempt = replace(batch.attempt, last_record_seq=record.seq)
        if batch.attempt.state is AttemptState.ENDED:
            break
    _store(connection, job, attempt, batch)
    return batch.attempt


def _in_sequence(attempt: AttemptRow, new: Sequence[Record], batch: _Batch) -> list[Record]:
    fresh = sorted(
        (record for record in new if record.seq > attempt.last_record_seq), key=lambda item: item.seq
    )
    taken: list[Record] = []
    for record in fresh:
        last = taken[-1].seq if taken else attempt.last_record_seq
        if record.seq == last:
            continue
        if record.seq != last + 1 and taken:
            log.warning("attempt %s: records %d to %d are missing", attempt.id, last + 1, record.seq - 1)
            break
        if record.seq != last + 1:
            lost = record.seq - last - 1
            batch.tell(batch.now, "records.lost", f"the driver lost {lost} records", {"count": lost})
        taken.append(record)
    return taken


def _take(batch: _Batch, record: Record) -> None:
    at = float(record.at) if math.isfinite(record.at) else batch.now
    said = records.read(record)
    match said:
        case records.Printed():
            batch.lines.append(
                {
                    "at": at,
                    "attempt": batch.attempt.attempt,
                    "rank": said.rank,
                    "stream": said.stream,
                    "text": said.text,
                }
            )
        case records.Measured():
            _measure(batch, said, at)
        case records.Committed() | records.Removed():
            _checkpoint(batch, said, at)
        case records.Collected():
            batch.outputs = {**said.model_dump(), "attempt": batch.attempt.attempt, "job_id": batch.job.id}
            batch.decide(lifecycle.observe_outputs(batch.job, batch.attempt))
        case records.Happened():
            batch.tell(at, said.kind, said.message, said.data)
        case records.Progress():
            batch.decide(lifecycle.observe(batch.job, batch.attempt, said, _since(batch, at)))
        case records.Ended():
            batch.outputs_are_complete = said.outputs_are_complete
            message = said.message or said.end_reason.value
            batch.decide(
                lifecycle.end_attempt(
                    batch.job, batch.attempt, said.end_reason, message, batch.now, said.exit_code
                )
            )
        case records.Unreadable():
            batch.tell(at, "record.refused", f"a record could not be read: {said.why}", {"kind": said.kind})


def _measure(batch: _Batch, said: records.Measured, at: float) -> None:
    batch.points[said.step] = {
        "at": at,
        "attempt": batch.attempt.attempt,
        "world_size": said.world_size,
        "data": said.values,
    }
    batch.decide(lifecycle.observe_step(batch.job, batch.attempt, said.step, _since(batch, at)))


def _since(batch: _Batch, at: float) -> float:
    """From when a length of time is measured: whatever the driver's clock says, its attempt had begun by then."""
    return max(batch.attempt.created_at, min(at, batch.now))


def _checkpoint(batch: _Batch, said: records.Committed | records.Removed, at: float) -> None:
    if isinstance(said, records.Removed):
        batch.checkpoints[said.step] = None
        batch.tell(
            at, "checkpoint.deleted", f"the checkpoint of step {said.step} was removed", {"step": said.step}
        )
        return
    batch.checkpoints[said.step] = {
        **said.model_dump(exclude={"step"}),
        "attempt": batch.attempt.attempt,
        # The plan reckons from it what a move would lose.
        "committed_at": _since(batch, said.committed_at),
    }
    batch.decide(lifecycle.observe_checkpoint(batch.job, batch.attempt, said.step))
    batch.tell(
        at,
        "checkpoint.committed",
        f"the state of step {said.step} is saved",
        {"step": said.step, "size_bytes": said.size_bytes, "location": said.location},
    )


def _store(connection: sa.Connection, job: JobRow, attempt: AttemptRow, batch: _Batch) -> None:
    if batch.lines:
        first = job.log_seq + 1
        rows = [{"job_id": job.id, "seq": seq, **line} for seq, line in enumerate(batch.lines, start=first)]
        connection.execute(sa.insert(log_lines), rows)
        batch.job = replace(batch.job, log_seq=job.log_seq + len(rows))
    points = [{"job_id": job.id, "step": step, **point} for step, point in batch.points.items()]
    upsert(connection, metrics, points, replace=True)
    if batch.checkpoints:
        _store_checkpoints(connection, batch)
    if batch.outputs is not None:
        outputs.save_outputs(connection, batch.outputs)
    if batch.job.state is JobState.SUCCEEDED:
        batch.events += outputs.register_models(
            connection, batch.job, batch.now, is_complete=batch.outputs_are_complete
        )
    decision = lifecycle.Decision(batch.job, batch.attempt, tuple(batch.events))
    batch.job = jobs.save(connection, job, decision, attempt)


def _store_checkpoints(connection: sa.Connection, batch: _Batch) -> None:
    job_id = batch.job.id
    added = [
        {"job_id": job_id, "step": step, **row} for step, row in batch.checkpoints.items() if row is not None
    ]
    upsert(connection, checkpoints, added, replace=True)
    removed = [step for step, row in batch.checkpoints.items() if row is None]
    if removed:
        connection.execute(
            sa.delete(checkpoints).where(checkpoints.c.job_id == job_id, checkpoints.c.step.in_(removed))
        )
    newest = connection.execute(
        sa.select(sa.func.max(checkpoints.c.step)).where(checkpoints.c.job_id == job_id)
    ).scalar()
    batch.job = replace(batch.job, checkpoint_step=newest)

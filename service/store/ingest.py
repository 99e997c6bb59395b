"""Stores records of drivers as rows: every record exactly once, those of all drivers in one transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from cluster.policies.policies import Policies
from remora.process_log import about
from remora.states import AttemptState, JobState
from service.queue import driver_records, early_stop, lifecycle, owners_changes
from service.queue.early_stop import Score
from service.queue.intake import LINES_LEFT
from service.queue.rows import AttemptRow, JobRow, NewEvent, PhaseRow
from service.store import arrays, checkpoints, jobs, loads, outputs, profiles
from service.store.leases import Lease
from service.store.log_storage import NewLines, store_lines
from service.store.rows import upsert
from service.store.sick_reports import SickReport, add_reports
from service.store.tables import metrics
from trainers.plan import Record

log = logging.getLogger(__name__)

#: Events of an attempt that say that a node is sick.
SICK_EVENTS = frozenset({"worker.miscomputed", "worker.gpu_failed", "worker.misread"})
#: Characters of the address of a node, and of why it is drained.
LONGEST_ADDRESS, LONGEST_WHY = 200, 500


@dataclass
class _Batch:
    """What one transaction is going to store of one attempt."""

    job: JobRow
    attempt: AttemptRow
    now: float
    job_before: JobRow
    attempt_before: AttemptRow
    events: list[NewEvent] = field(default_factory=list)
    phases: list[PhaseRow] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    points: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: By step: the row of a checkpoint, or None when it was removed.
    checkpoints: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    #: The complete list before those, when the driver reported it.
    listed: driver_records.CheckpointListRecord | None = None
    #: Its scores at steps at which jobs of its array are compared.
    scores: list[Score] = field(default_factory=list)
    #: Nodes that compute wrongly.
    sick: list[SickReport] = field(default_factory=list)
    #: How profiles went.
    profiles: list[dict[str, Any]] = field(default_factory=list)
    #: How busy its workers are.
    loads: list[dict[str, Any]] = field(default_factory=list)
    #: The job's outputs when they changed.
    outputs: dict[str, Any] | None = None
    #: False when the driver could not bring that list up to date.
    outputs_are_complete: bool = True

    def decide(self, decision: lifecycle.Decision) -> None:
        """Take over what the life cycle decided."""
        self.job = decision.job
        self.attempt = decision.attempt or self.attempt
        self.events.extend(decision.events)
        self.phases.extend(decision.phases)

    def append_event(self, at: float, kind: str, message: str, data: dict[str, Any]) -> None:
        """Append an event of the attempt."""
        self.events.append(
            NewEvent(at=at, kind=kind, message=message, attempt=self.attempt.attempt, data=data)
        )


def ingest(
    connection: sa.Connection, lease: Lease, attempt_id: str, new: Sequence[Record], now: float
) -> AttemptRow | None:
    """`ingest_all` for one attempt: it afterwards, or None if there is no such one.  Raises Fenced."""
    lease.guard(connection)
    changed = ingest_all(connection, {attempt_id: new}, now)
    if attempt_id in changed.failed:
        raise changed.failed[attempt_id]
    found = changed.pairs.get(attempt_id)
    return None if found is None else found[1]


def ingest_all(
    connection: sa.Connection,
    by_attempt: Mapping[str, Sequence[Record]],
    now: float,
    policies: Policies | None = None,
) -> jobs.Changed:
    """Store records of attempts, by their ids, and let them change those, in as few statements for many as for one.

    Records that are stored already are skipped, and so is everything of an attempt that has ended.  Records behind a
    gap inside the list are left out: they are polled again.  When the list begins behind a gap, the driver has lost
    what is missing; an event reports that.  An attempt whose records cannot be stored is left as it was, and the others
    are stored.  The caller guards the lease.  Of a project that has as many log lines as its limit in `policies`, the
    oldest ones go.
    """
    policies = policies or Policies()
    changed = jobs.Changed()
    batches: list[_Batch] = []
    for attempt_id, (job, attempt) in jobs.lock_attempts(connection, by_attempt).items():
        changed.pairs[attempt_id] = (job, attempt)
        if attempt.state is AttemptState.ENDED:
            continue
        try:
            batches.append(_take_all(job, attempt, by_attempt[attempt_id], now))
        except Exception as error:  # its fault alone
            changed.failed[attempt_id] = error
    for batch, job in zip(batches, _store(connection, batches, policies), strict=True):
        changed.pairs[batch.attempt.id] = (job, batch.attempt)
    return changed


def _take_all(job: JobRow, attempt: AttemptRow, new: Sequence[Record], now: float) -> _Batch:
    batch = _Batch(job, attempt, now, job, attempt)
    taken = attempt.last_record_seq
    for record in _in_sequence(attempt, new, batch):
        _take(batch, record)
        taken = record.seq
        if batch.attempt.state is AttemptState.ENDED:
            break
    if taken != attempt.last_record_seq:
        batch.attempt = replace(batch.attempt, last_record_seq=taken)
    return batch


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
            log.warning(
                "attempt %s: records %d to %d are missing",
                attempt.id,
                last + 1,
                record.seq - 1,
                extra=about(job=attempt.job_id, attempt=attempt.id),
            )
            break
        if record.seq != last + 1:
            lost = record.seq - last - 1
            batch.append_event(batch.now, "records.lost", f"the driver lost {lost} records", {"count": lost})
        taken.append(record)
    return taken


def _take(batch: _Batch, record: Record) -> None:
    at = float(record.at) if math.isfinite(record.at) else batch.now
    said = driver_records.read(record)
    match said:
        case driver_records.LogRecord():
            common = {
                "at": at,
                "attempt": batch.attempt.attempt,
                "rank": said.rank,
                "stream": said.stream,
            }
            lines = said.text.split("\n")
            batch.lines += [{**common, "text": line} for line in lines]
            _look_for_patterns(batch, said.stream, lines)
        case driver_records.MetricRecord():
            _measure(batch, said, at)
        case driver_records.CheckpointRecord() | driver_records.CheckpointDeletedRecord():
            _checkpoint(batch, said, at)
        case driver_records.CheckpointListRecord():
            batch.listed = said
            batch.checkpoints.clear()
            for one in said.checkpoints:
                batch.decide(lifecycle.observe_checkpoint(batch.job, batch.attempt, one.step))
        case driver_records.OutputRecord():
            batch.outputs = {**said.model_dump(), "attempt": batch.attempt.attempt, "job_id": batch.job.id}
            batch.decide(lifecycle.observe_outputs(batch.job, batch.attempt))
        case driver_records.ProfileRecord():
            batch.profiles.append(_profile(batch, said, at))
        case driver_records.EventRecord():
            batch.append_event(at, said.kind, said.message, said.data)
            if said.kind == "worker_group.regrouped":
                _note_pause(batch, said, _since(batch, at))
            if said.kind in SICK_EVENTS:
                _note_sick(batch, said, _since(batch, at))
        case driver_records.ProgressRecord():
            batch.loads += _loads(batch, said.loads or {})
            if said.model_fields_set != {"loads"}:
                batch.decide(lifecycle.observe(batch.job, batch.attempt, said, _since(batch, at)))
            if said.global_batch is not None:
                batch.decide(
                    owners_changes.keep_batch(batch.job, batch.attempt, said.global_batch, _since(batch, at))
                )
        case driver_records.AttemptEndRecord():
            batch.outputs_are_complete = said.outputs_are_complete
            message = said.message or said.end_reason.value
            batch.decide(
                lifecycle.end_attempt(
                    batch.job,
                    batch.attempt,
                    said.end_reason,
                    message,
                    batch.now,
                    said.exit_code,
                    open_lost_s=said.open_lost_s,
                )
            )
        case driver_records.InvalidRecord():
            batch.append_event(
                at, "record.refused", f"a record could not be read: {said.why}", {"kind": said.kind}
            )


def _loads(batch: _Batch, said: Mapping[int, driver_records.LoadOfWorker]) -> list[dict[str, Any]]:
    place = {"job_id": batch.job.id, "attempt": batch.attempt.attempt}
    return [
        {**place, "rank": rank, **load.model_dump(), "at": _since(batch, load.at)}
        for rank, load in said.items()
    ]


def _profile(batch: _Batch, said: driver_records.ProfileRecord, at: float) -> dict[str, Any]:
    found = said.model_dump(exclude={"steps"})
    place = {"job_id": batch.job.id, "attempt": batch.attempt.attempt}
    return {**found, **place, "profiled_steps": said.steps, "ended_at": _since(batch, at)}


def _note_pause(batch: _Batch, said: driver_records.EventRecord, at: float) -> None:
    pause_s = said.data.get("pause_s")
    if isinstance(pause_s, int | float):
        batch.decide(lifecycle.observe_pause(batch.job, batch.attempt, float(pause_s), at))


def _note_sick(batch: _Batch, said: driver_records.EventRecord, at: float) -> None:
    address = said.data.get("address")
    if isinstance(address, str) and len(address) <= LONGEST_ADDRESS:
        report = SickReport(
            attempt_id=batch.attempt.id,
            project=batch.job.project,
            address=address,
            at=at,
            message=said.message[:LONGEST_WHY],
            cluster=batch.attempt.cluster,
        )
        batch.sick.append(report)


def _look_for_patterns(batch: _Batch, stream: str, lines: Sequence[str]) -> None:
    """Whether one of them has a text of `retry.on_log_patterns`; our own remarks are not the script's."""
    if batch.attempt.log_match is not None or stream == "remora":
        return
    if (found := batch.job.facts.retry_rules.match(lines)) is not None:
        batch.attempt = replace(batch.attempt, log_match=found)


def _measure(batch: _Batch, said: driver_records.MetricRecord, at: float) -> None:
    batch.points[said.step] = {
        "at": at,
        "attempt": batch.attempt.attempt,
        "world_size": said.world_size,
        "data": said.values,
    }
    batch.decide(lifecycle.observe_step(batch.job, batch.attempt, said.step, _since(batch, at)))
    batch.job, score = early_stop.observe(batch.job, said.step, said.values)
    if score is not None:
        batch.scores.append(score)


def _since(batch: _Batch, at: float) -> float:
    """From when a length of time is measured: whatever the driver's clock says, its attempt had begun by then."""
    return max(batch.attempt.created_at, min(at, batch.now))


def _checkpoint(
    batch: _Batch, said: driver_records.CheckpointRecord | driver_records.CheckpointDeletedRecord, at: float
) -> None:
    if isinstance(said, driver_records.CheckpointDeletedRecord):
        batch.checkpoints[said.step] = None
        was = "was removed" if said.reason == "retention" else "cannot be used, and is not listed any more"
        message = f"the checkpoint of step {said.step} {was}"
        batch.append_event(at, "checkpoint.deleted", message, {"step": said.step, "reason": said.reason})
        return
    batch.checkpoints[said.step] = {
        **said.model_dump(exclude={"step"}),
        "attempt": batch.attempt.attempt,
        # The plan reckons from it what a move would lose.
        "committed_at": _since(batch, said.committed_at),
    }
    batch.decide(lifecycle.observe_checkpoint(batch.job, batch.attempt, said.step))
    batch.append_event(
        at,
        "checkpoint.committed",
        f"the state of step {said.step} is saved",
        {"step": said.step, "size_bytes": said.size_bytes, "location": said.location},
    )


def _store(connection: sa.Connection, batches: Sequence[_Batch], policies: Policies) -> list[JobRow]:
    """The jobs afterwards, in the order of the batches."""
    _store_lines(connection, [batch for batch in batches if batch.lines], policies)
    points = [
        {"job_id": batch.job.id, "step": step, **point}
        for batch in batches
        for step, point in batch.points.items()
    ]
    upsert(connection, metrics, points, replace=True)
    _store_checkpoints(
        connection, [batch for batch in batches if batch.checkpoints or batch.listed is not None]
    )
    _compare(connection, [batch for batch in batches if batch.scores])
    if sick := [report for batch in batches for report in batch.sick]:
        add_reports(connection, sick)
    loads.write(connection, [one for batch in batches for one in batch.loads])
    profiles.end(connection, [one for batch in batches for one in batch.profiles])
    with_outputs = [batch for batch in batches if batch.outputs is not None]
    outputs.save_outputs(
        connection,
        [batch.outputs for batch in with_outputs if batch.outputs is not None],
        {batch.job.id: batch.job.project for batch in with_outputs},
    )
    for batch in batches:
        if batch.job.state is JobState.SUCCEEDED:
            batch.events += outputs.register_models(
                connection, batch.job, batch.now, is_complete=batch.outputs_are_complete
            )
    for batch in batches:
        if batch.job.spec is not batch.job_before.spec:
            jobs.save_sizes(connection, batch.job)
    decided = [
        jobs.Change(
            batch.job_before,
            lifecycle.Decision(batch.job, batch.attempt, tuple(batch.events), tuple(batch.phases)),
            batch.attempt_before,
        )
        for batch in batches
    ]
    return jobs.save_all(connection, decided)


def _compare(connection: sa.Connection, batches: Sequence[_Batch]) -> None:
    """Stop jobs of arrays whose scores are not among the better half."""
    scores = [score for batch in batches for score in batch.scores]
    if not scores:
        return
    known = arrays.save_scores(connection, scores)
    for batch in batches:
        for score in batch.scores:
            if batch.attempt.state is AttemptState.ENDED:
                break
            values = known[score.array_id, score.step]
            batch.job, event = early_stop.stopped(batch.job, score, values, batch.now)
            batch.events += [] if event is None else [event]


def _store_lines(connection: sa.Connection, batches: Sequence[_Batch], policies: Policies) -> None:
    printed = [NewLines(batch.job.id, batch.job.project, _numbered_lines(batch)) for batch in batches]
    dropped = store_lines(connection, printed, policies)
    for batch in batches:
        count = dropped.get(batch.job.id, 0)
        if count and not batch.attempt.dropped_lines:
            most = policies.limits_of(batch.job.project).log_lines
            message = (
                f"the project {batch.job.project} has {most} log lines, as many as it may: from now on the oldest lines"
                f" of this job are deleted for each new one, but for its newest {LINES_LEFT}"
            )
            batch.append_event(
                batch.now,
                "attempt.logs_over_limit",
                message,
                {"limit": most, "project": batch.job.project},
            )
        batch.attempt = replace(batch.attempt, dropped_lines=batch.attempt.dropped_lines + count)


def _numbered_lines(batch: _Batch) -> list[dict[str, Any]]:
    first = batch.job_before.log_seq + 1
    rows = [{"job_id": batch.job.id, "seq": seq, **line} for seq, line in enumerate(batch.lines, start=first)]
    if rows:
        batch.job = replace(batch.job, log_seq=batch.job_before.log_seq + len(rows))
    return rows


def _store_checkpoints(connection: sa.Connection, batches: Sequence[_Batch]) -> None:
    if not batches:
        return
    lists = {batch.job.id: (batch.attempt, batch.listed) for batch in batches if batch.listed is not None}
    if lists:
        events = checkpoints.replace_lists(connection, lists, batches[0].now)
        for batch in batches:
            batch.events += events.get(batch.job.id, [])
    changes = [(batch.job.id, step, row) for batch in batches for step, row in batch.checkpoints.items()]
    added = [{"job_id": job_id, "step": step, **row} for job_id, step, row in changes if row is not None]
    checkpoints.add(connection, added)
    checkpoints.remove(connection, [(job_id, step) for job_id, step, row in changes if row is None])
    newest = checkpoints.newest_steps(connection, [batch.job.id for batch in batches])
    for batch in batches:
        batch.job = replace(batch.job, checkpoint_step=newest.get(batch.job.id))

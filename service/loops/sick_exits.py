"""Ends of attempts on GPUs wait until it is known whether a node of theirs is sick, and are its fault then.

They wait with their driver, which hands out a record until it is stored; and in the row of the attempt, for the driver
may be lost meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from remora.process_log import about
from remora.states import EndReason
from service.loops.live_attempts import JobAttempt, LiveAttempts
from service.loops.tick import Tick
from service.queue import driver_records, lifecycle
from service.queue.rows import AttemptRow, JobRow
from service.queue.sick_exits import LEAVES_S, GpuEnd, is_held, nodes_of, sick_node
from service.store import nodes
from service.store.jobs import Decide
from trainers.plan import DriverGone, Record

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JudgedEnds:
    """What is stored now, and which attempts are over without it."""

    #: By the ids of attempts.
    records: Mapping[str, Sequence[Record]]
    #: Attempts whose end waits for a report, and what is to be remembered of those that have begun to wait.
    held: frozenset[str] = frozenset()
    begun: Mapping[str, Decide] = field(default_factory=dict)


def ends_of_lost_drivers(
    live: LiveAttempts, answers: Mapping[str, Sequence[Record] | DriverGone]
) -> dict[str, Sequence[Record] | DriverGone]:
    """The answers, with the ends that wait in place of the loss of the drivers that had reported them."""
    found = dict(answers)
    for _, attempt in live.pairs():
        end = attempt.held_end
        if end is not None and isinstance(answers.get(attempt.id), DriverGone):
            seq = attempt.last_record_seq + 1
            found[attempt.id] = [Record(seq=seq, at=end["at"], kind="ended", body=end["body"])]
    return found


def judge_ends(tick: Tick, live: LiveAttempts, records: Mapping[str, Sequence[Record]]) -> JudgedEnds:
    """Which records are to be stored now."""
    judged, held, begun = dict(records), set(), dict[str, Decide]()
    pairs = {attempt.id: (job, attempt) for job, attempt in live.pairs()}
    ends = {
        one: end
        for one, said in records.items()
        if one in pairs and (end := _end_of(pairs[one], said, tick.now))
    }
    if not ends:
        return JudgedEnds(judged)
    rows = tick.load(
        lambda connection: nodes.current_nodes(connection, tick.cluster, tick.now - 2 * LEAVES_S)
    )
    sick = {row.address: row for row in rows if row.address is not None and row.sick_since is not None}
    since = {address: row.sick_since for address, row in sick.items() if row.sick_since is not None}
    for attempt_id, end in ends.items():
        said = records[attempt_id]
        if (address := sick_node(end, since)) is not None:
            why = sick[address].message or "its agent says no more"
            text = f"{end.message.rstrip('.')}; its node {address} is sick: {why}"
            log.warning("an attempt ended because node %s is sick", address, extra=about(attempt=attempt_id))
            body = {**said[-1].body, "end_reason": EndReason.NODE_LOST.value, "message": text}
            judged[attempt_id] = [*said[:-1], replace(said[-1], body=body)]
        elif tick.settings.nodes_have_agents and is_held(end, tick.now):
            judged[attempt_id] = _before_the_end(said)
            held.add(attempt_id)
            if pairs[attempt_id][1].held_end is None:
                begun[attempt_id] = _hold(said[-1])
    return JudgedEnds(judged, frozenset(held), begun)


def _hold(end: Record) -> Decide:
    body = driver_records.read(end).model_dump(mode="json")

    def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
        return None if attempt.ended_at is not None else lifecycle.hold_end(job, attempt, end.at, body)

    return decide


def _before_the_end(records: Sequence[Record]) -> Sequence[Record]:
    """Those before the report that the workers are gone, with which an end begins: it would forget their nodes."""
    said = records[:-1]
    if said and said[-1].kind == "progress" and said[-1].body.get("workers") == {}:
        return said[:-1]
    return said


def _end_of(pair: JobAttempt, records: Sequence[Record], now: float) -> GpuEnd | None:
    job, attempt = pair
    is_asked = attempt.stop_reason is not None or job.cancel_requested_at is not None
    if not records or records[-1].kind != "ended" or is_asked or not job.worker_resources.get("GPU"):
        return None
    said = driver_records.read(records[-1])
    if not isinstance(said, driver_records.AttemptEndRecord):
        return None
    reported = [
        one.workers
        for record in records
        if isinstance(one := driver_records.read(record), driver_records.ProgressRecord) and one.workers
    ]
    # A driver's clock may be ahead.
    at = min(records[-1].at, now)
    return GpuEnd(
        said.end_reason, said.message or said.end_reason.value, at, nodes_of(attempt.workers, reported)
    )

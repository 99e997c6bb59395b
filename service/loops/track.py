"""Follow the attempts that live: hear what their drivers tell, and stop those that must stop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from remora.states import EndReason
from service.loops.launching import Launching, end
from service.loops.ports import Launcher
from service.loops.turn import Turn
from service.queue import lifecycle
from service.queue.domains import is_lost
from service.queue.limits import budget_of
from service.queue.rows import AttemptRow, JobRow
from service.store import jobs as store
from service.store import ledger
from service.store import nodes as node_store
from service.store.ingest import ingest
from trainers.plan import DriverGone, Record

log = logging.getLogger(__name__)

#: Seconds between the wish that an attempt ends and its being killed.
STOP_GRACE_S = 10.0


def track(turn: Turn, launching: Launching, launcher: Launcher) -> None:
    """Take in what is new about every attempt that lives.  Raises Fenced."""
    # 1. Load.
    live = turn.load(store.live_attempts)
    # 2. Launch: a driver has not said that it has its plan, and the controller that started it may be dead.
    launched = [attempt for _, attempt in live if attempt.launched_at is not None]
    for job, attempt in live:
        is_wanted = attempt.launched_at is None and job.cancel_requested_at is None
        if is_wanted and launching.launch(turn, launcher, job, attempt):
            launched.append(attempt)
    launching.forget_others(attempt.id for _, attempt in live)
    # 3. Ask, and store the answers.
    for attempt, answer in _poll(launcher, launched):
        if isinstance(answer, DriverGone):
            end(turn, attempt, answer.reason, answer.message)
        elif answer:
            _store(turn, attempt, answer)
    # 4. Stop what must stop; what was just stored may have ended it already.
    live = turn.load(store.live_attempts)
    spent, cast_out = _spent(turn, [job for job, _ in live]), _cast_out(turn, [one for _, one in live])
    for job, attempt in live:
        reason = _must_stop(job, attempt, spent.get(job.id, 0.0), turn.now)
        if reason is None and attempt.id in cast_out:
            reason = EndReason.NODE_LOST
        if reason is not None:
            _stop(turn, launcher, job, attempt, reason)


def _poll(
    launcher: Launcher, attempts: list[AttemptRow]
) -> list[tuple[AttemptRow, Sequence[Record] | DriverGone]]:
    if not attempts:
        return []
    after = {attempt.id: attempt.last_record_seq for attempt in attempts}
    try:
        answers = launcher.poll(list(after), after)
    except Exception as error:
        log.warning("the drivers cannot be asked: %s", error)
        return []
    return [(attempt, answers[attempt.id]) for attempt in attempts if attempt.id in answers]


def _store(turn: Turn, attempt: AttemptRow, new: Sequence[Record]) -> None:
    def work(connection: sa.Connection) -> AttemptRow | None:
        return ingest(connection, turn.lease, attempt.id, new, turn.now)

    turn.database.transact(work)


def _spent(turn: Turn, jobs: Sequence[JobRow]) -> Mapping[str, float]:
    """USD that those of the jobs have spent that have a budget."""
    limited = [job.id for job in jobs if budget_of(job.spec) is not None]
    return turn.load(lambda connection: ledger.spent(connection, limited, turn.now)) if limited else {}


def _cast_out(turn: Turn, attempts: Sequence[AttemptRow]) -> set[str]:
    """Attempts whose fabric domain is lost: they could never have workers again, and another attempt could."""
    bound = [one for one in attempts if one.fabric is not None]
    nodes = turn.load(lambda connection: node_store.current_nodes(connection, turn.now)) if bound else []
    return {one.id for one in bound if is_lost(one, nodes)}


def _must_stop(job: JobRow, attempt: AttemptRow, spent: float, now: float) -> EndReason | None:
    if attempt.stop_reason is not None:
        return attempt.stop_reason
    if job.cancel_requested_at is not None:
        return EndReason.CANCELLED
    budget = budget_of(job.spec)
    if budget is not None and spent >= budget:
        return EndReason.BUDGET_SPENT
    if job.run_time_s is not None and attempt.started_at is not None:
        trained_s = job.trained_s + now - attempt.started_at
        return EndReason.RUN_TIME_EXCEEDED if trained_s > job.run_time_s else None
    return None


def _stop(turn: Turn, launcher: Launcher, job: JobRow, attempt: AttemptRow, reason: EndReason) -> None:
    if attempt.launched_at is None:
        end(turn, attempt, reason, lifecycle.why_stopped(job, reason))
        return
    overdue = attempt.stop_requested_at is not None and turn.now - attempt.stop_requested_at > STOP_GRACE_S
    try:
        if not overdue:
            # Also when that was written down already: who sent it may have died before it was gone.
            launcher.stop(attempt.id, reason)
        else:
            log.warning("attempt %s did not end within %g s and is killed", attempt.id, STOP_GRACE_S)
            launcher.kill(attempt.id)
    except Exception as error:
        log.warning("attempt %s cannot be stopped, it is tried again: %s", attempt.id, error)
        if attempt.stop_requested_at is not None:
            return
    if attempt.stop_requested_at is None:
        _write_stop(turn, attempt, reason)
    elif overdue:
        end(turn, attempt, reason, lifecycle.why_stopped(job, reason))


def _write_stop(turn: Turn, attempt: AttemptRow, reason: EndReason) -> None:
    def work(connection: sa.Connection) -> None:
        job = store.lock_job(connection, attempt.job_id)
        current = store.get_attempt(connection, attempt.id)
        if job is not None and current is not None and current.ended_at is None:
            decision = lifecycle.request_stop(job, current, reason, turn.now)
            store.save(connection, job, decision, current)

    turn.apply(work)

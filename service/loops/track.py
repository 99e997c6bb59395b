"""Follow the attempts that live: hear what their drivers tell, and stop those that must stop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum

from cluster.policies.policies import BudgetStep
from remora.states import AttemptState, EndReason
from service.loops.launching import Launching
from service.loops.live import Live
from service.loops.ports import Launcher
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.domains import is_lost
from service.queue.limits import budget_of
from service.queue.rows import AttemptRow, JobRow
from service.store import jobs as store
from service.store import ledger
from service.store import nodes as node_store
from trainers.plan import DriverGone, Record

log = logging.getLogger(__name__)

#: Seconds between the wish that an attempt ends and its being killed.
STOP_GRACE_S = 10.0
#: The same for one that has no workers any more, and may still be storing their last checkpoint: nobody waits for it.
EVICTION_GRACE_S = 300.0
#: Seconds after which an attempt that never had workers is taken for one whose nodes go.
_START_S = 60.0


def track(tick: Tick, live: Live, launching: Launching, launcher: Launcher) -> None:
    """Take in what is new about every attempt that lives.  Raises Fenced."""
    # 1. Launch: a driver has not said that it has its plan, and the controller that started it may be dead.
    wanted = [
        pair for pair in live.pairs() if pair[1].launched_at is None and pair[0].cancel_requested_at is None
    ]
    launching.launch(tick, live, launcher, wanted)
    launching.forget_others(attempt.id for _, attempt in live.pairs())
    # 2. Ask, and store the answers, all of them together.
    answers = _poll(launcher, [attempt for _, attempt in live.pairs() if attempt.launched_at is not None])
    gone = {one: said for one, said in answers.items() if isinstance(said, DriverGone)}
    live.take_in({one: said for one, said in answers.items() if said and not isinstance(said, DriverGone)})
    live.end({one: (said.reason, said.message) for one, said in gone.items()})
    # 3. Stop what must stop; what was just stored may have ended it already.
    _stop_all(tick, live, launcher)


def _stop_all(tick: Tick, live: Live, launcher: Launcher) -> None:
    pairs = live.pairs()
    spent, cast_out = _spent(tick, [job for job, _ in pairs]), _cast_out(tick, [one for _, one in pairs])
    asked: dict[str, store.Decide] = {}
    ends: dict[str, tuple[EndReason, str]] = {}
    for job, attempt in pairs:
        reason = _must_stop(job, attempt, spent.get(job.id, 0.0), tick.now)
        if reason is None and attempt.id in cast_out:
            reason = EndReason.NODE_LOST
        if reason is None:
            continue
        outcome = _stop(tick, launcher, attempt, reason)
        if outcome is _Stopping.ASKED:
            asked[attempt.id] = _asking(reason, tick.now)
        elif outcome is _Stopping.OVER:
            ends[attempt.id] = (reason, lifecycle.why_stopped(job, reason))
    live.change(asked)
    live.end(ends)


def _poll(launcher: Launcher, attempts: list[AttemptRow]) -> Mapping[str, Sequence[Record] | DriverGone]:
    if not attempts:
        return {}
    after = {attempt.id: attempt.last_record_seq for attempt in attempts}
    try:
        answers = launcher.poll(list(after), after)
    except Exception as error:
        log.warning("the drivers cannot be asked: %s", error)
        return {}
    return {attempt_id: answers[attempt_id] for attempt_id in after if attempt_id in answers}


def _spent(tick: Tick, jobs: Sequence[JobRow]) -> Mapping[str, float]:
    """USD that those of the jobs have spent that have a budget."""
    limited = [job.id for job in jobs if budget_of(job.spec) is not None]
    return tick.load(lambda connection: ledger.spent(connection, limited, tick.now)) if limited else {}


def _cast_out(tick: Tick, attempts: Sequence[AttemptRow]) -> set[str]:
    """Attempts whose fabric domain is lost: they could never have workers again, and another attempt could."""
    bound = [one for one in attempts if one.fabric is not None]
    nodes = tick.load(lambda connection: node_store.current_nodes(connection, tick.now)) if bound else []
    return {one.id for one in bound if is_lost(one, nodes)}


def _must_stop(job: JobRow, attempt: AttemptRow, spent: float, now: float) -> EndReason | None:
    if attempt.stop_reason is not None:
        return attempt.stop_reason
    if job.cancel_requested_at is not None:
        return EndReason.CANCELLED
    if job.budget_step is BudgetStep.PAUSE and _has_no_workers(attempt, now):
        return EndReason.EVICTED
    budget = budget_of(job.spec)
    if budget is not None and spent >= budget:
        return EndReason.BUDGET_SPENT
    if job.run_time_s is not None and attempt.started_at is not None:
        trained_s = job.trained_s + now - attempt.started_at
        return EndReason.RUN_TIME_EXCEEDED if trained_s > job.run_time_s else None
    return None


def _has_no_workers(attempt: AttemptRow, now: float) -> bool:
    """Its nodes have gone, and it waits for others; while it has workers, they make a checkpoint of their state."""
    has_begun = attempt.started_at is not None or now - attempt.created_at > _START_S
    return attempt.state is AttemptState.STARTING and has_begun


class _Stopping(Enum):
    """How far it is with an attempt that must stop."""

    ASKED = 1
    UNDER_WAY = 2
    OVER = 3


def _stop(tick: Tick, launcher: Launcher, attempt: AttemptRow, reason: EndReason) -> _Stopping:
    if attempt.launched_at is None:
        return _Stopping.OVER
    is_asked = attempt.stop_requested_at is not None
    grace_s = EVICTION_GRACE_S if reason is EndReason.EVICTED else STOP_GRACE_S
    overdue = attempt.stop_requested_at is not None and tick.now - attempt.stop_requested_at > grace_s
    try:
        if not overdue:
            # Also when that was written down already: who sent it may have died before it was gone.
            launcher.stop(attempt.id, reason)
        else:
            log.warning("attempt %s did not end within %g s and is killed", attempt.id, grace_s)
            launcher.kill(attempt.id)
    except Exception as error:
        log.warning("attempt %s cannot be stopped, it is tried again: %s", attempt.id, error)
        if is_asked:
            return _Stopping.UNDER_WAY
    if not is_asked:
        return _Stopping.ASKED
    return _Stopping.OVER if overdue else _Stopping.UNDER_WAY


def _asking(reason: EndReason, now: float) -> store.Decide:
    def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
        if attempt.ended_at is not None:
            return None
        return lifecycle.request_stop(job, attempt, reason, now)

    return decide

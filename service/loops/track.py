"""The track loop: store the records of drivers of live attempts, and stop attempts that must stop."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from cluster.policies.policies import BudgetStep
from remora.process_log import about
from remora.states import AttemptState, EndReason
from service.interfaces import Launcher
from service.loops.attempt_traces import about_attempt
from service.loops.launching import Launching
from service.loops.live_attempts import LiveAttempts
from service.loops.profiles import follow_profiles
from service.loops.sick_exits import ends_of_lost_drivers, judge_ends
from service.loops.stored_ends import with_stored_ends
from service.loops.tick import Tick
from service.queue import lifecycle, owners_changes
from service.queue.demand import is_domain_lost
from service.queue.rows import AttemptRow, JobRow
from service.store import jobs as store
from service.store import ledger
from service.store import nodes as node_store
from trainers.plan import DriverGone, Record

log = logging.getLogger(__name__)

#: Seconds between the request that an attempt stops and its being killed.
STOP_GRACE_S = 10.0
#: The same for an attempt that may still be storing the last checkpoint of its workers: without them, or being paused.
SAVING_GRACE_S = 300.0
#: Seconds after which an attempt that never had workers counts as one whose nodes have gone.
_START_S = 60.0


def track(tick: Tick, live: LiveAttempts, launching: Launching, launcher: Launcher) -> None:
    """Update every live attempt from what its driver reports.  Raises Fenced."""
    # 1. Launch drivers that have not reported that they have their plan; the controller that started them may be dead.
    wanted = [
        (job, attempt)
        for job, attempt in live.pairs()
        if attempt.launched_at is None and job.cancel_requested_at is None and job.pause_requested_at is None
    ]
    launching.launch(tick, live, launcher, wanted)
    launching.forget_others(attempt.id for _, attempt in live.pairs())
    # 2. Poll the drivers, and store all answers together.
    said = _poll(launcher, [attempt for _, attempt in live.pairs() if attempt.launched_at is not None])
    answers = with_stored_ends(tick, live, launcher, ends_of_lost_drivers(live, said))
    gone = {one: said for one, said in answers.items() if isinstance(said, DriverGone)}
    records = {one: said for one, said in answers.items() if said and not isinstance(said, DriverGone)}
    judged = judge_ends(tick, live, records)
    live.store_records({one: said for one, said in judged.records.items() if said})
    live.change(judged.begun)
    live.end({one: (said.reason, said.message) for one, said in gone.items()})
    # 3. Let drivers know how many workers their jobs may have now.
    _resize_all(tick, live, launcher)
    _request_stacks(tick, live, launcher)
    follow_profiles(tick, live, launcher)
    # 4. Stop what must stop; what was just stored may have ended it already.
    _stop_all(tick, live, launcher, judged.held)


def _resize_all(tick: Tick, live: LiveAttempts, launcher: Launcher) -> None:
    taken: dict[str, store.Decide] = {}
    for job, attempt in live.pairs():
        order = job.resized_at
        if order is None or attempt.resized_at == order or attempt.launched_at is None:
            continue
        try:
            if launcher.resize(attempt.id, job.facts.sizes, order):
                taken[attempt.id] = _sizes_taken(order, tick.now)
        except Exception as error:
            log.warning(
                "attempt %s cannot be resized, it is tried again: %s",
                attempt.id,
                error,
                extra=about_attempt(job, attempt, tick.settings),
            )
    live.change(taken)


def _sizes_taken(order: float, now: float) -> store.Decide:
    def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
        return None if attempt.ended_at is not None else owners_changes.sizes_taken(job, attempt, order, now)

    return decide


def _request_stacks(tick: Tick, live: LiveAttempts, launcher: Launcher) -> None:
    taken: dict[str, store.Decide] = {}
    for job, attempt in live.pairs():
        order = job.stacks_requested_at
        # An attempt that began after the request is not asked: what it does now is something else.
        if order is None or attempt.stacks_requested_at == order or attempt.created_at > order:
            continue
        if attempt.launched_at is None:
            continue
        try:
            if launcher.request_stacks(attempt.id, order):
                taken[attempt.id] = _stacks_taken(order)
        except Exception as error:
            log.warning(
                "attempt %s cannot be asked for stacks, it is tried again: %s",
                attempt.id,
                error,
                extra=about_attempt(job, attempt, tick.settings),
            )
    live.change(taken)


def _stacks_taken(order: float) -> store.Decide:
    def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
        return None if attempt.ended_at is not None else owners_changes.stacks_taken(job, attempt, order)

    return decide


def _stop_all(tick: Tick, live: LiveAttempts, launcher: Launcher, over: Collection[str]) -> None:
    pairs = live.pairs()
    spent, without_domain = (
        _spent(tick, [job for job, _ in pairs]),
        _without_domain(tick, [one for _, one in pairs]),
    )
    asked: dict[str, store.Decide] = {}
    ends: dict[str, tuple[EndReason, str]] = {}
    for job, attempt in pairs:
        reason = _must_stop(job, attempt, spent.get(job.id, 0.0), tick.now, is_over=attempt.id in over)
        if reason is None and attempt.id in without_domain:
            reason = EndReason.NODE_LOST
        if reason is None:
            continue
        outcome = _stop(tick, launcher, attempt, reason)
        if outcome is _Stopping.ASKED:
            asked[attempt.id] = _stop_request(reason, tick.now)
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
    """USD spent by those of the jobs that have a budget."""
    limited = [job.id for job in jobs if job.facts.budget is not None]
    return tick.load(lambda connection: ledger.spent(connection, limited, tick.now)) if limited else {}


def _without_domain(tick: Tick, attempts: Sequence[AttemptRow]) -> set[str]:
    """Attempts whose fabric domain is lost: they can have no workers any more, while another attempt could."""
    bound = [one for one in attempts if one.fabric is not None]
    if not bound:
        return set()
    nodes = tick.load(lambda connection: node_store.current_nodes(connection, tick.cluster, tick.now))
    return {one.id for one in bound if is_domain_lost(one, nodes)}


def _must_stop(
    job: JobRow, attempt: AttemptRow, spent: float, now: float, *, is_over: bool = False
) -> EndReason | None:
    """Why it has to stop; what `is_over`, and waits for a report, is not stopped for what it would use."""
    if attempt.stop_reason not in (None, EndReason.PAUSED):
        return attempt.stop_reason
    if job.cancel_requested_at is not None:
        return EndReason.CANCELLED
    if job.stopped_early is not None:
        return EndReason.STOPPED_EARLY
    if attempt.stop_reason is not None or job.pause_requested_at is not None:
        return EndReason.PAUSED
    if is_over:
        return None
    if job.budget_step is BudgetStep.PAUSE and _has_no_workers(attempt, now):
        return EndReason.EVICTED
    budget = job.facts.budget
    if budget is not None and spent >= budget:
        return EndReason.BUDGET_SPENT
    if job.run_time_s is not None and attempt.started_at is not None:
        trained_s = job.trained_s + now - attempt.started_at
        return EndReason.RUN_TIME_EXCEEDED if trained_s > job.run_time_s else None
    return None


def _has_no_workers(attempt: AttemptRow, now: float) -> bool:
    """Its nodes have gone, and it waits for others; while it has workers, they store a checkpoint."""
    has_begun = attempt.started_at is not None or now - attempt.created_at > _START_S
    return attempt.state is AttemptState.STARTING and has_begun


class _Stopping(Enum):
    """State of the stop of an attempt."""

    ASKED = 1
    UNDER_WAY = 2
    OVER = 3


def _stop(tick: Tick, launcher: Launcher, attempt: AttemptRow, reason: EndReason) -> _Stopping:
    if attempt.launched_at is None:
        return _Stopping.OVER
    is_asked = attempt.stop_requested_at is not None
    saves = reason in (EndReason.EVICTED, EndReason.PAUSED)
    grace_s = SAVING_GRACE_S if saves else STOP_GRACE_S
    overdue = attempt.stop_requested_at is not None and tick.now - attempt.stop_requested_at > grace_s
    try:
        if not overdue:
            # Also when it is recorded already: the controller may have died between the record and the request.
            launcher.stop(attempt.id, reason)
        else:
            log.warning(
                "attempt %s did not end within %g s and is killed",
                attempt.id,
                grace_s,
                extra=about(job=attempt.job_id, attempt=attempt.id),
            )
            launcher.kill(attempt.id)
    except Exception as error:
        log.warning(
            "attempt %s cannot be stopped, it is tried again: %s",
            attempt.id,
            error,
            extra=about(job=attempt.job_id, attempt=attempt.id),
        )
        if is_asked:
            return _Stopping.UNDER_WAY
    if not is_asked:
        return _Stopping.ASKED
    return _Stopping.OVER if overdue else _Stopping.UNDER_WAY


def _stop_request(reason: EndReason, now: float) -> store.Decide:
    def decide(job: JobRow, attempt: AttemptRow) -> lifecycle.Decision | None:
        if attempt.ended_at is not None:
            return None
        return lifecycle.request_stop(job, attempt, reason, now)

    return decide

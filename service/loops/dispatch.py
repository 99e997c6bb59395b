"""Start the jobs that are next in the queue and fit, and write down why the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from cluster.policies.offerings import Offering, zone_and_capacity
from cluster.policies.policies import Policies
from cluster.scheduling.fitting import as_shown
from cluster.scheduling.quotas import counts_money
from remora.states import JobState, NodeState
from service.loops.kept_nodes import load_kept_nodes, send_kept_nodes
from service.loops.launching import Launching
from service.loops.live_attempts import JobAttempt, LiveAttempts
from service.loops.planner_view import remembered_nodes
from service.loops.ports import Launcher, Supply
from service.loops.queue_order import jobs_in_order, pool_sizes
from service.loops.tick import Tick
from service.policies_in_force import policies_in_force
from service.queue import lifecycle
from service.queue.admission import Admission, Claim, PoolSize, Wait, admit
from service.queue.demand import placement_in, workers_of_jobs
from service.queue.quotas import Quotas, quotas_of
from service.queue.ready_nodes import ReadyNode
from service.queue.rows import JobRow
from service.queue.urgency import jobs_off_spot, start_up_s
from service.store import jobs as store
from service.store import ledger, spending
from service.store.ids import new_id


@dataclass(frozen=True)
class _Snapshot:
    queue: list[JobRow]
    #: Jobs that wait again and have spent their budget.
    spent: list[JobRow]
    claims: list[Claim]
    ready: list[ReadyNode]
    pools: list[PoolSize]
    quotas: Quotas | None
    #: Jobs that do not start on spot, by id.
    off_spot: frozenset[str]
    #: The job that each node is kept for, by node id.
    kept: Mapping[str, str]


def dispatch(
    tick: Tick,
    live: LiveAttempts,
    launching: Launching,
    launcher: Launcher,
    supply: Supply,
    why_short: Mapping[str, str] | None = None,
) -> None:
    """Admit what fits and launch it; `why_short` says by job id why the planner gets no nodes.  Raises Fenced."""
    with tick.deciding:
        started, kept = _decide(tick, live, supply, why_short or {})
    # 4. Act: first on groups that could grow onto nodes on which the new ones start.
    send_kept_nodes(tick, live, launcher, kept)
    # `track` learns whether the drivers have their plans.
    launching.launch(tick, live, launcher, started)


def _decide(
    tick: Tick, live: LiveAttempts, supply: Supply, why_short: Mapping[str, str]
) -> tuple[Sequence[JobAttempt], Mapping[str, str]]:
    """Admit and record what fits; returns what was started, and the job that each node is kept for."""
    # 1. Load.
    running, offerings = live.pairs(), supply.offerings()
    snapshot = tick.load(lambda connection: _load(connection, tick, running, offerings))
    for job in snapshot.spent:
        _end_spent(tick, job)
    if not snapshot.queue:
        return (), snapshot.kept
    # 2. Decide.
    pools, quotas = snapshot.pools, snapshot.quotas
    admission = admit(
        snapshot.queue,
        snapshot.claims,
        snapshot.ready,
        pools,
        quotas=quotas,
        off_spot=snapshot.off_spot,
        kept=snapshot.kept,
    )
    # 3. Apply: rows first, so that a crash before the driver runs is found and healed by `track`.
    started = _start(tick, admission)
    live.add(started)
    _tell(tick, snapshot.queue, [_explained(wait, why_short) for wait in admission.waits])
    return started, snapshot.kept


def _explained(wait: Wait, why_short: Mapping[str, str]) -> Wait:
    """Adds the planner's reason to the message of a job that waits for nodes."""
    why = why_short.get(wait.job_id)
    if why is None or wait.reason != "waiting_for_nodes" or wait.is_hopeless:
        return wait
    return replace(wait, message=f"{wait.message}: {why}")


def _load(
    connection: sa.Connection, tick: Tick, live: Sequence[JobAttempt], offerings: Sequence[Offering]
) -> _Snapshot:
    now, policies = tick.now, policies_in_force(connection, tick.settings)
    nodes = remembered_nodes(connection, policies, now)
    pools = pool_sizes(policies, as_shown(offerings, nodes), now)
    takes_s = start_up_s(nodes)
    queue = jobs_in_order(connection, policies, pools, live, now, takes_s)
    quotas = _quotas(connection, policies, live, now) if queue else None
    kept = load_kept_nodes(connection, nodes, queue, live, pools, quotas, now, takes_s)
    if not queue:
        return _Snapshot([], [], [], [], pools, None, frozenset(), kept)
    # Processes of an ended attempt may still run: its job does not start again before they have ended.
    unreleased = {attempt.job_id for attempt in store.unreleased_attempts(connection)}
    at = workers_of_jobs(nodes, [attempt for _, attempt in live])
    claims = [
        Claim(job.sizes, job.worker_resources, placement_in(job, one), job.id, at.get(job.id, {}))
        for job, one in live
    ]
    ready = [
        ReadyNode(
            node.id,
            node.pool,
            node.resources,
            *zone_and_capacity(node.offering),
            fabric=node.fabric,
            bought_for=node.bought_for,
        )
        for node in nodes
        if node.state is NodeState.READY
    ]
    spent = _have_spent(connection, queue, now)
    out = unreleased | {job.id for job in spent}
    queue = [job for job in queue if job.id not in out]
    off_spot = jobs_off_spot(queue, nodes, pools, now, takes_s)
    return _Snapshot(queue, spent, claims, ready, pools, quotas, off_spot, kept)


def _quotas(
    connection: sa.Connection, policies: Policies, live: Sequence[JobAttempt], now: float
) -> Quotas | None:
    _, by_project = spending.spent(connection, now) if counts_money(policies) else (None, {})
    return quotas_of(policies, [(job, attempt.world_size) for job, attempt in live], by_project, now)


def _have_spent(connection: sa.Connection, queue: Sequence[JobRow], now: float) -> list[JobRow]:
    """Those that have trained before and have spent all of their budget."""
    budgets = {job.id: budget for job in queue if job.attempt and (budget := job.budget) is not None}
    spent = ledger.spent(connection, budgets, now)
    return [job for job in queue if job.id in budgets and spent[job.id] >= budgets[job.id]]


def _end_spent(tick: Tick, job: JobRow) -> None:
    def work(connection: sa.Connection) -> None:
        current = store.lock_job(connection, job.id)
        if current is not None and current.state is JobState.QUEUED:
            store.save(connection, current, lifecycle.end_spent(current, tick.now))

    tick.apply(work)


def _start(tick: Tick, admission: Admission) -> list[JobAttempt]:
    """The attempts that were made."""
    if not admission.starts:
        return []

    def work(connection: sa.Connection) -> list[JobAttempt]:
        locked = store.lock_jobs(connection, admission.starts)
        waiting = [
            job
            for job_id in admission.starts
            if (job := locked.get(job_id)) is not None and job.state is JobState.QUEUED
        ]
        changes = [
            store.Change(
                job,
                lifecycle.start_attempt(
                    job,
                    new_id("att", tick.now),
                    tick.now,
                    admission.fabrics.get(job.id),
                    on_demand=job.id in admission.on_demand,
                ),
            )
            for job in waiting
        ]
        saved = store.save_all(connection, changes)
        return [
            (job, change.decision.attempt)
            for job, change in zip(saved, changes, strict=True)
            if change.decision.attempt is not None
        ]

    return tick.apply(work)


def _tell(tick: Tick, queue: Sequence[JobRow], waits: Sequence[Wait]) -> None:
    known = {job.id: (job.reason, job.message) for job in queue}
    news = {wait.job_id: wait for wait in waits if known[wait.job_id] != (wait.reason, wait.message)}
    if not news:
        return

    def work(connection: sa.Connection) -> None:
        locked = store.lock_jobs(connection, news)
        changes = [
            store.Change(job, lifecycle.wait(job, wait.reason, wait.message, tick.now))
            for job_id, wait in news.items()
            if (job := locked.get(job_id)) is not None and job.state is JobState.QUEUED
        ]
        store.save_all(connection, changes)

    tick.apply(work)

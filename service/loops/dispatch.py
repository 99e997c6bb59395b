"""Start the jobs that are next in the queue and fit, and write down why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from cluster.policies.offerings import Offering
from cluster.scheduling.actions import StartJob, Wait, WaitsFor
from cluster.scheduling.free_later import Ends
from cluster.scheduling.planner import HAS_CAPACITY
from cluster.scheduling.preparing import nodes_to_prepare
from cluster.scheduling.queue_order import WAITS_IN_QUEUE
from cluster.scheduling.quotas import Counting, counts_money
from cluster.scheduling.ray_programs import NO_PROGRAMS, Programs
from cluster.scheduling.starts import jobs_off_spot, starts
from cluster.scheduling.view import JobDemand, NodeView
from remora.states import JobState, NodeState
from service.interfaces import Launcher, Supply
from service.listening import isolation_of
from service.loops.kept_nodes import load_kept_nodes, send_kept_nodes
from service.loops.launching import Launching
from service.loops.live_attempts import JobAttempt, LiveAttempts
from service.loops.planner_view import remembered_nodes
from service.loops.tick import Tick
from service.loops.workload import Workload, load_workload
from service.policies_in_force import policies_of_cluster
from service.queue import lifecycle
from service.queue.demand import ends_at, node_view, workers_by_node
from service.queue.preflights import not_ready_yet
from service.queue.rows import JobRow
from service.store import jobs as store
from service.store import ledger, spending
from service.store.ids import new_id
from trainers.driver.nominations import NO_JOB
from trainers.environments.request import EnvironmentRequest
from trainers.plan import BuildAhead


@dataclass(frozen=True)
class _Snapshot:
    workload: Workload
    #: Jobs that wait again and have spent their budget.
    spent: Sequence[JobRow] = ()
    #: Nodes on which jobs may start.
    ready: Sequence[NodeView] = ()
    counting: Counting | None = None
    #: Jobs that do not start on spot, by id.
    off_spot: frozenset[str] = frozenset()
    #: The job that each node is kept for, by node id.
    kept: Mapping[str, str] = field(default_factory=dict)


def dispatch(
    tick: Tick,
    live: LiveAttempts,
    launching: Launching,
    launcher: Launcher,
    supply: Supply,
    why_short: Mapping[str, str] | None = None,
    programs: Programs | None = NO_PROGRAMS,
) -> None:
    """Admit what fits and launch it; `why_short` says by job id why the planner gets no nodes.

    Nothing starts on what Ray programs hold of nodes, and nothing at all while that is not known (None) and the
    policies serve them.  Raises Fenced.
    """
    with tick.deciding:
        decided = _decide(tick, live, supply, why_short or {}, programs)
    # 4. Act: first on groups that could grow onto nodes on which the new ones start.
    send_kept_nodes(tick, live, launcher, decided.kept)
    # `track` learns whether the drivers have their plans.
    launching.launch(tick, live, launcher, decided.started)
    launcher.build_ahead(decided.preparations)


@dataclass(frozen=True)
class _Decided:
    #: Jobs that were started, with their attempts.
    started: Sequence[JobAttempt] = ()
    #: The job that each node is kept for, by node id.
    kept: Mapping[str, str] = field(default_factory=dict)
    #: Environments that are built while their jobs wait.
    preparations: Sequence[BuildAhead] = ()


def _decide(
    tick: Tick, live: LiveAttempts, supply: Supply, why_short: Mapping[str, str], programs: Programs | None
) -> _Decided:
    """Admit and record what fits."""
    # 1. Load.
    running, offerings = live.pairs(), supply.offerings()
    snapshot = tick.load(lambda connection: _load(connection, tick, running, offerings, programs))
    for job in snapshot.spent:
        _end_spent(tick, job)
    workload = snapshot.workload
    if not workload.waiting:
        return _Decided(kept=snapshot.kept, preparations=_begun(tick, running))
    # 2. Decide.
    decided = starts(
        workload.waiting,
        [*workload.demands_of_running, *workload.held],
        snapshot.ready,
        workload.pools,
        counting=snapshot.counting,
        off_spot=snapshot.off_spot,
        kept=snapshot.kept,
        ends=_ends(running, tick.now),
    )
    # 3. Apply: rows first, so that a crash before the driver runs is found and healed by `track`.
    started = _start(tick, [one for one in decided if isinstance(one, StartJob)])
    live.add(started)
    _report(tick, workload.rows, [_explained(one, why_short) for one in decided if isinstance(one, Wait)])
    starting = {job.id for job, _ in started}
    waiting = [one for one in workload.waiting if one.id not in starting]
    ahead = _preparations(tick, waiting, workload.rows, snapshot.ready)
    return _Decided(started, snapshot.kept, [*ahead, *_begun(tick, [*running, *started])])


def _ends(running: Iterable[JobAttempt], now: float) -> Ends:
    """When the jobs that run are expected to end."""
    found = ((job.id, ends_at(job, attempt, now)) for job, attempt in running)
    return Ends(now, {job_id: at for job_id, at in found if at is not None})


def _begun(tick: Tick, pairs: Iterable[JobAttempt]) -> list[BuildAhead]:
    """The environments of jobs that have begun, on no node: a build that their workers may wait for goes on."""
    return [
        _build_ahead(tick, job, job.facts.environment, ())
        for job, _ in pairs
        if job.facts.environment is not None
    ]


def _preparations(
    tick: Tick, waiting: Iterable[JobDemand], rows: Mapping[str, JobRow], nodes: Sequence[NodeView]
) -> list[BuildAhead]:
    """The environments of the jobs that wait, on nodes where they may start."""
    with_environment = (one for one in waiting if rows[one.id].facts.environment is not None)
    return [
        _build_ahead(tick, rows[job.id], request, found)
        for job, found in nodes_to_prepare(with_environment, nodes)
        if (request := rows[job.id].facts.environment) is not None
    ]


def _build_ahead(tick: Tick, job: JobRow, request: EnvironmentRequest, nodes: tuple[str, ...]) -> BuildAhead:
    settings, code = tick.settings, job.facts.code
    isolation = isolation_of(settings)
    return BuildAhead(job.id, request, code, settings.storage, nodes, isolation, settings.max_processes)


def _explained(wait: Wait, why_short: Mapping[str, str]) -> Wait:
    """Adds the planner's reason to the message of the job that is next: why it has no other nodes, or when it has."""
    why = why_short.get(wait.job_id or "")
    if why is None or wait.is_hopeless:
        return wait
    if wait.waits_for is WaitsFor.NODES:
        return replace(wait, reason=f"{wait.reason}: {why}")
    # Those behind it wait in the queue, which is all that is stored of them.
    if wait.waits_for is not WaitsFor.TURN or wait.reason == WAITS_IN_QUEUE or why == HAS_CAPACITY:
        return wait
    return replace(wait, reason=f"{wait.reason}; {why}")


def _load(
    connection: sa.Connection,
    tick: Tick,
    live: Sequence[JobAttempt],
    offerings: Sequence[Offering],
    seen: Programs | None,
) -> _Snapshot:
    now, policies = tick.now, policies_of_cluster(connection, tick.settings)
    programs = NO_PROGRAMS if seen is None else seen
    rows = remembered_nodes(connection, tick.cluster, policies, now)
    workload = load_workload(
        connection, tick.cluster, policies, offerings, rows, live, now, programs=programs
    )
    busy = workers_by_node(rows, [attempt for _, attempt in live])
    nodes = programs.on(node_view(row, busy.get(row.id, {})) for row in rows if row.ended_at is None)
    is_any = bool(workload.waiting)
    paid = spending.spent(connection, now)[1] if is_any and counts_money(policies) else {}
    kept = load_kept_nodes(connection, nodes, workload, workload.counting(policies, paid) if is_any else None)
    if tick.settings.measures_nodes:
        # Also those that are kept for a job: until they are measured they are for none.
        kept = {**kept, **dict.fromkeys(not_ready_yet(rows), NO_JOB)}
    if not is_any or (seen is None and policies.ray_programs is not None):
        # Nodes may be free for this process alone, after a change of the leader or of the policies.
        return _Snapshot(replace(workload, waiting=[]), kept=kept)
    spent = _have_spent(connection, workload.rows.values(), now)
    # Processes of an ended attempt may still run: its job does not start again before they have ended.
    unreleased = {attempt.job_id for attempt in store.unreleased_attempts(connection, tick.cluster)}
    out = unreleased | {job.id for job in spent}
    workload = replace(workload, waiting=[one for one in workload.waiting if one.id not in out])
    return _Snapshot(
        workload,
        spent,
        _open_to_jobs(nodes, kept, workload),
        workload.counting(policies, paid),
        jobs_off_spot(workload.waiting, nodes, workload.pools, now, workload.start_up_s),
        kept,
    )


def _open_to_jobs(nodes: Iterable[NodeView], kept: Mapping[str, str], workload: Workload) -> list[NodeView]:
    """The ready nodes on which jobs may start: not those kept for a Ray program, to which Ray gives them at once."""
    of_programs = {one.id for one in workload.programs}
    return [node for node in nodes if node.state is NodeState.READY and kept.get(node.id) not in of_programs]


def _have_spent(connection: sa.Connection, queue: Iterable[JobRow], now: float) -> list[JobRow]:
    """Those that have trained before and have spent all of their budget."""
    limited = {job.id: job for job in queue if job.attempt and job.facts.budget is not None}
    spent = ledger.spent(connection, limited, now)
    return [
        job for job in limited.values() if job.facts.budget is not None and spent[job.id] >= job.facts.budget
    ]


def _end_spent(tick: Tick, job: JobRow) -> None:
    def work(connection: sa.Connection) -> None:
        current = store.lock_job(connection, job.id)
        if current is not None and current.state is JobState.QUEUED:
            store.save(connection, current, lifecycle.end_spent(current, tick.now))

    tick.apply(work)


def _start(tick: Tick, started: Sequence[StartJob]) -> list[JobAttempt]:
    """The attempts that were made."""
    if not started:
        return []

    def work(connection: sa.Connection) -> list[JobAttempt]:
        locked = store.lock_jobs(connection, [one.job_id for one in started])
        changes = [
            store.Change(
                job,
                lifecycle.start_attempt(
                    job, new_id("att", tick.now), tick.now, one.fabric, on_demand=one.on_demand
                ),
            )
            for one in started
            if (job := locked.get(one.job_id)) is not None and job.state is JobState.QUEUED
        ]
        saved = store.save_all(connection, changes)
        return [
            (job, change.decision.attempt)
            for job, change in zip(saved, changes, strict=True)
            if change.decision.attempt is not None
        ]

    return tick.apply(work)


def _report(tick: Tick, rows: Mapping[str, JobRow], waits: Sequence[Wait]) -> None:
    """Store why jobs wait, where that has changed."""
    news: dict[str, tuple[str, str]] = {}
    for wait in waits:
        if (row := rows.get(wait.job_id or "")) is not None and wait.waits_for is not None:
            found = (wait.waits_for, wait.reason)
            if found != (row.reason, row.message):
                news[row.id] = found
    if not news:
        return

    def work(connection: sa.Connection) -> None:
        locked = store.lock_jobs(connection, news)
        changes = [
            store.Change(job, lifecycle.wait(job, *found, tick.now))
            for job_id, found in news.items()
            if (job := locked.get(job_id)) is not None and job.state is JobState.QUEUED
        ]
        store.save_all(connection, changes)

    tick.apply(work)

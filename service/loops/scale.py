"""The scale loop: plan by rows and an observation of the cluster, write the plan to rows, and carry it out.

A node's row exists before its machine and ends after it, so a crash at any line leaves something that the next tick
finds: a row without a machine is created or ended, a machine without a row is deleted, a drain that Ray does not know
is sent again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from cluster.policies.offerings import Offering, zone_and_capacity
from cluster.policies.placement import FABRIC_LABEL, labels_of
from cluster.policies.policies import Policies
from cluster.provider import NodeRequest, ProvidedNode, Provider, ProviderError, Throttled, Unanswered
from cluster.scheduling.actions import Drain, Launch, Notice, Plan, ShowMore, Terminate, Wait
from cluster.scheduling.fitting import as_shown
from cluster.scheduling.installed_rules import load_rules
from cluster.scheduling.money import money_of, step_reached
from cluster.scheduling.planner import plan
from cluster.scheduling.queue_order import WIDTHS
from cluster.scheduling.ray_programs import NO_PROGRAMS, Programs
from cluster.scheduling.refusals import after_refusal, made_good, taken_back
from cluster.scheduling.view import ENDED, ClusterView, NodeView
from remora.process_log import about
from remora.states import NodeState
from service.interfaces import Drains, Supply
from service.loops.budget_pause import apply_budget_pause
from service.loops.cluster_events import (
    record_cluster_visible,
    record_market,
    record_quotas,
    record_rule_failure,
    record_vetoes,
)
from service.loops.explain import explain
from service.loops.observation import ClusterAccess, ClusterObservation
from service.loops.planner_view import (
    REFUSALS_S,
    Machines,
    Members,
    observed_node,
    priced_view,
    remembered_nodes,
    unpriced_view,
)
from service.loops.ray_programs import ProgramWatch, record_requests, waits_of
from service.loops.sick_nodes import drain_sick
from service.loops.tick import Tick
from service.loops.workload import Workload, load_workload, pool_sizes, with_costs
from service.policies_in_force import policies_of_cluster
from service.queue import lifecycle
from service.queue.demand import idle_since, workers_by_node
from service.queue.full_pools import kept_full
from service.queue.rows import NodeRow
from service.store import cloud, ledger, spending, totals
from service.store import jobs as job_store
from service.store import nodes as store
from service.store.ids import new_id

log = logging.getLogger(__name__)

#: Requests for machines, or for their deletion, that run in parallel.
PARALLEL_REQUESTS = 16

#: States of a node that the controller has no reason to end.
WORKING = frozenset({NodeState.JOINED, NodeState.READY})

Rows = Mapping[str, NodeRow]
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class _Requests:
    """What the cloud and Ray are asked for; rows record all of it."""

    draining: Sequence[NodeRow]
    ended: Sequence[str]
    wanted: Sequence[NodeRequest]
    rows: Rows


@dataclass(frozen=True)
class Scaled:
    """What the other loops learn of a plan."""

    #: Why jobs do not have all the nodes that they could use, by job id.
    why_short: Mapping[str, str]
    #: What Ray programs ask for and hold; None: Ray was not asked, or the policies do not serve them.
    programs: Programs | None = None


def scale(tick: Tick, access: ClusterAccess, observation: ClusterObservation, watch: ProgramWatch) -> Scaled:
    """Carry out a plan.  Raises Fenced."""
    known = tick.load(partial(cloud.get, cluster=tick.cluster))
    if known.unseen_since is not None:
        record_cluster_visible(tick, known.unseen_since)
    with tick.deciding:
        requests, waits, programs = _decide(tick, access, observation, watch)
    # 5. Send the requests: rows record all of them, whether an answer comes late or never.
    _send_requests(tick, access, observation.members, requests)
    seen = programs if observation.ray_demand is not None and watch.is_wanted else None
    return Scaled({wait.job_id: wait.reason for wait in waits if wait.job_id}, seen)


def _decide(
    tick: Tick, access: ClusterAccess, observation: ClusterObservation, watch: ProgramWatch
) -> tuple[_Requests, list[Wait], Programs]:
    """Plan, and write the plan to rows; returns the requests to send, and why more is not done."""
    machines, members = observation.machines, observation.members
    # 1. Load rows, after the observation: a machine that was observed has its row by now.
    policies, rows, workload, programs = tick.load(
        lambda connection: _load(connection, tick, access, observation, watch)
    )
    # 2. Record what was observed.
    jobs_on = workers_by_node(rows, [attempt for _, attempt in workload.running])
    for node_id, held in programs.held.items():
        jobs_on[node_id] = {**jobs_on.get(node_id, {}), held.id: 1}
    measures = tick.settings.measures_nodes and access.preflights is not None
    rows = [
        _record_observation(
            tick,
            row,
            machines,
            members,
            jobs_on.get(row.id, {}),
            measures,
            is_held=row.id in programs.leaving,
        )
        for row in rows
    ]
    rows = drain_sick(tick, rows)
    rows = _record_prices(tick, rows, access.supply)
    _record_late_refusals(tick, machines.values())
    # 3. Decide.
    observed = [observed_node(row, jobs_on.get(row.id, {}), machines, members) for row in rows]
    nodes = programs.kept_in_use(observed)
    if access.follows_policies:
        _record_reopened(tick, policies, access.supply, nodes)
        record_quotas(tick, policies, access.supply)
        record_market(tick, policies, access.supply)
        paused_until = tick.load(partial(cloud.get, cluster=tick.cluster)).paused_until
        view = priced_view(tick, policies, access.supply, workload, nodes, paused_until)
    else:
        policies = _kept_full(policies, access.supply, tick.now)
        view = unpriced_view(access.supply, workload, nodes, tick.now)
    actions, view, workload = _planned(tick, access, policies, view, workload, rows, programs)
    _record_budget_step(tick, view, policies)
    if access.follows_policies:
        apply_budget_pause(
            tick, money_of(view, policies, {offering.id: offering for offering in view.offerings})
        )
    requests = _write_down(tick, view, actions, rows, machines)
    # 4. Record why the rest is not done.
    record_vetoes(tick, actions)
    waits = [action for action in actions if isinstance(action, Wait)]
    explain(tick, [*waits, *waits_of(programs)], workload.running)
    why = {wait.job_id: wait.reason for wait in waits if wait.job_id}
    record_requests(tick, policies, programs, why, is_known=observation.ray_demand is not None)
    return requests, waits, programs


def _kept_full(policies: Policies, supply: Supply, now: float) -> Policies:
    """Each pool at its maximum, which is at most what there is of the one thing that is offered."""
    offering, *_ = supply.offerings()
    return kept_full(policies, now, offering.size, supply.quota_limits().get(offering.quota))


def _planned(
    tick: Tick,
    access: ClusterAccess,
    policies: Policies,
    view: ClusterView,
    workload: Workload,
    rows: Sequence[NodeRow],
    programs: Programs,
) -> tuple[Plan, ClusterView, Workload]:
    """The plan for as many of the waiting jobs as it can serve, and what it was made from."""
    rules = load_rules(policies.rules, partial(record_rule_failure, tick))
    actions = plan(view, policies, tick.now, rules)
    for width in WIDTHS[1:]:
        if not any(isinstance(action, ShowMore) for action in actions):
            break
        wider = partial(
            _load_jobs,
            tick=tick,
            access=access,
            policies=policies,
            rows=rows,
            programs=programs,
            width=width,
        )
        workload = tick.load(wider)
        view = replace(view, jobs=workload.demands, cut_at=workload.cut_at)
        actions = plan(view, policies, tick.now, rules)
    return actions, view, workload


def _load(
    connection: sa.Connection,
    tick: Tick,
    access: ClusterAccess,
    observation: ClusterObservation,
    watch: ProgramWatch,
) -> tuple[Policies, list[NodeRow], Workload, Programs]:
    """Policies, nodes and jobs, and what Ray programs ask for and hold."""
    policies = policies_of_cluster(connection, tick.settings)
    rows = remembered_nodes(connection, tick.cluster, policies, tick.now)
    asked = observation.ray_demand
    if watch.serves(asked, policies) and asked is not None:
        offerings = as_shown(access.supply.offerings(), rows)
        programs = watch.look(
            asked,
            policies,
            [observed_node(row, {}, observation.machines, observation.members) for row in rows],
            pool_sizes(policies, offerings, tick.now),
            offerings,
            tick.now,
        )
    else:
        programs = NO_PROGRAMS
    return policies, rows, _load_jobs(connection, tick, access, policies, rows, programs), programs


def _load_jobs(
    connection: sa.Connection,
    tick: Tick,
    access: ClusterAccess,
    policies: Policies,
    rows: Sequence[NodeRow],
    programs: Programs,
    width: int = 1,
) -> Workload:
    """The jobs, without those that wait where nodes cost nothing, because pools are kept full there."""
    running = job_store.live_attempts(connection, tick.cluster)
    workload = Workload(now=tick.now, running=running, held=tuple(programs.held.values()))
    if access.follows_policies:
        offerings = access.supply.offerings()
        workload = load_workload(
            connection, tick.cluster, policies, offerings, rows, running, tick.now, width, programs
        )
    return with_costs(connection, workload)


def _write_down(
    tick: Tick, view: ClusterView, actions: Plan, rows: Sequence[NodeRow], machines: Machines
) -> _Requests:
    """Record in rows all that will be requested; returns the requests."""
    by_id = {row.id: row for row in rows}
    offerings = {offering.id: offering for offering in view.offerings}
    payers = {job.id: job.project for job in view.jobs if job.is_program}
    ended = _orphans(tick, machines, by_id)
    ending = {action.node_id for action in actions if isinstance(action, Terminate)}
    wanted = [
        _request(row, offerings.get(row.offering))
        for row in rows
        if row.state is NodeState.REQUESTED and row.id not in machines and row.id not in ending
    ]
    draining = [row for row in rows if row.state is NodeState.DRAINING and row.id not in ending]
    for action in actions:
        match action:
            case Terminate():
                _terminate(tick, by_id[action.node_id], action, machines)
                ended.extend({action.node_id} & machines.keys())
            case Drain():
                draining.append(_begin_drain(tick, by_id[action.node_id], action))
            case Notice():
                _notify_owner(tick, action)
            case Launch():
                payer = payers.get(action.job_id or "")
                row = _insert(tick, action, offerings[action.offering], payer)
                by_id[row.id] = row
                wanted.append(_request(row, offerings[action.offering], action.labels))
    return _Requests(draining, ended, wanted, by_id)


def _send_requests(tick: Tick, access: ClusterAccess, members: Members, requests: _Requests) -> None:
    """Send drains to Ray, and deletions and launches to the cloud; returns when all are answered."""
    _drain(tick, access.drains, requests.draining, members)
    if access.follows_policies:
        # Local nodes end at once when they are deleted, so they need no drain.
        _drain_discarded(tick, access.drains, requests.rows.values(), members)
    in_parallel = PARALLEL_REQUESTS if access.follows_policies else 1
    ended = _withheld(tick, access, requests)
    _in_parallel("delete", partial(_delete, tick, access.provider), ended, in_parallel)
    answers = _in_parallel("create", partial(_create, tick, access.provider), requests.wanted, in_parallel)
    _record_errors(tick, answers)
    for request, refusal in zip(requests.wanted, answers, strict=True):
        _record_outcome(tick, requests.rows[request.node_id], refusal)


def _record_observation(
    tick: Tick,
    row: NodeRow,
    machines: Machines,
    members: Members,
    jobs: Mapping[str, int],
    measures: bool,
    *,
    is_held: bool,
) -> NodeRow:
    """The row after the observation; `jobs` are the workers on it; `measures`: nodes are measured before work.

    `is_held`: a Ray program has something on it while it is drained.
    """
    member = members.get(row.id)
    observed = lifecycle.NodeObservation(is_provided=row.id in machines, needs_preflight=measures)
    if member is not None:
        observed = replace(
            observed,
            is_alive=member.is_alive,
            is_draining=member.is_draining,
            deadline_at=member.deadline_at,
            leaves=member.leaves,
            agent=member.agent,
            address=member.address,
            resources=member.resources,
        )
    decision = lifecycle.observe_node(row, observed, tick.now)
    is_in_use = bool(jobs) or is_held or (member is not None and member.is_in_use)
    since = idle_since(decision.node, is_in_use, tick.now)
    decision = replace(decision, node=replace(decision.node, idle_since=since))
    if decision.node == row:
        return row
    # The drain is not the controller's: those it writes down itself.
    is_loss = row.state in WORKING and decision.node.state is NodeState.DRAINING
    return _save(tick, row, decision, is_announced_loss=is_loss)


def _save(
    tick: Tick, before: NodeRow, decision: lifecycle.NodeDecision, *, is_announced_loss: bool = False
) -> NodeRow:
    def work(connection: sa.Connection) -> NodeRow:
        if is_announced_loss:
            totals.count_node_loss(connection, before, was_announced=True)
        return store.save_node(connection, before, decision)

    return tick.apply(work)


def _record_prices(tick: Tick, rows: Sequence[NodeRow], supply: Supply) -> list[NodeRow]:
    """The rows; those bought at an assumed price and not ended have the cloud's own once that was read."""
    if not any(row.is_price_assumed and row.ended_at is None for row in rows):
        return list(rows)
    read = {one.id: one.price_per_hour for one in supply.offerings() if not one.is_price_assumed}
    decided = {
        row.id: lifecycle.price_node(row, read[row.offering], tick.now)
        for row in rows
        if row.is_price_assumed and row.ended_at is None and row.offering in read
    }

    def work(connection: sa.Connection) -> list[NodeRow]:
        ledger.reprice(connection, {node_id: one.node.price_per_hour for node_id, one in decided.items()})
        return [
            store.save_node(connection, row, decided[row.id]) if row.id in decided else row for row in rows
        ]

    return tick.apply(work) if decided else list(rows)


def _record_late_refusals(tick: Tick, machines: Iterable[ProvidedNode]) -> None:
    """Record refusals that came only after the cloud had accepted a machine."""
    _record_refusals(tick, [machine.refusal for machine in machines if machine.refusal is not None])


def _record_refusals(tick: Tick, errors: Iterable[ProviderError]) -> None:
    """Record which offerings are not requested for now, and until when."""
    said = {offering: error for error in errors if _closes(error, tick.now) for offering in error.closes}
    if not said:
        return

    def work(connection: sa.Connection) -> None:
        found = spending.known_refusals(connection, tick.cluster, tick.now - REFUSALS_S)
        known = {one.offering: one for one in found}
        after = [
            after_refusal(known.get(offering), offering, error.until, str(error), tick.now)
            for offering, error in said.items()
        ]
        spending.refuse(connection, tick.cluster, [one for one in after if one != known.get(one.offering)])

    tick.apply(work)


def _record_reopened(tick: Tick, policies: Policies, supply: Supply, nodes: Sequence[NodeView]) -> None:
    """Record which refusals an operator took back, and which series of refusals a newer node has ended."""
    known = tick.load(partial(spending.known_refusals, cluster=tick.cluster, until=tick.now - REFUSALS_S))
    if not known:
        return
    sizes = {one.id: one.size for one in supply.offerings()}
    after = taken_back(known, policies, tick.load(spending.reopenings), sizes)
    changed = [one for one, before in zip(made_good(after, nodes), known, strict=True) if one != before]
    if changed:
        tick.apply(lambda connection: spending.refuse(connection, tick.cluster, changed))


def _closes(error: ProviderError | None, now: float) -> bool:
    """The error closes offerings for a while, so that other offerings are requested at the next tick."""
    return error is not None and bool(error.closes) and error.until > now


def _orphans(tick: Tick, machines: Machines, rows: Rows) -> list[str]:
    """Machines whose row has ended or never existed: no controller wants them."""
    orphans: list[str] = []
    for node_id in machines.keys() - rows.keys():
        known = tick.load(partial(store.get_node, node_id=node_id))
        if known is None or known.ended_at is not None:
            log.warning("machine %s has no living row and is deleted", node_id, extra=about(node=node_id))
            orphans.append(node_id)
    return orphans


def _withheld(tick: Tick, access: ClusterAccess, requests: _Requests) -> list[str]:
    """The nodes that may be deleted now; machines of sick ones are kept from further use before."""
    may_end = []
    for node_id in requests.ended:
        row = requests.rows.get(node_id)
        if row is not None and row.sick_since is not None:
            tick.check()
            try:
                access.withhold(node_id)
            except ProviderError as error:
                log.warning("node %s is not deleted yet: %s", node_id, error, extra=about(node=node_id))
                continue
        may_end.append(node_id)
    return may_end


def _delete(tick: Tick, provider: Provider, node_id: str) -> None:
    tick.check()
    try:
        provider.delete(node_id)
    except ProviderError as error:
        log.warning(
            "node %s cannot be deleted, it is tried again: %s", node_id, error, extra=about(node=node_id)
        )


def _begin_drain(tick: Tick, row: NodeRow, action: Drain) -> NodeRow:
    row = _save(tick, row, lifecycle.drain_node(row, action.reason, action.deadline_at, tick.now))
    log.info("node %s is drained: %s", row.id, action.reason, extra=about(node=row.id))
    return row


def _drain(tick: Tick, drains: Drains, draining: Iterable[NodeRow], members: Members) -> None:
    """Send Ray every drain that it does not know."""
    for row in draining:
        member = members.get(row.id)
        if row.deadline_at is None or member is None or not member.is_alive or member.is_draining:
            continue
        _send_drain(tick, drains, row.id, row.message or "it is to be returned", row.deadline_at)


def _drain_discarded(tick: Tick, drains: Drains, rows: Iterable[NodeRow], members: Members) -> None:
    """Drain nodes that were given up and are members of the Ray cluster while their machines still run.

    A cloud takes minutes to delete a machine, and one that could not reach the head may join within them: Ray would
    give it work that ends with the machine, and that the pool's limits do not count.
    """
    for row in rows:
        member = members.get(row.id)
        is_given_up = row.state is NodeState.TERMINATING or row.state in ENDED
        if not is_given_up or member is None or not member.is_alive or member.is_draining:
            continue
        log.info(
            "node %s is a member although it was given up, and is drained", row.id, extra=about(node=row.id)
        )
        _send_drain(tick, drains, row.id, f"it was given up: {row.message}", tick.now)


def _send_drain(tick: Tick, drains: Drains, node_id: str, reason: str, deadline_at: float) -> None:
    tick.check()
    try:
        drains.drain(node_id, reason, deadline_at)
    except Exception as error:  # whatever Ray raises; it is sent again at the next tick
        log.warning(
            "node %s cannot be drained, it is tried again: %s", node_id, error, extra=about(node=node_id)
        )


def _record_budget_step(tick: Tick, view: ClusterView, policies: Policies) -> None:
    """Record the budget step that was reached; it stays reached when forecast spending falls again."""
    step = step_reached(view, policies)
    if step is not None and step is not view.budget_step:
        tick.apply(lambda connection: spending.reach(connection, step, policies.budget.figures, tick.now))


def _notify_owner(tick: Tick, notice: Notice) -> None:
    def work(connection: sa.Connection) -> None:
        job = job_store.lock_job(connection, notice.job_id)
        if job is not None and not job.state.is_terminal and job.budget_step != notice.step:
            job_store.save(
                connection, job, lifecycle.report_budget(job, notice.message, notice.step, tick.now)
            )

    tick.apply(work)


def _terminate(tick: Tick, row: NodeRow, action: Terminate, machines: Machines) -> None:
    """Record that the node is terminated; its machine is deleted after that."""
    machine = machines.get(row.id)
    if row.ended_at is None and row.state is not NodeState.TERMINATING:
        said = f": {machine.message}" if machine is not None and machine.message else ""
        # A refusal does not slow the pool down: the next offering is requested at once.
        was_refused = machine is not None and _closes(machine.refusal, tick.now)
        is_failure = action.is_failure and not was_refused
        said = action.reason + said
        ended = lifecycle.terminate_node(row, said, is_failure, tick.now, is_cut_off=action.is_cut_off)

        def work(connection: sa.Connection) -> NodeRow:
            if machine is not None and machine.refusal is not None:
                totals.count_cloud_errors(connection, {machine.refusal.kind: 1})
            if row.state in WORKING and (machine is None or not machine.is_running):
                totals.count_node_loss(connection, row, was_announced=False)
            return store.save_node(connection, row, ended)

        saved = tick.apply(work)
        log.info("node %s is terminated: %s", row.id, saved.message, extra=about(node=row.id))


def _insert(tick: Tick, action: Launch, offering: Offering, project: str | None) -> NodeRow:
    row = NodeRow(
        id=new_id("node", tick.now),
        pool=action.pool,
        cluster=tick.cluster,
        created_at=tick.now,
        resources=dict(action.resources),
        message=action.reason,
        offering=action.offering,
        price_per_hour=offering.price_per_hour,
        is_price_assumed=offering.is_price_assumed,
        fabric=action.fabric,
        bought_for=action.job_id,
        project=project,
    )

    def work(connection: sa.Connection) -> NodeRow:
        return store.insert_node(connection, lifecycle.request_node(row))

    return tick.apply(work)


def _request(row: NodeRow, offering: Offering | None, labels: Mapping[str, str] | None = None) -> NodeRequest:
    if labels is None:
        labels = offering.labels if offering is not None else {}
    stands = labels_of(*zone_and_capacity(row.offering))
    if row.fabric is not None:
        stands[FABRIC_LABEL] = row.fabric
    return NodeRequest(
        node_id=row.id,
        pool=row.pool,
        resources=row.resources,
        labels={**labels, **stands},
        offering=row.offering or None,
        fabric=row.fabric,
    )


def _create(tick: Tick, provider: Provider, request: NodeRequest) -> ProviderError | None:
    """Request a machine; returns the error when it was refused."""
    tick.check()
    try:
        provider.create(request)
    except ProviderError as error:
        return error
    return None


def _in_parallel(
    name: str, ask: Callable[[RequestT], AnswerT], everything: Sequence[RequestT], in_parallel: int
) -> list[AnswerT]:
    """Call `ask` for each, `in_parallel` at a time, as a cloud takes seconds to answer; the answers in order."""
    if in_parallel == 1 or len(everything) <= 1:
        return [ask(one) for one in everything]
    with ThreadPoolExecutor(min(in_parallel, len(everything)), thread_name_prefix=name) as threads:
        return list(threads.map(ask, everything))


def _record_errors(tick: Tick, answers: Sequence[ProviderError | None]) -> None:
    """Count what the cloud did not do, and record until when it throttles: what it then refuses has not failed."""
    counts = Counter(answer.kind for answer in answers if answer is not None)
    if counts:
        tick.apply(partial(totals.count_cloud_errors, counts=counts))
    pauses = [
        answer.retry_after_s
        for answer in answers
        if isinstance(answer, Throttled) and not isinstance(answer, Unanswered)
    ]
    if pauses:
        until = tick.now + max(pauses)
        tick.apply(lambda connection: cloud.pause(connection, tick.cluster, until))


def _record_outcome(tick: Tick, row: NodeRow, refusal: ProviderError | None) -> None:
    """Record the outcome of a request for a machine."""
    if refusal is None:
        log.info("node %s starts", row.id, extra=about(node=row.id))
        _save(tick, row, lifecycle.observe_node(row, lifecycle.NodeObservation(is_provided=True), tick.now))
    elif isinstance(refusal, Throttled):
        log.info("node %s is asked for again later: %s", row.id, refusal, extra=about(node=row.id))
        was_asked = isinstance(refusal, Unanswered)
        delayed = lifecycle.delay_node(row, str(refusal), tick.now, was_asked=was_asked)
        if delayed.node != row:
            _save(tick, row, delayed)
    else:
        log.warning("node %s was refused: %s", row.id, refusal, extra=about(node=row.id))
        _record_refusals(tick, [refusal])
        is_failure = not _closes(refusal, tick.now)
        _save(tick, row, lifecycle.terminate_node(row, str(refusal), is_failure, tick.now))

"""Keep the cluster as the policies want it: plan by what was seen, write the plan down, and ask for it.

A node's row exists before its machine and ends after it, so a crash at any line leaves something that the next tick
finds: a row without a machine is created or ended, a machine without a row is deleted, a drain that Ray has not heard
of is told again.
"""

from __future__ import annotations

import logging
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
from cluster.scheduling.actions import Drain, Launch, Notice, Plan, Terminate, Wait
from cluster.scheduling.money import money_of, step_reached
from cluster.scheduling.planner import plan
from cluster.scheduling.refusals import after_refusal, made_good, taken_back
from cluster.scheduling.view import ENDED, ClusterView, NodeView
from remora.states import NodeState
from service.clouds.fixed_pool import kept_full
from service.loops.explain import explain
from service.loops.hold import hold
from service.loops.look import Hands, Seen
from service.loops.ports import Drains, Supply
from service.loops.quotas import note_quotas
from service.loops.seeing import (
    REFUSALS_S,
    Load,
    Machines,
    Members,
    bought_view,
    free_view,
    load_jobs,
    load_running,
    remembered_nodes,
    seen_node,
)
from service.loops.sight import note_seen
from service.loops.site_rules import let_through
from service.loops.tick import Tick
from service.policies_in_force import policies_in_force
from service.queue import lifecycle
from service.queue.demand import idle_since, workers_by_node
from service.queue.rows import NodeRow
from service.store import cloud, spending
from service.store import jobs as job_store
from service.store import nodes as store
from service.store.ids import new_id

log = logging.getLogger(__name__)

#: Machines that a cloud is asked for at the same time.
AT_ONCE = 16

Rows = Mapping[str, NodeRow]
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Asks:
    """What is to be asked of the cloud and of Ray; all of it stands in rows."""

    draining: Sequence[NodeRow]
    ended: Sequence[str]
    wanted: Sequence[NodeRequest]
    rows: Rows


def scale(tick: Tick, hands: Hands, seen: Seen) -> Mapping[str, str]:
    """Do what the planner says; why jobs have not all the nodes that they could use, by job id.  Raises Fenced."""
    known = tick.load(cloud.get)
    if known.unseen_since is not None:
        note_seen(tick, known.unseen_since)
    with tick.deciding:
        asks, waits = _decide(tick, hands, seen)
    # 5. Ask for it: all that is asked for stands in rows, whenever an answer comes, or none.
    _ask(tick, hands, seen.members, asks)
    return {wait.job_id: wait.reason for wait in waits if wait.job_id}


def _decide(tick: Tick, hands: Hands, seen: Seen) -> tuple[_Asks, list[Wait]]:
    """Plan, and write the plan down; what is to be asked for, and why more is not done."""
    machines, members = seen.machines, seen.members
    # 1. Load, after looking: a machine that was seen has its row by now.
    policies, rows, load = tick.load(lambda connection: _load(connection, tick, hands))
    # 2. Write down what was seen.
    jobs_on = workers_by_node(rows, [attempt for _, attempt in load.running])
    rows = [_observe(tick, row, machines, members, jobs_on.get(row.id, {})) for row in rows]
    _learn_refusals(tick, machines.values())
    # 3. Decide, and hear the operators' own rules.
    nodes = [seen_node(row, jobs_on.get(row.id, {}), machines, members) for row in rows]
    if hands.follows_policies:
        _take_back(tick, policies, hands.supply, nodes)
        note_quotas(tick, policies, hands.supply)
        paused_until = tick.load(cloud.get).paused_until
        view = bought_view(tick, policies, hands.supply, load, nodes, paused_until)
    else:
        policies = kept_full(policies, tick.now)
        view = free_view(hands.supply, load, nodes, tick.now)
    actions = plan(view, policies, tick.now)
    _keep_step(tick, view, policies)
    if hands.follows_policies:
        hold(tick, money_of(view, policies, {offering.id: offering for offering in view.offerings}))
    asks, vetoed = _write_down(tick, policies, view, actions, rows, machines)
    # 4. Say why the rest is not done.
    waits = [*(action for action in actions if isinstance(action, Wait)), *vetoed]
    explain(tick, waits, load.running)
    return asks, waits


def _load(connection: sa.Connection, tick: Tick, hands: Hands) -> tuple[Policies, list[NodeRow], Load]:
    """The jobs that count are among it: those that wait are no reason for a node where nodes cost nothing."""
    policies = policies_in_force(connection, tick.settings)
    rows = remembered_nodes(connection, policies, tick.now)
    if hands.follows_policies:
        return policies, rows, load_jobs(connection, policies, hands.supply, rows, tick.now)
    return policies, rows, load_running(connection, tick.now)


def _write_down(
    tick: Tick,
    policies: Policies,
    view: ClusterView,
    actions: Plan,
    rows: Sequence[NodeRow],
    machines: Machines,
) -> tuple[_Asks, list[Wait]]:
    """Everything that is to be asked for, in rows; and why launches are not made after all."""
    by_id = {row.id: row for row in rows}
    offerings = {offering.id: offering for offering in view.offerings}
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
                _tell(tick, action)
    wished = [action for action in actions if isinstance(action, Launch)]
    through, vetoed = let_through(tick, policies, view, wished)
    for launch in through:
        row = _insert(tick, launch, offerings[launch.offering])
        by_id[row.id] = row
        wanted.append(_request(row, offerings[launch.offering], launch.labels))
    return _Asks(draining, ended, wanted, by_id), vetoed


def _ask(tick: Tick, hands: Hands, members: Members, asks: _Asks) -> None:
    """Tell Ray of drains, and ask the cloud for deletions and machines; it may take its time."""
    _drain(tick, hands.drains, asks.draining, members)
    if hands.follows_policies:
        # A process of this machine is gone once it was deleted.
        _turn_away(tick, hands.drains, asks.rows.values(), members)
    at_once = AT_ONCE if hands.follows_policies else 1
    _at_once("delete", partial(_delete, tick, hands.provider), asks.ended, at_once)
    answers = _at_once("create", partial(_create, tick, hands.provider), asks.wanted, at_once)
    _hold_back(tick, answers)
    for request, refusal in zip(asks.wanted, answers, strict=True):
        _settle(tick, asks.rows[request.node_id], refusal)


def _observe(
    tick: Tick, row: NodeRow, machines: Machines, members: Members, jobs: Mapping[str, int]
) -> NodeRow:
    """The row after what was seen; `jobs` are the workers on it."""
    member = members.get(row.id)
    seen = lifecycle.SeenNode(is_provided=row.id in machines)
    if member is not None:
        seen = replace(
            seen,
            is_alive=member.is_alive,
            is_draining=member.is_draining,
            deadline_at=member.deadline_at,
            leaves=member.leaves,
            agent=member.agent,
            address=member.address,
            resources=member.resources,
        )
    decision = lifecycle.observe_node(row, seen, tick.now)
    is_in_use = bool(jobs) or (member is not None and member.is_in_use)
    since = idle_since(decision.node, is_in_use, tick.now)
    decision = replace(decision, node=replace(decision.node, idle_since=since))
    return _save(tick, row, decision) if decision.node != row else row


def _save(tick: Tick, before: NodeRow, decision: lifecycle.NodeDecision) -> NodeRow:
    def work(connection: sa.Connection) -> NodeRow:
        return store.save_node(connection, before, decision)

    return tick.apply(work)


def _learn_refusals(tick: Tick, machines: Iterable[ProvidedNode]) -> None:
    """What the cloud said only after it had accepted a machine."""
    _refused(tick, [machine.refusal for machine in machines if machine.refusal is not None])


def _refused(tick: Tick, errors: Iterable[ProviderError]) -> None:
    """Remember which offerings need not be asked for, and until when."""
    said = {offering: error for error in errors if _closes(error, tick.now) for offering in error.closes}
    if not said:
        return

    def work(connection: sa.Connection) -> None:
        found = spending.known_refusals(connection, tick.now - REFUSALS_S)
        known = {one.offering: one for one in found}
        after = [
            after_refusal(known.get(offering), offering, error.until, str(error), tick.now)
            for offering, error in said.items()
        ]
        spending.refuse(connection, [one for one in after if one != known.get(one.offering)])

    tick.apply(work)


def _take_back(tick: Tick, policies: Policies, supply: Supply, nodes: Sequence[NodeView]) -> None:
    """Write down which refusals an operator took back since, and which rows of them a newer node has ended."""
    known = tick.load(lambda connection: spending.known_refusals(connection, tick.now - REFUSALS_S))
    if not known:
        return
    sizes = {one.id: one.size for one in supply.offerings()}
    after = taken_back(known, policies, tick.load(spending.reopenings), sizes)
    changed = [one for one, before in zip(made_good(after, nodes), known, strict=True) if one != before]
    if changed:
        tick.apply(lambda connection: spending.refuse(connection, changed))


def _closes(error: ProviderError | None, now: float) -> bool:
    """It says which offerings need not be asked for, so that something else is asked for at the next tick."""
    return error is not None and bool(error.closes) and error.until > now


def _orphans(tick: Tick, machines: Machines, rows: Rows) -> list[str]:
    """Machines whose row ended long ago or never was: whoever holds the lease, nobody wants them."""
    orphans: list[str] = []
    for node_id in machines.keys() - rows.keys():
        known = tick.load(partial(store.get_node, node_id=node_id))
        if known is None or known.ended_at is not None:
            log.warning("machine %s has no living row and is deleted", node_id)
            orphans.append(node_id)
    return orphans


def _delete(tick: Tick, provider: Provider, node_id: str) -> None:
    tick.check()
    try:
        provider.delete(node_id)
    except ProviderError as error:
        log.warning("node %s cannot be deleted, it is tried again: %s", node_id, error)


def _begin_drain(tick: Tick, row: NodeRow, action: Drain) -> NodeRow:
    row = _save(tick, row, lifecycle.drain_node(row, action.reason, action.deadline_at, tick.now))
    log.info("node %s is drained: %s", row.id, action.reason)
    return row


def _drain(tick: Tick, drains: Drains, draining: Iterable[NodeRow], members: Members) -> None:
    """Tell Ray of every drain that it has not heard of."""
    for row in draining:
        member = members.get(row.id)
        if row.deadline_at is None or member is None or not member.is_alive or member.is_draining:
            continue
        _tell_ray(tick, drains, row.id, row.message or "it is to be returned", row.deadline_at)


def _turn_away(tick: Tick, drains: Drains, rows: Iterable[NodeRow], members: Members) -> None:
    """Nodes that were given up, and are members while their machines still run, are told to take no work.

    A cloud takes minutes to delete a machine, and one that could not reach the head may join within them: Ray would
    give it work that ends with the machine, and which the pool's limits do not know of.
    """
    for row in rows:
        member = members.get(row.id)
        is_given_up = row.state is NodeState.TERMINATING or row.state in ENDED
        if not is_given_up or member is None or not member.is_alive or member.is_draining:
            continue
        log.info("node %s is a member although it was given up, and is told to take no work", row.id)
        _tell_ray(tick, drains, row.id, f"it was given up: {row.message}", tick.now)


def _tell_ray(tick: Tick, drains: Drains, node_id: str, reason: str, deadline_at: float) -> None:
    tick.check()
    try:
        drains.drain(node_id, reason, deadline_at)
    except Exception as error:  # whatever Ray raises; it is told again at the next tick
        log.warning("node %s cannot be drained, it is tried again: %s", node_id, error)


def _keep_step(tick: Tick, view: ClusterView, policies: Policies) -> None:
    """Remember how far the budget was reached, which less money on its way than now does not undo."""
    step = step_reached(view, policies)
    if step is not None and step is not view.budget_step:
        tick.apply(lambda connection: spending.reach(connection, step, policies.budget.figures, tick.now))


def _tell(tick: Tick, notice: Notice) -> None:
    def work(connection: sa.Connection) -> None:
        job = job_store.lock_job(connection, notice.job_id)
        if job is not None and not job.state.is_terminal and job.budget_step != notice.step:
            job_store.save(connection, job, lifecycle.tell_budget(job, notice.message, notice.step, tick.now))

    tick.apply(work)


def _terminate(tick: Tick, row: NodeRow, action: Terminate, machines: Machines) -> None:
    """Write down that it goes; its machine is deleted after that."""
    machine = machines.get(row.id)
    if row.ended_at is None and row.state is not NodeState.TERMINATING:
        said = f": {machine.message}" if machine is not None and machine.message else ""
        # A pool is not slowed down by what the cloud has none of: the next offering is asked for at once.
        was_refused = machine is not None and _closes(machine.refusal, tick.now)
        is_failure = action.is_failure and not was_refused
        said = action.reason + said
        ended = lifecycle.terminate_node(row, said, is_failure, tick.now, is_cut_off=action.is_cut_off)
        row = _save(tick, row, ended)
        log.info("node %s is terminated: %s", row.id, row.message)


def _insert(tick: Tick, action: Launch, offering: Offering) -> NodeRow:
    row = NodeRow(
        id=new_id("node", tick.now),
        pool=action.pool,
        created_at=tick.now,
        resources=dict(action.resources),
        message=action.reason,
        offering=action.offering,
        price_per_hour=offering.price_per_hour,
        fabric=action.fabric,
        bought_for=action.job_id,
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
    """Ask for a machine; what it was refused with."""
    tick.check()
    try:
        provider.create(request)
    except ProviderError as error:
        return error
    return None


def _at_once(
    name: str, ask: Callable[[Asked], Answer], everything: Sequence[Asked], at_once: int
) -> list[Answer]:
    """Ask the provider for each, so many at once, as a cloud takes seconds for each answer; the answers in order."""
    if at_once == 1 or len(everything) <= 1:
        return [ask(one) for one in everything]
    with ThreadPoolExecutor(min(at_once, len(everything)), thread_name_prefix=name) as threads:
        return list(threads.map(ask, everything))


def _hold_back(tick: Tick, answers: Iterable[ProviderError | None]) -> None:
    """Remember until when the cloud does not want to be asked, so that what it was not asked for has not failed."""
    pauses = [
        answer.retry_after_s
        for answer in answers
        if isinstance(answer, Throttled) and not isinstance(answer, Unanswered)
    ]
    if pauses:
        until = tick.now + max(pauses)
        tick.apply(lambda connection: cloud.pause(connection, until))


def _settle(tick: Tick, row: NodeRow, refusal: ProviderError | None) -> None:
    """Write down what became of the wish for a machine."""
    if refusal is None:
        log.info("node %s starts", row.id)
        _save(tick, row, lifecycle.observe_node(row, lifecycle.SeenNode(is_provided=True), tick.now))
    elif isinstance(refusal, Throttled):
        log.info("node %s is asked for again later: %s", row.id, refusal)
        was_asked = isinstance(refusal, Unanswered)
        delayed = lifecycle.delay_node(row, str(refusal), tick.now, was_asked=was_asked)
        if delayed.node != row:
            _save(tick, row, delayed)
    else:
        log.warning("node %s was refused: %s", row.id, refusal)
        _refused(tick, [refusal])
        is_failure = not _closes(refusal, tick.now)
        _save(tick, row, lifecycle.terminate_node(row, str(refusal), is_failure, tick.now))

"""Keep the cluster at its wished size: observe, plan, and carry the plan out.

A node's row exists before its machine and ends after it, so a crash at any line leaves something that the next tick
finds: a row without a machine is created or ended, a machine without a row is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from cluster.fixed_pools import ClusterView, Launch, PlannedNode, PoolView, Terminate, plan
from cluster.planning.limits import limits_of
from cluster.policies import Policies
from cluster.provider import NodeRequest, ProvidedNode, Provider, ProviderError, Throttled
from remora.states import NodeState
from service.fixed_pool import local_offerings
from service.loops.policies import policies_in_force
from service.loops.ports import Member, Membership
from service.loops.site_rules import let_through
from service.loops.turn import Turn
from service.queue import lifecycle
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import nodes as store
from service.store.ids import new_id

log = logging.getLogger(__name__)

#: Seconds that ended nodes stay in the planner's view, so that it slows down a pool whose nodes fail.
MEMORY_S = 900.0

Machines = Mapping[str, ProvidedNode]
Members = Mapping[str, Member]


class Unseen(Exception):
    """The provider or Ray does not say what there is."""


def pools(policies: Policies, settings: Settings, now: float) -> tuple[PoolView, ...]:
    """The node pools that the policies wish for now; local nodes cost nothing, so each is kept at its maximum."""
    (local,) = local_offerings(settings)
    return tuple(
        PoolView(name=name, size=limits_of(pool, now).max_nodes, resources=local.resources)
        for name, pool in policies.pools.items()
    )


def scale(turn: Turn, provider: Provider, membership: Membership) -> None:
    """Do what the planner says.  Raises Fenced, and Unseen with nothing done when it cannot be sure what there is."""
    # 1. Look.  What cannot be seen is not acted upon: a failed list is never an empty list.
    try:
        machines = {machine.node_id: machine for machine in provider.list()}
        members = membership.observe()
    except Exception as error:
        raise Unseen(str(error)) from error
    # 2. Load, after looking: a machine that was seen has its row by now.
    rows = turn.load(lambda connection: store.current_nodes(connection, turn.now - MEMORY_S))
    # 3. Write down what was seen.
    rows = [_observe(turn, row, machines, members) for row in rows]
    # 4. Decide, and hear the operators' own rules.
    policies = policies_in_force(turn)
    view = ClusterView(
        pools=pools(policies, turn.settings, turn.now),
        nodes=tuple(_planned(row, machines, members) for row in rows),
    )
    actions = plan(view, turn.now)
    wished = [action for action in actions if isinstance(action, Launch)]
    launches = let_through(turn, policies, rows, wished)
    # 5. Carry it out.
    by_id = {row.id: row for row in rows}
    _delete_orphans(turn, provider, machines, by_id)
    ending = {action.node_id for action in actions if isinstance(action, Terminate)}
    for row in rows:
        if row.state is NodeState.REQUESTED and row.id not in machines and row.id not in ending:
            _create(turn, provider, row)
    for action in actions:
        if isinstance(action, Terminate):
            _terminate(turn, provider, by_id[action.node_id], action, machines)
    for launch in launches:
        _launch(turn, provider, launch)


def _observe(turn: Turn, row: NodeRow, machines: Machines, members: Members) -> NodeRow:
    member = members.get(row.id)
    seen = lifecycle.SeenNode(is_provided=row.id in machines)
    if member is not None:
        seen = replace(
            seen,
            is_alive=member.is_alive,
            is_draining=member.is_draining,
            address=member.address,
            resources=member.resources,
        )
    decision = lifecycle.observe_node(row, seen, turn.now)
    return _save(turn, row, decision) if decision.node != row else row


def _save(turn: Turn, before: NodeRow, decision: lifecycle.NodeDecision) -> NodeRow:
    def work(connection: sa.Connection) -> NodeRow:
        return store.save_node(connection, before, decision)

    return turn.apply(work)


def _planned(row: NodeRow, machines: Machines, members: Members) -> PlannedNode:
    machine, member = machines.get(row.id), members.get(row.id)
    return PlannedNode(
        id=row.id,
        pool=row.pool,
        state=row.state,
        created_at=row.created_at,
        provided=machine is not None,
        is_running=machine is not None and machine.is_running,
        is_member=member is not None and member.is_alive,
        deadline_at=member.deadline_at if member is not None else None,
    )


def _delete_orphans(turn: Turn, provider: Provider, machines: Machines, rows: Mapping[str, NodeRow]) -> None:
    for node_id in machines.keys() - rows.keys():
        # Its row ended long ago or never was: whoever holds the lease, nobody wants it.
        known = turn.load(partial(store.get_node, node_id=node_id))
        if known is None or known.ended_at is not None:
            log.warning("machine %s has no living row and is deleted", node_id)
            _delete(provider, node_id)


def _delete(provider: Provider, node_id: str) -> None:
    try:
        provider.delete(node_id)
    except ProviderError as error:
        log.warning("node %s cannot be deleted, it is tried again: %s", node_id, error)


def _terminate(turn: Turn, provider: Provider, row: NodeRow, action: Terminate, machines: Machines) -> None:
    if row.ended_at is None and row.state is not NodeState.TERMINATING:
        machine = machines.get(row.id)
        said = f": {machine.message}" if machine is not None and machine.message else ""
        decision = lifecycle.terminate_node(row, action.reason + said, action.is_failure, turn.now)
        row = _save(turn, row, decision)
        log.info("node %s is terminated: %s", row.id, row.message)
    if row.id in machines:
        _delete(provider, row.id)


def _launch(turn: Turn, provider: Provider, action: Launch) -> None:
    row = NodeRow(
        id=new_id("node", turn.now),
        pool=action.pool,
        created_at=turn.now,
        resources=dict(action.resources),
        message=action.reason,
    )

    def work(connection: sa.Connection) -> NodeRow:
        return store.insert_node(connection, lifecycle.request_node(row))

    _create(turn, provider, turn.apply(work), dict(action.labels))


def _create(turn: Turn, provider: Provider, row: NodeRow, labels: dict[str, str] | None = None) -> None:
    request = NodeRequest(node_id=row.id, pool=row.pool, resources=row.resources, labels=labels or {})
    try:
        provider.create(request)
    except Throttled as error:
        log.info("node %s is asked for again later: %s", row.id, error)
        return
    except ProviderError as error:
        log.warning("node %s was refused: %s", row.id, error)
        _save(turn, row, lifecycle.terminate_node(row, str(error), True, turn.now))
        return
    log.info("node %s starts", row.id)
    _save(turn, row, lifecycle.observe_node(row, lifecycle.SeenNode(is_provided=True), turn.now))

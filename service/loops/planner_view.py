"""Builds the planner's `ClusterView` from rows and from an observation of the provider and Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from cluster.policies.policies import Policies
from cluster.provider import ProvidedNode
from cluster.scheduling.fitting import as_shown
from cluster.scheduling.health import remembered_s
from cluster.scheduling.money import leaving_time_s
from cluster.scheduling.quotas import counts_money
from cluster.scheduling.view import ClusterView, NodeView
from remora.states import NodeState
from service.interfaces import Member, Supply
from service.loops.tick import Tick
from service.loops.workload import Workload
from service.policies_in_force import policies_in_force
from service.queue.demand import node_view
from service.queue.rows import NodeRow
from service.store import nodes as node_store
from service.store import spending

#: Seconds that refusals stay in the view after their end; they show since when spot has been available again.
REFUSALS_S = 86_400.0

#: Seconds that ended nodes stay in the planner's view for the paces of pools; those that failed stay for longer.
MEMORY_S = 900.0

Machines = Mapping[str, ProvidedNode]
Members = Mapping[str, Member]


def remembered_nodes(
    connection: sa.Connection, cluster: str, policies: Policies, now: float
) -> list[NodeRow]:
    """Nodes that have not ended, and those whose end, failure or memory still counts for queue and planner."""
    return node_store.current_nodes(connection, cluster, now - MEMORY_S, now - remembered_s(policies))


def observed_node(row: NodeRow, jobs: Mapping[str, int], machines: Machines, members: Members) -> NodeView:
    """A node's row together with what the provider and Ray say about it."""
    machine, member = machines.get(row.id), members.get(row.id)
    noticed_until = member.deadline_at if member is not None else None
    return replace(
        node_view(row, jobs),
        provided=machine is not None,
        is_running=machine is not None and machine.is_running,
        is_member=member is not None and member.is_alive,
        is_in_use=member is not None and member.is_in_use,
        is_noticed=member is not None and member.is_draining,
        deadline_at=row.deadline_at if noticed_until is None else noticed_until,
    )


def unpriced_view(supply: Supply, jobs: Workload, nodes: Sequence[NodeView], now: float) -> ClusterView:
    """The view of a cluster whose nodes cost nothing."""
    return ClusterView(
        now=now,
        jobs=jobs.demands,
        nodes=tuple(nodes),
        offerings=supply.offerings(),
        quota_left=_left_beyond(nodes, supply),
    )


def priced_view(
    tick: Tick,
    policies: Policies,
    supply: Supply,
    jobs: Workload,
    nodes: Sequence[NodeView],
    paused_until: float,
) -> ClusterView:
    """The view of a cluster whose nodes cost money."""
    view = ClusterView(
        now=tick.now,
        jobs=jobs.demands,
        nodes=tuple(nodes),
        offerings=as_shown(supply.offerings(), nodes),
        refusals=tick.load(
            partial(spending.known_refusals, cluster=tick.cluster, until=tick.now - REFUSALS_S)
        ),
        reopened=tick.load(spending.reopenings),
        quota_left=_left_beyond(nodes, supply),
        paused_until=paused_until,
        strict_order=True,
        cut_at=jobs.cut_at,
        start_up_s=jobs.start_up_s,
    )
    if not _counts_money(policies):
        return view
    whole, projects = tick.load(lambda connection: spending.spent(connection, tick.now))
    step = tick.load(lambda connection: spending.budget_step(connection, policies.budget.figures, tick.now))
    rate = tick.load(lambda connection: spending.rate_elsewhere(connection, tick.cluster))
    leaving_s = 0.0
    if rate:
        leaving_s = leaving_time_s(tick.load(lambda connection: policies_in_force(connection, tick.settings)))
    return replace(
        view,
        spent=whole,
        spent_by_project=projects,
        budget_step=step,
        rate_elsewhere=rate,
        leaving_elsewhere_s=leaving_s,
    )


def _left_beyond(nodes: Sequence[NodeView], supply: Supply) -> Mapping[str, int]:
    """Units that are left of each quota once the nodes are made that the cloud has not taken an order for yet."""
    left = dict(supply.quota_left())
    waiting = [node for node in nodes if node.state is NodeState.REQUESTED and not node.provided]
    if waiting:
        offerings = {offering.id: offering for offering in supply.offerings()}
        for node in waiting:
            offering = offerings.get(node.offering)
            if offering is not None and (quota := offering.quota.lower()) in left:
                left[quota] -= offering.quota_units
    return left


def _counts_money(policies: Policies) -> bool:
    budget = policies.budget
    return budget.usd_per_day is not None or budget.usd_per_month is not None or counts_money(policies)

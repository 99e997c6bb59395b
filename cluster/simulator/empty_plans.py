"""Predicts when the planner's plan would be empty whatever jobs request, so that a replay need not call it.

Without it a replay of a crowded cluster takes a quarter longer.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.policies.offerings import CapacityType
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.scheduling.fitting import slots
from cluster.simulator.fleet import Fleet
from cluster.simulator.jobs import SimJob
from remora.states import NodeState

#: Seconds before a time of the policies from which on the planner is asked all the same: it counts in other units.
MARGIN_S = 1.0
#: What a job may ask for so that on-demand nodes are bought for it however short it has waited for spot.
INSISTENT = frozenset({CapacityRule.ON_DEMAND, CapacityRule.MIXED})


def is_plan_empty(
    fleet: Fleet,
    policies: Policies,
    now: float,
    *,
    short: Sequence[SimJob],
    waiting: Sequence[SimJob],
    is_strict: bool,
) -> bool:
    """True when nothing can be launched, and nothing has to be returned or exchanged.

    Pools have their minimum.  No job needs more than there is, or the pools have all nodes that they may have, or the
    cloud has just refused all that they may buy, or its quota is used up.  No node has failed to start, has been idle
    for long enough to be returned, or stands in for spot that is back.  `short` are jobs that run with fewer workers
    than they can use, `waiting` those that wait, in the order of the queue; with `is_strict` no job overtakes the
    first of them.  Nothing is bought for a placement that a pool does not buy without it.  It holds only for policies
    under which plans do not depend on the hour or on money.
    """
    is_wanting, is_moving = bool(short or waiting), False
    for node in fleet.idle.values():
        if node.idle_since is None or now - node.idle_since > policies.pools[node.pool].idle_s - MARGIN_S:
            return False
    changing: set[str] = set()
    for node in fleet.changing.values():
        if node.state is NodeState.LAUNCHED:
            changing.add(node.pool)
            if now - node.created_s > policies.pools[node.pool].join_timeout_s - MARGIN_S:
                return False
        else:
            if node.deadline_s is None or now > node.deadline_s - MARGIN_S:
                return False
            if node.jobs:
                # Its workers need other nodes, although they still count for their jobs.
                is_wanting = is_moving = True
            if node.stock.offering.capacity is CapacityType.ON_DEMAND:
                changing.add(node.pool)
    for name, policy in policies.pools.items():
        have = fleet.have[name]
        if not min(policy.min_nodes, policy.max_nodes) <= have <= policy.max_nodes:
            return False
        wants = is_wanting and have < policy.max_nodes
        if wants and (is_moving or not _is_refused_all(fleet, policy, now, short)):
            return False
        if wants and waiting and not _is_refused_all(fleet, policy, now, waiting):
            # No job overtakes the first one that waits, so nothing is bought for those behind it either.
            if not is_strict or _most_workers(fleet, policies, now, waiting[0]) >= waiting[0].job.min_workers:
                return False
            waiting = ()
        # A pool that changes already exchanges no node.
        if name not in changing and _may_return_to_spot(fleet, name, policy, now):
            return False
    return True


def _most_workers(fleet: Fleet, policies: Policies, now: float, sim: SimJob) -> int:
    """Most workers that the job could have: on all that is free or starts, and all that its pools could buy now."""
    worker, placement = sim.job.resources, sim.job.placement
    starting = [node for node in fleet.changing.values() if node.state is NodeState.LAUNCHED]
    most = sum(slots(node.free, worker) for node in (*fleet.with_capacity.values(), *starting))
    per_node = max(slots(stock.offering.resources, worker) for stock in fleet.market.stocks.values())
    for name, policy in policies.pools.items():
        if (not placement.pools or name in placement.pools) and not _is_refused_all(
            fleet, policy, now, [sim]
        ):
            most += per_node * max(0, policy.max_nodes - fleet.have[name])
    return most


def _is_refused_all(fleet: Fleet, policy: PoolPolicy, now: float, wanting: Sequence[SimJob]) -> bool:
    """No node can be sold to any of them now."""
    if not wanting:
        return True
    match policy.capacity:
        case CapacityRule.SPOT:
            return not fleet.may_buy(CapacityType.SPOT, now)
        case CapacityRule.ON_DEMAND:
            return not fleet.may_buy(CapacityType.ON_DEMAND, now)
        case CapacityRule.PREFER_SPOT:
            return not fleet.may_buy(CapacityType.SPOT, now) and not any(
                sim.job.placement.capacity in INSISTENT
                or sim.job.deadline_s is not None
                or now - sim.short_since > policy.patience_s - MARGIN_S
                for sim in wanting
            )
        case CapacityRule.MIXED:
            return False


def _may_return_to_spot(fleet: Fleet, pool: str, policy: PoolPolicy, now: float) -> bool:
    """Spot is back, and an on-demand node of the pool has been there for long enough to be exchanged for it."""
    after_s = policy.return_to_spot_s
    if after_s is None or not fleet.may_have(CapacityType.SPOT, now, after_s - MARGIN_S):
        return False
    return any(
        node.pool == pool and now - node.created_s > after_s - MARGIN_S for node in fleet.on_demand.values()
    )

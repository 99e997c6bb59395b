"""When the planner has nothing to do, whatever jobs wish for: its answer is known without asking it."""

from __future__ import annotations

from collections.abc import Callable

from cluster.offerings import CapacityType
from cluster.policies import CapacityRule, Policies, PoolPolicy
from cluster.simulator.fleet import Fleet
from remora.states import NodeState

#: Seconds before a time of the policies from which on the planner is asked all the same: it counts in other units.
MARGIN_S = 1.0


def is_at_rest(
    fleet: Fleet,
    policies: Policies,
    now: float,
    *,
    is_wanting: bool,
    is_any_impatient: Callable[[float], bool],
) -> bool:
    """True when nothing is or can be bought, and nothing has to be returned or exchanged.

    Pools have their minimum, and nobody wants more than there is (`is_wanting` is false), or they have the nodes that
    they may have, or the cloud has just refused all that they may buy.  No node has failed to start, was idle for long
    enough to be returned, or stands in for spot that is back.  `is_any_impatient` tells whether somebody who wants
    more may be given on-demand nodes after so many seconds of waiting, or at once, as a job's placement or deadline may
    have it; nothing else is bought for a placement that a pool does not buy without it.  It holds only for policies
    under which plans do not depend on the hour or on money.
    """
    is_moving = False
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
                # A place elsewhere is looked for its workers, although they still count for their jobs.
                is_wanting = is_moving = True
            if node.stock.offering.capacity is CapacityType.ON_DEMAND:
                changing.add(node.pool)
    for name, policy in policies.pools.items():
        have = fleet.have[name]
        if not min(policy.min_nodes, policy.max_nodes) <= have <= policy.max_nodes:
            return False
        wants = is_wanting and have < policy.max_nodes
        if wants and (is_moving or not _is_refused_all(fleet, policy, now, is_any_impatient)):
            return False
        # A pool that changes already exchanges no node.
        if name not in changing and _may_return_to_spot(fleet, name, policy, now):
            return False
    return True


def _is_refused_all(
    fleet: Fleet, policy: PoolPolicy, now: float, is_any_impatient: Callable[[float], bool]
) -> bool:
    match policy.capacity:
        case CapacityRule.SPOT:
            return not fleet.may_have(CapacityType.SPOT, now)
        case CapacityRule.ON_DEMAND:
            return not fleet.may_have(CapacityType.ON_DEMAND, now)
        case CapacityRule.PREFER_SPOT:
            is_any = is_any_impatient(policy.patience_s - MARGIN_S)
            return not fleet.may_have(CapacityType.SPOT, now) and not is_any
        case CapacityRule.MIXED:
            return False


def _may_return_to_spot(fleet: Fleet, pool: str, policy: PoolPolicy, now: float) -> bool:
    after_s = policy.return_to_spot_s
    if after_s is None or not fleet.may_have(CapacityType.SPOT, now, after_s - MARGIN_S):
        return False
    return any(
        node.pool == pool and now - node.created_s > after_s - MARGIN_S for node in fleet.on_demand.values()
    )

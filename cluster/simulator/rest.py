"""When the planner has nothing to do, whatever jobs wish for: its answer is known without asking it."""

from __future__ import annotations

from collections import Counter

from cluster.offerings import CapacityType
from cluster.policies import Policies, PoolPolicy
from cluster.simulator.fleet import Fleet
from cluster.simulator.nodes import SimNode
from remora.states import NodeState

#: Seconds before a time of the policies from which on the planner is asked all the same: it counts in other units.
MARGIN_S = 1.0


def is_at_rest(fleet: Fleet, policies: Policies, now: float) -> bool:
    """True when nothing can be bought, and nothing has to be returned or exchanged.

    All pools have the nodes that they may have, all of these are ready, none was idle for long enough to be returned,
    and none stands in for spot that is back.  It holds only for policies under which plans do not depend on the hour
    or on money.
    """
    nodes = fleet.nodes.values()
    if len(nodes) != sum(policy.max_nodes for policy in policies.pools.values()):
        return False
    have = Counter(node.pool for node in nodes)
    if any(have[name] != policy.max_nodes for name, policy in policies.pools.items()):
        return False
    if any(_may_change(node, policies.pools[node.pool], now) for node in nodes):
        return False
    return not any(_may_return_to_spot(fleet, name, policy, now) for name, policy in policies.pools.items())


def _may_change(node: SimNode, policy: PoolPolicy, now: float) -> bool:
    if node.state is not NodeState.READY:
        return True
    return node.idle_since is not None and now - node.idle_since > policy.idle_s - MARGIN_S


def _may_return_to_spot(fleet: Fleet, pool: str, policy: PoolPolicy, now: float) -> bool:
    after_s = policy.return_to_spot_s
    if after_s is None:
        return False
    has_stand_in = any(
        node.pool == pool
        and node.stock.offering.capacity is CapacityType.ON_DEMAND
        and now - node.created_s > after_s - MARGIN_S
        for node in fleet.nodes.values()
    )
    return has_stand_in and fleet.may_have_spot(now, after_s - MARGIN_S)

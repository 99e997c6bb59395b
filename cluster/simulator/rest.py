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


def is_at_rest(fleet: Fleet, policies: Policies, now: float, *, is_wanting: bool) -> bool:
    """True when nothing is or can be bought, and nothing has to be returned or exchanged.

    Either nobody wants more than there is (`is_wanting` is false) and pools have their minimum, or all pools have the
    nodes that they may have.  No node has failed to start, was idle for long enough to be returned, or stands in for
    spot that is back.  It holds only for policies under which plans do not depend on the hour or on money.
    """
    nodes = fleet.nodes.values()
    have = Counter(node.pool for node in nodes if node.state is not NodeState.DRAINING)
    for name, policy in policies.pools.items():
        least = policy.max_nodes if is_wanting else min(policy.min_nodes, policy.max_nodes)
        if not least <= have[name] <= policy.max_nodes:
            return False
    if any(_may_change(node, policies.pools[node.pool], now) for node in nodes):
        return False
    return not any(_may_return_to_spot(fleet, name, policy, now) for name, policy in policies.pools.items())


def _may_change(node: SimNode, policy: PoolPolicy, now: float) -> bool:
    match node.state:
        case NodeState.READY:
            return node.idle_since is not None and now - node.idle_since > policy.idle_s - MARGIN_S
        case NodeState.LAUNCHED:
            return now - node.created_s > policy.join_timeout_s - MARGIN_S
        case NodeState.DRAINING:
            return node.deadline_s is None or now > node.deadline_s - MARGIN_S
        case _:
            return True


def _may_return_to_spot(fleet: Fleet, pool: str, policy: PoolPolicy, now: float) -> bool:
    after_s = policy.return_to_spot_s
    if after_s is None or any(node.pool == pool and _is_changing(node) for node in fleet.nodes.values()):
        return False
    has_stand_in = any(
        node.pool == pool
        and node.stock.offering.capacity is CapacityType.ON_DEMAND
        and now - node.created_s > after_s - MARGIN_S
        for node in fleet.nodes.values()
    )
    return has_stand_in and fleet.may_have_spot(now, after_s - MARGIN_S)


def _is_changing(node: SimNode) -> bool:
    """While such a node is there its pool exchanges none."""
    if node.state is NodeState.DRAINING:
        return node.stock.offering.capacity is CapacityType.ON_DEMAND
    return node.state is NodeState.LAUNCHED

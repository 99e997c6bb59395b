"""Back to spot: on-demand nodes that stood in for it are exchanged one at a time (pure).

The spot node comes first where the pool may have one node more; where it may not, the stand-in goes first, and its
work finds a spot node like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.actions import Launch
from cluster.offerings import CapacityType, Offering
from cluster.planning.drains import Losses, cheapest
from cluster.planning.market import Ask, Market
from cluster.planning.returns import Returns
from cluster.planning.situation import Situation, accepts
from cluster.planning.words import count
from cluster.policies import CapacityRule, PoolPolicy
from cluster.view import JOINED, LEAVING, NodeView

Usable = Mapping[str, list[NodeView]]


def hand_over(situation: Situation, returns: Returns, usable: Usable) -> None:
    """Drain a stand-in of each pool whose work finds a spot node: one that is there, or one in its own place."""
    market: Market | None = None
    for pool, policy in situation.policies.pools.items():
        nodes = [node for node in usable.get(pool, []) if returns.stays(node)]
        stand_ins = _stand_ins(situation, policy, nodes)
        if not stand_ins:
            continue
        market = market or Market(situation, usable)
        if not _back(situation, market, policy, pool) or _is_on_its_way(situation, pool):
            continue
        is_full = market.nodes[pool] == situation.limits[pool].max_nodes
        if (is_full or _spare(situation, nodes)) and returns.may_return(pool):
            everybody = [n for n in situation.view.nodes if n.is_usable and returns.stays(n)]
            for node in cheapest(stand_ins, Losses(situation.jobs, everybody, situation.now), 1):
                waited = count(round(policy.return_to_spot_s or 0.0), "second")
                returns.give_back_one(
                    node, f"spot has been back for {waited} or more, and it stood in for spot"
                )


def replacements(
    situation: Situation, returns: Returns, market: Market, usable: Usable, launched: set[str]
) -> list[Launch]:
    """A spot node for each pool that has stand-ins, room for one more node, and nothing else on its way."""
    launches: list[Launch] = []
    for pool, policy in situation.policies.pools.items():
        nodes = [node for node in usable.get(pool, []) if returns.stays(node)]
        back = _back(situation, market, policy, pool)
        is_busy = (
            pool in launched or len(nodes) < len(usable.get(pool, [])) or _is_on_its_way(situation, pool)
        )
        if back and not is_busy and _stand_ins(situation, policy, nodes) and not _spare(situation, nodes):
            launches.extend(_launch(market, pool, back))
    return launches


def _spare(situation: Situation, nodes: list[NodeView]) -> list[NodeView]:
    return [node for node in nodes if situation.capacity_of(node) is CapacityType.SPOT and not node.jobs]


def _stand_ins(situation: Situation, policy: PoolPolicy, nodes: list[NodeView]) -> list[NodeView]:
    """On-demand nodes that could as well be spot, and have been there for long enough to be worth it."""
    after_s = policy.return_to_spot_s
    if after_s is None or policy.capacity is not CapacityRule.PREFER_SPOT:
        return []
    return [
        node
        for node in nodes
        if situation.capacity_of(node) is CapacityType.ON_DEMAND
        and situation.now - node.created_at >= after_s
        and all(_may_move(situation, job_id) for job_id in node.jobs)
    ]


def _may_move(situation: Situation, job_id: str) -> bool:
    job = situation.jobs.get(job_id)
    return job is not None and accepts(job, CapacityType.SPOT) and not situation.is_urgent(job)


def _back(situation: Situation, market: Market, policy: PoolPolicy, pool: str) -> list[Offering]:
    """Spot that has been available for long enough."""
    since = situation.now - (policy.return_to_spot_s or 0.0)
    return [
        offering
        for offering in market.offerings(pool, CapacityType.SPOT)
        if situation.available_since.get(offering.id, float("-inf")) <= since
    ]


def _is_on_its_way(situation: Situation, pool: str) -> bool:
    """The pool changes already, or may not: the next exchange waits until it is at rest."""
    return situation.limits[pool].maintenance_until is not None or any(
        (node.is_usable and node.state not in JOINED)
        or (node.state in LEAVING and situation.capacity_of(node) is CapacityType.ON_DEMAND)
        for node in situation.nodes_of.get(pool, [])
    )


def _launch(market: Market, pool: str, offerings: list[Offering]) -> list[Launch]:
    for offering in offerings:
        quote = market.buy(Ask(pool=pool, worker={}, workers=1, offering=offering.id))
        if quote.lots:
            reason = "spot is back: it takes over from an on-demand node"
            return [
                Launch(
                    pool=pool,
                    offering=offering.id,
                    resources=offering.resources,
                    labels=offering.labels,
                    reason=reason,
                )
            ]
    return []

"""Back to spot: on-demand nodes that stood in for it are exchanged one at a time (pure).

The spot node is launched first where the pool may have one node more; where it may not, the stand-in is drained first,
and a spot node is bought for its work like for any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE
from cluster.policies.policies import CapacityRule, PoolPolicy
from cluster.scheduling.actions import Launch, Wait
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.domains import Domains
from cluster.scheduling.drains import Losses, cheapest
from cluster.scheduling.fitting import slots
from cluster.scheduling.formatting import clock, count
from cluster.scheduling.purchases import Ask, Purchases, launch_of
from cluster.scheduling.returns import Returns, Usable
from cluster.scheduling.view import JOINED, LEAVING, NodeView


def hand_over(context: PlanningContext, returns: Returns, usable: Usable) -> None:
    """Drain a stand-in of each pool whose work fits on a spot node: an existing one, or one that replaces it."""
    for pool, policy in context.policies.pools.items():
        # Nodes are checked last: most of the time spot is not back, or the pool changes already.
        if not returns.may_return(pool) or not (back := _back(context, policy, pool)):
            continue
        there = usable.get(pool, [])
        nodes = returns.staying(there)
        is_full = len(there) == context.limits[pool].max_nodes
        spare = [context.offerings[node.offering] for node in _spare(context, nodes)]
        if not (is_full or spare) or _is_on_its_way(context, pool):
            continue
        spots = [*spare, *back] if is_full else spare
        if stand_ins := list(_stand_ins(context, policy, nodes, spots)):
            for node in cheapest(stand_ins, Losses(context.jobs, returns.held, context.now), 1):
                waited = count(round(policy.return_to_spot_s or 0.0), "second")
                returns.give_back_one(
                    node, f"spot has been back for {waited} or more, and it stood in for spot"
                )


def move_off_spot(context: PlanningContext, returns: Returns, usable: Usable) -> None:
    """Drain the spot nodes under jobs that may not rely on them any more, once on-demand nodes for them are ready.

    Those nodes are bought by `Packing`, like all others.  Nodes stay on which another job would be made late.
    """
    for job_id, workers in context.movers.items():
        job = context.jobs[job_id]
        nodes = [node for there in usable.values() for node in returns.staying(there)]
        ready = (node for node in nodes if node.is_well and not node.jobs and node.bought_for == job_id)
        safe = context.paid_as(ready, CapacityType.ON_DEMAND)
        if sum(slots(node.resources, job.worker_resources) for node in safe) < workers:
            continue
        leaving = context.paid_as((node for node in nodes if job_id in node.jobs), CapacityType.SPOT)
        if not all(_may_be_drained(context, node, job_id) for node in leaving):
            continue
        for node in leaving:
            if returns.may_return(node.pool):
                returns.give_back_one(
                    node, f"the deadline of {job_id} is near, and it moves to on-demand nodes"
                )


def _may_be_drained(context: PlanningContext, node: NodeView, mover: str) -> bool:
    if context.limits[node.pool].maintenance_until is not None:
        return False
    others = (context.jobs.get(job_id) for job_id in node.jobs if job_id != mover)
    return all(other is not None and context.may_return(other) for other in others)


def replacements(
    context: PlanningContext,
    returns: Returns,
    purchases: Purchases,
    domains: Domains,
    usable: Usable,
    launched: set[str],
) -> list[Launch]:
    """A spot node for each pool that has stand-ins, may have one more node, and has nothing else under way."""
    launches: list[Launch] = []
    for pool, policy in context.policies.pools.items():
        if pool in launched or not (back := _back(context, policy, pool)):
            continue
        there = usable.get(pool, [])
        nodes = returns.staying(there)
        if len(nodes) < len(there) or _is_on_its_way(context, pool):
            continue
        spare = [context.offerings[node.offering] for node in _spare(context, nodes)]
        if spare and any(_stand_ins(context, policy, nodes, spare)):
            continue
        welcome = [one for one in back if any(_stand_ins(context, policy, nodes, [one]))]
        launches.extend(_launch(purchases, domains, pool, welcome))
    return launches


def why_they_stay(context: PlanningContext, returns: Returns, usable: Usable) -> list[Wait]:
    """Why stand-ins that stay in this plan are not exchanged now."""
    waits: list[Wait] = []
    for pool, policy in context.policies.pools.items():
        sold = context.sold(pool, CapacityType.SPOT)
        after_s = policy.return_to_spot_s
        if after_s is None or policy.capacity is not CapacityRule.PREFER_SPOT or not sold:
            continue
        back_at = min(context.available_since.get(one.id, float("-inf")) for one in sold) + after_s
        back = _back(context, policy, pool)
        until = context.limits[pool].maintenance_until
        for node in context.paid_as(returns.staying(usable.get(pool, [])), CapacityType.ON_DEMAND):
            may_at = max(back_at, node.created_at + after_s)
            if may_at > context.now:
                why = f"is exchanged from {clock(may_at)} on if spot is to be had"
            elif until is not None:
                why = f"stays until the maintenance ends at {clock(until)}"
            elif not all(_may_move(context, one, pool, back or sold) for one in _users(context, node)):
                why = "stays, as what runs on it may not move to spot"
            elif not back:
                why = "stays while no spot may be asked for"
            else:
                why = "waits: nodes are exchanged one at a time"
            waits.append(Wait(node_id=node.id, reason=f"it stands in for spot, and {why}"))
    return waits


def _spare(context: PlanningContext, nodes: list[NodeView]) -> list[NodeView]:
    return context.paid_as((node for node in nodes if not node.jobs), CapacityType.SPOT)


def _stand_ins(
    context: PlanningContext, policy: PoolPolicy, nodes: list[NodeView], spots: list[Offering]
) -> Iterator[NodeView]:
    """On-demand nodes whose work could run on one of the spot offerings, and that exist for long enough."""
    after_s = policy.return_to_spot_s or 0.0
    return (
        node
        for node in context.paid_as(nodes, CapacityType.ON_DEMAND)
        if context.now - node.created_at >= after_s
        and all(_may_move(context, job_id, node.pool, spots) for job_id in _users(context, node))
    )


def _users(context: PlanningContext, node: NodeView) -> Collection[str]:
    """Jobs that work on the node, or the one that it was bought for and that is about to."""
    owner = node.bought_for
    if owner is not None and owner in context.jobs and context.may_be_kept(node):
        return (owner,)
    return node.jobs


def _may_move(context: PlanningContext, job_id: str, pool: str, spots: list[Offering]) -> bool:
    job = context.jobs.get(job_id)
    if job is None or job.placement.needs_fabric:  # spot and on-demand do not meet in one fabric domain
        return False
    placement = job.placement
    is_welcome = placement is ANYWHERE or any(placement.allows(pool, o.zone, o.capacity) for o in spots)
    # An exchange costs it a start, and its new node may be taken back.
    return is_welcome and context.may_return(job)


def _back(context: PlanningContext, policy: PoolPolicy, pool: str) -> list[Offering]:
    """Spot that has been available for long enough and has quota, where the policy lets nodes return to it at all."""
    if policy.return_to_spot_s is None or policy.capacity is not CapacityRule.PREFER_SPOT:
        return []
    since = context.now - policy.return_to_spot_s
    return [
        offering
        for offering in context.sold(pool, CapacityType.SPOT)
        if context.available_since.get(offering.id, float("-inf")) <= since
        and context.has_quota(offering)
        and offering.id not in context.closed(pool)
    ]


def _is_on_its_way(context: PlanningContext, pool: str) -> bool:
    """The pool changes already, or may not: the next exchange waits until the change is complete."""
    if context.limits[pool].maintenance_until is not None:
        return True
    changing = context.view.unwell_of.get(pool, ())
    return any(node.is_usable and node.state not in JOINED for node in changing) or bool(
        context.paid_as((node for node in changing if node.state in LEAVING), CapacityType.ON_DEMAND)
    )


def _launch(purchases: Purchases, domains: Domains, pool: str, offerings: list[Offering]) -> list[Launch]:
    for offering in offerings:
        quote = purchases.buy(Ask(pool=pool, worker={}, workers=1, offering=offering.id))
        if quote.lots:
            reason = "spot is back: it takes over from an on-demand node"
            return [launch_of(pool, quote.lots[0], reason, domains.add_own(pool, offering))]
    return []

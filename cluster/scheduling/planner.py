"""Which nodes to launch, to drain and to end: a pure function of demand, nodes, offerings and policies.

    actions = plan(view, policies, now)

The order: nodes of no use go; then the steps of the budget and the limits of the pools are carried out; then pools get
their minimum, and every job is placed, whole groups first, on nodes that exist and on nodes that are bought; then
unused nodes are returned.  Everything that is not done has its reason among the actions, as a `Wait`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from cluster.policies.policies import BudgetStep, Policies, PoolPolicy
from cluster.scheduling.actions import Drain, Launch, Notice, Plan, ShowMore, Terminate, Wait
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.domains import Domains
from cluster.scheduling.exchange import hand_over, move_off_spot, replacements, why_they_stay
from cluster.scheduling.formatting import clock, count
from cluster.scheduling.free_capacity import Space
from cluster.scheduling.health import end_of
from cluster.scheduling.launch_checks import Rule, allowed_by_rules, within_pace
from cluster.scheduling.money import MEANING
from cluster.scheduling.packing import Packed, Packing
from cluster.scheduling.purchases import Ask, Purchases, launch_of, why_closed
from cluster.scheduling.returns import Returns
from cluster.scheduling.view import ClusterView, NodeView
from remora.states import NodeState

#: How often jobs are placed in one plan, as nodes that are returned leave limits for others.
PASSES = 4
#: Why a waiting job gets no other nodes: it starts, or waits behind others, on those that are ready.
HAS_CAPACITY = "there is capacity for it on nodes that are ready"


def plan(
    view: ClusterView,
    policies: Policies,
    now: float,
    rules: Sequence[tuple[str, Rule]] = (),
    *,
    explains_waits: bool = True,
) -> Plan:
    """What to do now, and why the rest is not done.

    Applied to the cluster, the plan leads to a view whose plan at the same `now` has no further launch, drain or end,
    or nearly none: where sizes or pools are mixed, jobs may fit better on what was bought, once.
    `rules` are called in order, with their names, for every launch.  With `explains_waits` false the reasons why jobs
    wait and why on-demand nodes stay are left out, as they are not read; all else is the same.
    """
    pools = policies.pools
    doubtful = _doubtful(view, pools)
    ends = [end for node in doubtful if (end := end_of(node, view, pools, now)) is not None]
    context = PlanningContext(_after(view, ends), policies, now)
    returns = Returns(context)
    returns.out_of_money(_usable(context, returns))
    returns.above_limits(_usable(context, returns))
    before = _usable(context, returns)
    move_off_spot(context, returns, before)
    hand_over(context, returns, before)
    packed, launches, short = _filled(context, returns, before)
    paced = within_pace(context, launches)
    accepted = allowed_by_rules(view, paced.launches, rules)
    return (
        *([ShowMore()] if packed.is_open else []),
        *ends,
        *returns.actions,
        *accepted.launches,
        *_notices(context),
        *paced.waits,
        *accepted.waits,
        *returns.waits,
        *short,
        *_closed(context),
        *(why_they_stay(context, returns, before) if explains_waits else ()),
        *(_waits(context, packed, accepted.launches, accepted.later | paced.later) if explains_waits else ()),
    )


def _filled(
    context: PlanningContext, returns: Returns, before: Mapping[str, list[NodeView]]
) -> tuple[Packed, list[Launch], list[Wait]]:
    """Place all jobs: the packing, the launches for it, and what pools are short of.

    Nodes that are then unused are returned, which leaves limits for others, so it is done again.
    """
    for _ in range(PASSES):
        usable = _usable(context, returns)
        purchases = Purchases(context, usable)
        space = Space(context, [node for nodes in usable.values() for node in nodes], returns.held)
        domains = Domains(context.view.nodes)
        short: list[Wait] = []
        least = _minimum(context, purchases, space, domains, short)
        packed = Packing(context, space, purchases, domains).pack()
        launches = [*least, *packed.launches, *_warm(context, purchases, space, domains, short)]
        launched = {launch.pool for launch in launches}
        launches.extend(replacements(context, returns, purchases, domains, before, launched))
        if not returns.unused(packed.space) or not packed.reasons:
            break
    return packed, launches, short


def _doubtful(view: ClusterView, pools: Mapping[str, PoolPolicy]) -> list[NodeView]:
    """Nodes that may be of no use: all others are well, and of a pool that is in the policies."""
    if view.nodes_of.keys() <= pools.keys():
        return view.unwell
    return [node for node in view.nodes if not (node.is_well and node.pool in pools)]


def _after(view: ClusterView, ends: Sequence[Terminate | Drain]) -> ClusterView:
    """The view once the nodes of no use have gone."""
    if not ends:
        return view
    ending = {action.node_id: action for action in ends}
    nodes: list[NodeView] = []
    for node in view.nodes:
        action = ending.get(node.id)
        if isinstance(action, Terminate) and node.state is not NodeState.GONE:
            is_failure = node.is_failure or action.is_failure or node.state is NodeState.FAILED
            is_cut_off = node.is_cut_off or action.is_cut_off
            state = NodeState.TERMINATING
            nodes.append(replace(node, state=state, is_failure=is_failure, is_cut_off=is_cut_off))
        elif isinstance(action, Drain):
            nodes.append(replace(node, state=NodeState.DRAINING))
        else:
            nodes.append(node)
    return replace(view, nodes=tuple(nodes))


def _usable(context: PlanningContext, returns: Returns) -> Mapping[str, list[NodeView]]:
    if returns.all_stay:
        return context.usable
    staying = {pool: returns.staying(nodes) for pool, nodes in context.usable.items()}
    return {pool: nodes for pool, nodes in staying.items() if nodes}


def _minimum(
    context: PlanningContext, purchases: Purchases, space: Space, domains: Domains, short: list[Wait]
) -> list[Launch]:
    """Launches up to each pool's minimum; jobs may use these nodes like any other."""
    launches: list[Launch] = []
    for pool, limits in context.limits.items():
        least = min(limits.min_nodes, limits.max_nodes)
        for launch in _own(purchases, domains, pool, least, short, is_patient=False):
            space.buy(pool, context.offerings[launch.offering], launch.fabric, is_used=False)
            launches.append(launch)
    return launches


def _warm(
    context: PlanningContext, purchases: Purchases, space: Space, domains: Domains, short: list[Wait]
) -> list[Launch]:
    """Launches of the nodes that each pool keeps ready beyond those in use."""
    is_any = any(limits.warm_nodes for limits in context.limits.values())
    if not is_any or context.money.reached(BudgetStep.STOP_GROWING):
        return []
    used: dict[str, int] = defaultdict(int)
    for bin_ in space.everything:
        used[bin_.pool] += bin_.is_used
    launches: list[Launch] = []
    for pool, limits in context.limits.items():
        wanted = min(used[pool] + limits.warm_nodes, limits.max_nodes)
        launches.extend(_own(purchases, domains, pool, wanted, short, is_patient=True))
    return launches


def _own(
    purchases: Purchases, domains: Domains, pool: str, wanted: int, short: list[Wait], *, is_patient: bool
) -> list[Launch]:
    """Nodes of the pool itself, for any job; those with InfiniBand in domains of the pool.

    What cannot be bought is added to `short`.
    """
    have = purchases.nodes[pool]
    if have >= wanted:
        return []
    quote = purchases.buy(Ask(pool=pool, worker={}, workers=wanted - have, is_patient=is_patient))
    if quote.workers_short:
        missing = f"{count(quote.workers_short, 'node')} of its own cannot be had"
        short.append(Wait(pool=pool, reason=f"{missing}: {quote.words}"))
    reason = f"pool {pool!r} has {have} of {count(wanted, 'node')}"
    return [
        launch_of(pool, lot, reason, domains.add_own(pool, lot.offering))
        for lot in quote.lots
        for _ in range(lot.nodes)
    ]


def _closed(context: PlanningContext) -> list[Wait]:
    """The offerings that pools do not buy now, as their nodes failed."""
    return [
        Wait(pool=pool, reason=why_closed(context.offerings[offering], pool, until))
        for pool in context.limits
        for offering, until in sorted(context.closed(pool).items())
    ]


def _notices(context: PlanningContext) -> list[Notice]:
    """What has not been reported to owners about the cluster's budget yet."""
    step, words = context.money.step, context.money.words
    message = (
        "the cluster's budget allows it again"
        if step is None
        else f"the cluster's budget ({context.money.ends}): {words}; {MEANING[step]}"
    )
    return [
        Notice(job_id=job.id, message=message, step=step)
        for job in context.view.jobs
        if job.noticed_step != step and not job.is_program
    ]


def _in_words(ready_at: float, now: float) -> str:
    """When nodes are ready if they start as others did: to the minute, as it is stored; empty once they are late."""
    return f", ready at about {clock(60.0 * ceil(ready_at / 60.0))}" if ready_at > now else ""


def _waits(
    context: PlanningContext, packed: Packed, accepted: Sequence[Launch], later: Mapping[str | None, str]
) -> list[Wait]:
    """Why each job lacks workers that it can use; `later` says why launches for it are not among those `accepted`."""
    waits: list[Wait] = []
    launched = Counter(launch.job_id for launch in accepted)
    # Nodes that a pool would launch anyway may be held up as well; then they are not reported as starting.
    starting = sum(node.is_usable and not node.is_member for node in context.view.unwell) + len(accepted)
    reasons = packed.reasons | {job.id: packed.why_behind for job in packed.behind}
    usual = context.now + context.view.start_up_s
    ready_at: dict[str, float] = {}
    for node in context.view.nodes:
        if node.bought_for is not None and node.is_usable and not node.is_member:
            at = node.created_at + context.view.start_up_s
            ready_at[node.bought_for] = max(at, ready_at.get(node.bought_for, 0.0))
    for job in context.view.jobs:
        if (reason := reasons.get(job.id)) is not None:
            waits.append(Wait(job_id=job.id, reason=reason))
        elif job.id in packed.starting or launched[job.id] or job.id in later:
            nodes = min(packed.starting.get(job.id, 0) + launched[job.id], starting)
            when = _in_words(max(ready_at.get(job.id, 0.0), usual if launched[job.id] else 0.0), context.now)
            said = (
                [f"{count(nodes, 'node')} for it {'is' if nodes == 1 else 'are'} starting{when}"]
                if nodes
                else []
            )
            if (why := later.get(job.id, None if nodes else later.get(None))) is not None:
                said.append(f"nodes for it are launched later: {why}")
            waits.append(Wait(job_id=job.id, reason="; ".join(said) or "nodes for it are launched later"))
        elif not job.is_running:
            waits.append(Wait(job_id=job.id, reason=HAS_CAPACITY))
    return waits

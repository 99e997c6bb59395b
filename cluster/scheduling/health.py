"""Nodes that have to go whatever the demand, and backoff for pools and offerings whose nodes fail (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from cluster.policies.offerings import CapacityType
from cluster.policies.policies import Policies, PoolPolicy
from cluster.scheduling.actions import Drain, Terminate
from cluster.scheduling.view import ENDED, JOINED, ClusterView, NodeView
from remora.states import NodeState

#: A machine that the provider does not list is given up once it was requested in vain for this many seconds and this
#: many times: how much time passes between two looks says nothing about the machine.
CREATE_TIMEOUT_S = 10.0
LEAST_ASKS = 4
#: Seconds that a node is given for its work where no policy says it: its pool is in no policy any more, or the drain
#: that its agent began is not known to Ray any more.
DRAIN_S = 120.0
#: The first pause after a failed start; it doubles with every further one in a row.
FIRST_PAUSE_S = 1.0
#: The longest pause after failed starts.
LONGEST_PAUSE_S = 120.0
#: A node whose machine was found sick when it had been ready for no longer than this failed as if it had never joined:
#: to bring it, and to start its jobs again without it, costs about as much as it did.
SICK_AT_FIRST_S = 1800.0
#: After such a node the next one counts as one that works when it has been ready for this much longer than that one was
#: before it was found sick: its agent looks at its GPUs every half minute, and its report takes some seconds.
PROVEN_S = 120.0
#: Failures of one offering in a row that close it to their pool.
STRIKES = 3
#: A node may take JOIN_FACTOR times as long to be ready as the slowest of the NEWEST_JOINS newest nodes of its pool,
JOIN_FACTOR = 2.0
NEWEST_JOINS = 5
#: and at most this many times as long as `join_timeout_s` of its pool.
LONGEST_JOIN_FACTOR = 4.0
#: For how long an offering is closed at first, twice as long each time a try fails then, and at most.
FIRST_CLOSED_S = 1800.0
LONGEST_CLOSED_S = 7200.0
#: Seconds for which a zone whose nodes did not join, or were cut off, is tried last.
SILENT_S = 900.0


def end_of(
    node: NodeView, view: ClusterView, pools: Mapping[str, PoolPolicy], now: float
) -> Terminate | Drain | None:
    """The end or drain of a node that has to go whatever the demand for its pool is, or None."""
    if node.is_well and node.pool in pools:
        return None
    if node.state in ENDED:
        if not node.provided:
            return None
        return Terminate(node_id=node.id, reason="its row has ended, its machine has not")
    if node.state is NodeState.TERMINATING:
        return Terminate(node_id=node.id, reason="it was to be terminated already")
    if (failure := _failure(node, view, pools, now)) is not None:
        return failure
    if node.state is NodeState.DRAINING:
        return _end_of_drain(node, now)
    if node.pool not in pools:
        reason = f"there is no pool {node.pool!r} any more"
        if node.may_work:
            return Drain(node_id=node.id, deadline_at=now + DRAIN_S, reason=reason)
        return Terminate(node_id=node.id, reason=reason)
    return None


def _failure(
    node: NodeView, view: ClusterView, pools: Mapping[str, PoolPolicy], now: float
) -> Terminate | None:
    """The end of a node that is of no use, or None; one that was never a member fails, one that was merely ends."""
    never_joined = node.state not in JOINED and not node.is_member
    age_s = now - node.created_at
    # A draining node leaves by itself, once nothing runs on it.
    has_left = node.state is NodeState.DRAINING and node.provided and not node.is_member
    if has_left:
        return Terminate(node_id=node.id, reason="it is drained, and Ray has let it go")
    if node.provided and not node.is_running:
        return Terminate(node_id=node.id, reason="its machine stopped", is_failure=never_joined)
    is_requested = node.state is NodeState.REQUESTED and not node.provided
    if is_requested and not _was_asked_for_in_vain(node, now, view.paused_until):
        return None
    if not node.provided:
        return Terminate(node_id=node.id, reason=_why_missing(node), is_failure=never_joined)
    if never_joined and node.pool in pools and age_s > (timeout_s := pools[node.pool].join_timeout_s):
        limit_s = join_limit_s(view, node, timeout_s, now)
        if age_s > limit_s:
            reason = f"it did not join the Ray cluster within {limit_s:.0f} s"
            return Terminate(node_id=node.id, reason=reason, is_failure=True)
    if node.state in JOINED and not node.is_member:
        return Terminate(node_id=node.id, reason="it left the Ray cluster", is_cut_off=True)
    return None


def join_limit_s(view: ClusterView, node: NodeView, timeout_s: float, now: float) -> float:
    """Seconds after which a node that has not joined is given up; `timeout_s` is `join_timeout_s` of its pool.

    Longer where machines are slow, so that nodes are not given up and bought again forever: twice as long with every
    try in a row that was given up before this node was made, twice what the slowest of the newest joins took, and at
    most four times `timeout_s`.
    """
    nodes = view.nodes_of.get(node.pool, ())
    joined = [(one.ready_at, one.ready_at - one.created_at) for one in nodes if one.ready_at is not None]
    slowest_s = max((took_s for _, took_s in sorted(joined)[-NEWEST_JOINS:]), default=0.0)
    tries = _given_up_before(view, node, timeout_s, now)
    limit_s = max(timeout_s * 2.0 ** min(tries, 30), JOIN_FACTOR * slowest_s)
    return min(limit_s, LONGEST_JOIN_FACTOR * timeout_s)


def _given_up_before(view: ClusterView, node: NodeView, timeout_s: float, now: float) -> int:
    """Tries in a row of a node's pool that had not joined in time before it was made; nodes made together are one."""
    failed = _in_a_row(_unwell(view, node.pool, now), view.nodes_of.get(node.pool, ()), now)
    late = sorted(
        (_failed_at(one, now), one.created_at)
        for one in failed
        if one.had_machine and one.sick_since is None and _failed_at(one, now) - one.created_at >= timeout_s
    )
    tries, last = 0, float("-inf")
    for failed_at, created_at in late:
        if failed_at <= node.created_at and created_at >= last:
            tries, last = tries + 1, failed_at
    return tries


def _was_asked_for_in_vain(node: NodeView, now: float, paused_until: float) -> bool:
    """No clear answer came for long enough, and to enough requests: the controller may have been away meanwhile."""
    if node.unanswered_since is None or node.unanswered < LEAST_ASKS:
        return False
    # What was to be requested during a pause was requested at its end.
    return now - max(node.unanswered_since, paused_until) > CREATE_TIMEOUT_S


def _why_missing(node: NodeView) -> str:
    """The likely cause for a machine that the provider does not list any more; clouds do not report it."""
    if node.state is NodeState.REQUESTED:
        return "the provider does not know it"
    match node.capacity:
        case CapacityType.SPOT:
            return (
                "its machine is gone: the cloud took it back (evicted it), or it was deleted outside Remora"
            )
        case CapacityType.ON_DEMAND:
            return "its machine is gone: it was deleted outside Remora, or the cloud lost it"
        case _:
            return "its machine is gone"


def _end_of_drain(node: NodeView, now: float) -> Terminate | None:
    if node.deadline_at is not None and now >= node.deadline_at:
        return Terminate(node_id=node.id, reason="its drain deadline passed")
    if node.is_noticed and not node.jobs and not node.is_in_use:
        return Terminate(node_id=node.id, reason="it is drained, and nothing runs on it any more")
    return None


def remembered_s(policies: Policies) -> float:
    """Seconds for which nodes that failed, or were sick, have to stay in a view after their end.

    A try that is made because older failures are nearly forgotten has to end, and to be distinguished from the next
    one, before they are; and the backoff of an offering that fails again and again grows only while that is known.
    """
    longest_s = LONGEST_JOIN_FACTOR * max(
        (pool.join_timeout_s for pool in policies.pools.values()), default=0.0
    )
    return 3.0 * LONGEST_CLOSED_S + 2.0 * longest_s + LONGEST_PAUSE_S


def launch_not_before(view: ClusterView, pool: str, now: float) -> float:
    """When a pool may launch again: a pause after its newest try that failed, which doubles with every one in a row.

    In a row are nodes of the pool that failed, or were sick at first, until a newer one works.
    """
    failed = _in_a_row(_unwell(view, pool, now), view.nodes_of.get(pool, ()), now)
    if not failed:
        return float("-inf")
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(len(failed) - 1, 30))
    return max(node.created_at for node in failed) + pause_s


def _unwell(view: ClusterView, pool: str, now: float) -> Sequence[NodeView]:
    """Unwell nodes of a pool, without those that failed before an operator reopened it."""
    unwell = view.unwell_of.get(pool, ())
    reopened_at = view.reopened.get(pool)
    if reopened_at is None:
        return unwell
    return [node for node in unwell if _failed_at(node, now) > reopened_at]


def _in_a_row(unwell: Iterable[NodeView], nodes: Iterable[NodeView], now: float) -> list[NodeView]:
    """Failures among `unwell` that no newer working one of `nodes` ends.

    One node that joins ends a row of nodes that did not; a row of sick nodes ends with one that has been ready for
    longer than the sick one was.
    """
    failed = [node for node in unwell if _never_came(node) or _was_sick_at_first(node)]
    if not failed:
        return []
    joined = [node for node in nodes if _works(node, now, None)]
    newest_at = max((node.created_at for node in joined), default=float("-inf"))
    return [
        node
        for node in failed
        if node.created_at > newest_at or (_was_sick_at_first(node) and not _is_outlived(node, joined, now))
    ]


def _is_outlived(sick: NodeView, joined: Iterable[NodeView], now: float) -> bool:
    """A newer node has been well for longer than this one was."""
    proven_s = _proven_s([sick])
    return any(node.created_at >= sick.created_at and _works(node, now, proven_s) for node in joined)


def _never_came(node: NodeView) -> bool:
    """It went before it was of any use."""
    return node.state is NodeState.FAILED or (node.state is NodeState.TERMINATING and node.is_failure)


def _was_sick_at_first(node: NodeView) -> bool:
    """Its machine was found sick so early that it was of no use."""
    if node.sick_since is None:
        return False
    return node.ready_at is None or node.sick_since - node.ready_at <= SICK_AT_FIRST_S


def _proven_s(nodes: Iterable[NodeView]) -> float | None:
    """Seconds for which another node has to be ready before it is known not to be sick like these; None: none was."""
    sick = [node for node in nodes if _was_sick_at_first(node)]
    if not sick:
        return None
    return PROVEN_S + max(
        (node.sick_since or 0.0) - (node.ready_at or node.sick_since or 0.0) for node in sick
    )


def _works(node: NodeView, now: float, proven_s: float | None) -> bool:
    """It has joined and has not failed; after sick nodes that counts only after `proven_s`.

    A node that was returned since, as it was not needed any more, has worked too.
    """
    has_worked = node.ready_at is not None and not node.is_failure and not node.is_cut_off
    if not (node.state in JOINED or has_worked) or _was_sick_at_first(node):
        return False
    until = now if node.leaving_since is None else node.leaving_since
    return proven_s is None or (node.ready_at is not None and until - node.ready_at >= proven_s)


def _failed_at(node: NodeView, now: float) -> float:
    if node.sick_since is not None:
        return node.sick_since
    if node.leaving_since is not None:
        return node.leaving_since
    return now if node.state is NodeState.TERMINATING else node.created_at


def closed_offerings(view: ClusterView, pool: str, join_timeout_s: float, now: float) -> dict[str, float]:
    """Until when a pool buys no more of each offering whose nodes failed again and again, by `Offering.id`.

    Three failures in a row close it; from then on every try that fails does, for twice as long as the one before.
    Nodes that never had a machine do not count: a refusal costs no money.  Nor do spot nodes that went before their
    time to join was up (`join_limit_s`): clouds take machines back also while they boot.
    """
    unwell: dict[str, list[NodeView]] = defaultdict(list)
    for node in _unwell(view, pool, now):
        unwell[node.offering].append(node)
    closed: dict[str, float] = {}
    for offering, nodes in unwell.items():
        if len(nodes) < STRIKES:
            continue
        there = (node for node in view.nodes_of[pool] if node.offering == offering)
        failed = [
            node
            for node in _in_a_row(nodes, there, now)
            if node.had_machine and not _was_taken_at_boot(view, node, join_timeout_s, now)
        ]
        until = _closed_until(sorted((_failed_at(node, now), node.created_at) for node in failed))
        if until > now:
            closed[offering] = until
    return closed


def _was_taken_at_boot(view: ClusterView, node: NodeView, join_timeout_s: float, now: float) -> bool:
    """It was spot, and went while it still had time to join, as machines do that a cloud takes back."""
    if node.capacity is not CapacityType.SPOT or node.ready_at is not None or node.sick_since is not None:
        return False
    lived_s = _failed_at(node, now) - node.created_at
    return lived_s <= join_timeout_s or lived_s <= join_limit_s(view, node, join_timeout_s, now)


def _closed_until(failed: Iterable[tuple[float, float]]) -> float:
    """Until when an offering is closed, by the times of each failure and of the request for its node."""
    until = since = last = float("-inf")
    strikes = closings = 0
    for failed_at, created_at in failed:
        if created_at <= since:
            continue  # it was on its way already when the offering was closed
        if created_at > max(until, last) + LONGEST_CLOSED_S:
            strikes = closings = 0
        strikes, last = strikes + 1, failed_at
        if closings or strikes >= STRIKES:
            since, until = failed_at, failed_at + min(LONGEST_CLOSED_S, FIRST_CLOSED_S * 2.0**closings)
            closings += 1
    return until


def silent_zones(view: ClusterView, zone_of: Callable[[NodeView], str | None], now: float) -> frozenset[str]:
    """Zones in which the newest nodes did not come up, or all members were lost while their machines ran.

    What keeps a zone's machines from joining, such as a head that cannot be reached from there, is likely to affect the
    next one.  The failed nodes are newer than all that joined there; those that were cut off left no other member.
    Both are forgotten after a quarter of an hour, so that the zone is tried again.  A sick machine says nothing about
    its zone.
    """
    lately = [node for node in view.unwell if now - _failed_at(node, now) <= SILENT_S]
    failed = _newest((node for node in lately if _never_came(node)), zone_of)
    cut_off = {zone_of(node) for node in lately if node.is_cut_off}
    if not failed and not cut_off:
        return frozenset()  # as nearly always: what joined is not looked at
    joined = _newest((node for node in view.nodes if node.state in JOINED), zone_of)
    silent = {zone for zone, at in failed.items() if at > joined.get(zone, float("-inf"))}
    return frozenset(silent | {zone for zone in cut_off if zone is not None and zone not in joined})


def _newest(nodes: Iterable[NodeView], zone_of: Callable[[NodeView], str | None]) -> dict[str, float]:
    """When the newest of the nodes in each zone was created."""
    newest: dict[str, float] = {}
    for node in nodes:
        if (zone := zone_of(node)) is not None:
            newest[zone] = max(node.created_at, newest.get(zone, float("-inf")))
    return newest


def trying(view: ClusterView, pool: str, now: float) -> bool:
    """A try of a pool whose nodes failed is on its way: it has not joined, or may still turn out to be sick."""
    unwell = view.unwell_of.get(pool, ())
    if any(node.is_usable and node.state not in JOINED for node in unwell):
        return True
    nodes = view.nodes_of.get(pool, ())
    proven_s = _proven_s(_in_a_row(unwell, nodes, now))
    return proven_s is not None and any(
        node.is_usable and not _was_sick_at_first(node) and not _works(node, now, proven_s) for node in nodes
    )

"""Nodes that have to go whatever is wished for, and pools whose nodes fail (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cluster.actions import Drain, Terminate
from cluster.offerings import CapacityType, zone_and_capacity
from cluster.policies import PoolPolicy
from cluster.view import ENDED, JOINED, ClusterView, NodeView
from remora.states import NodeState

#: A row whose machine the provider does not list after this many seconds was lost on the way to the provider.
CREATE_TIMEOUT_S = 10.0
#: Seconds that a node is given for its work whose pool is in no policy any more, which so says nothing about it.
DRAIN_S = 120.0
#: The first pause after a failed start; it doubles with every further one in a row.
FIRST_PAUSE_S = 1.0
#: The longest pause after failed starts.
LONGEST_PAUSE_S = 120.0


def end_of(
    node: NodeView, pools: Mapping[str, PoolPolicy], now: float, paused_until: float = float("-inf")
) -> Terminate | Drain | None:
    """Why a node has to go whatever the wishes for its pool are, or None; `paused_until` as in `ClusterView`."""
    if node.is_well and node.pool in pools:
        return None
    if node.state in ENDED:
        if not node.provided:
            return None
        return Terminate(node_id=node.id, reason="its row has ended, its machine has not")
    if node.state is NodeState.TERMINATING:
        return Terminate(node_id=node.id, reason="it was to be terminated already")
    if (failure := _failure(node, pools, now, paused_until)) is not None:
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
    node: NodeView, pools: Mapping[str, PoolPolicy], now: float, paused_until: float
) -> Terminate | None:
    """Why a node is of no use, or None; who was never a member fails, who was one merely ends."""
    never_joined = node.state not in JOINED and not node.is_member
    age_s = now - node.created_at
    # One that drains leaves by itself, once nothing runs on it.
    has_left = node.state is NodeState.DRAINING and node.provided and not node.is_member
    if has_left:
        return Terminate(node_id=node.id, reason="it is drained, and Ray has let it go")
    if node.provided and not node.is_running:
        return Terminate(node_id=node.id, reason="its machine stopped", is_failure=never_joined)
    # What was to be asked for during a pause was asked for at its end.
    asked_at = max(node.created_at, paused_until)
    if not node.provided and node.state is NodeState.REQUESTED and now - asked_at <= CREATE_TIMEOUT_S:
        return None
    if not node.provided:
        return Terminate(node_id=node.id, reason=_why_missing(node), is_failure=never_joined)
    limit_s = pools[node.pool].join_timeout_s if node.pool in pools else 0.0
    if never_joined and node.pool in pools and age_s > limit_s:
        reason = f"it did not join the Ray cluster within {limit_s:.0f} s"
        return Terminate(node_id=node.id, reason=reason, is_failure=True)
    if node.state in JOINED and not node.is_member:
        return Terminate(node_id=node.id, reason="it left the Ray cluster", is_cut_off=True)
    return None


def _why_missing(node: NodeView) -> str:
    """What may have become of a machine that the provider lists no more; clouds do not say it."""
    if node.state is NodeState.REQUESTED:
        return "the provider does not know it"
    match zone_and_capacity(node.offering)[1]:
        case CapacityType.SPOT:
            return "its machine is gone: the cloud took it back (evicted it), or somebody deleted it"
        case CapacityType.ON_DEMAND:
            return "its machine is gone: somebody deleted it, or the cloud lost it"
        case _:
            return "its machine is gone"


def _end_of_drain(node: NodeView, now: float) -> Terminate | None:
    if node.deadline_at is not None and now >= node.deadline_at:
        return Terminate(node_id=node.id, reason="its drain deadline passed")
    if node.is_told and not node.jobs and not node.is_in_use:
        return Terminate(node_id=node.id, reason="it is drained, and nothing runs on it any more")
    return None


def launch_not_before(view: ClusterView, pool: str) -> float:
    """When a pool may launch again: a pause after its newest failure that doubles with every one in a row.

    In a row are nodes of the pool that failed after its newest node that joined was created.
    """
    failed = [node.created_at for node in _failed(view.unwell_of.get(pool, ()))]
    if not failed:
        return float("-inf")
    nodes = view.nodes_of[pool]
    joined_at = max((node.created_at for node in nodes if node.state in JOINED), default=float("-inf"))
    failures = sum(1 for created_at in failed if created_at > joined_at)
    if not failures:
        return float("-inf")
    return max(failed) + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))


def _failed(nodes: Iterable[NodeView]) -> list[NodeView]:
    """Nodes that went before they were of any use."""
    failed, terminating = NodeState.FAILED, NodeState.TERMINATING
    return [n for n in nodes if n.state is failed or (n.state is terminating and n.is_failure)]


def silent_zones(view: ClusterView, zone_of: Callable[[NodeView], str | None]) -> frozenset[str]:
    """Zones in which the newest nodes did not come up, or all members were lost while their machines ran.

    Whatever keeps a zone's machines from joining, as a head that cannot be reached from there, is likely to keep the
    next one.  What failed is newer than all that joined there; what was cut off has left no member behind.  Both are
    forgotten with the nodes that the view leaves out, so that the zone is tried again.
    """
    failed = _newest(_failed(view.unwell), zone_of)
    cut_off = {zone_of(node) for node in view.unwell if node.is_cut_off}
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


def starting(view: ClusterView, pool: str) -> int:
    """Nodes of a pool that are on their way and not yet members."""
    return sum(1 for node in view.unwell_of.get(pool, ()) if node.is_usable and node.state not in JOINED)

"""Which nodes to launch and which to terminate: a pure decision over what is wished for and what is seen.

Every pool keeps `size` nodes that can take work.  Nodes that are ending, draining or dead do not count, so their
replacement starts at once.  A pool whose nodes fail before they join is slowed down, never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from remora.states import NodeState

#: A node that is not known to Ray after this many seconds is given up.
JOIN_TIMEOUT_S = 60.0
#: A row whose machine the provider does not list after this many seconds was lost on the way to the provider.
CREATE_TIMEOUT_S = 10.0
#: The first pause after a failed start; it doubles with every further one in a row.
FIRST_PAUSE_S = 1.0
#: The longest pause after failed starts.
LONGEST_PAUSE_S = 120.0

_ENDED = frozenset({NodeState.GONE, NodeState.FAILED})
_JOINED = frozenset({NodeState.JOINED, NodeState.READY, NodeState.DRAINING})


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """A node pool as it is wished for."""

    name: str
    #: Nodes that shall be able to take work.
    size: int
    #: Ray resources of each of its nodes.
    resources: Mapping[str, float]
    #: Labels of each of its nodes, beside `remora-node` and `remora-pool`.
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlannedNode:
    """A node's row together with what the provider and Ray say about it now."""

    id: str
    pool: str
    state: NodeState
    #: Seconds since 1970.
    created_at: float
    #: The provider lists it.
    provided: bool
    #: The provider says that its machine runs.
    is_running: bool
    #: Ray knows it and calls it alive.
    is_member: bool
    #: Workers or drivers run on it; only chooses who goes first when there are too many.
    is_busy: bool = False
    #: While draining: when it has to be gone, seconds since 1970.
    deadline_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """Everything that a plan is made from.

    Nodes that failed within the last minutes belong into it: they are what slows a failing pool down.
    """

    pools: tuple[PoolView, ...]
    nodes: tuple[PlannedNode, ...]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Make one more node."""

    pool: str
    resources: Mapping[str, float]
    reason: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """End a node; asking again for one that is ending does no harm."""

    node_id: str
    #: One sentence for people.
    reason: str
    #: True when it never became useful, so that its row ends as `failed` and slows its pool down.
    is_failure: bool = False


def plan(view: ClusterView, now: float) -> list[Launch | Terminate]:
    """Actions that bring the cluster to its wished size: terminations first, then launches."""
    sizes = {pool.name: pool for pool in view.pools}
    terminations = [end for node in view.nodes if (end := _end_of(node, sizes, now)) is not None]
    ending = {action.node_id: action for action in terminations}
    alive = [node for node in view.nodes if node.id not in ending and _counts(node)]
    failed = [
        replace(node, state=NodeState.FAILED) if node.id in ending and ending[node.id].is_failure else node
        for node in view.nodes
    ]
    launches: list[Launch] = []
    for pool in view.pools:
        members = [node for node in alive if node.pool == pool.name]
        terminations.extend(_surplus(pool, members))
        launches.extend(_missing(pool, len(members), [n for n in failed if n.pool == pool.name], now))
    return [*terminations, *launches]


def _counts(node: PlannedNode) -> bool:
    return node.state not in _ENDED and node.state not in (NodeState.DRAINING, NodeState.TERMINATING)


def _end_of(node: PlannedNode, pools: Mapping[str, PoolView], now: float) -> Terminate | None:
    """Why a node has to go whatever the size of its pool is, or None."""
    if node.state in _ENDED:
        return (
            Terminate(node_id=node.id, reason="its row has ended, its machine has not")
            if node.provided
            else None
        )
    if node.state is NodeState.TERMINATING:
        return Terminate(node_id=node.id, reason="it was to be terminated already")
    never_joined = node.state not in _JOINED and not node.is_member
    age_s = now - node.created_at
    if node.pool not in pools:
        return Terminate(node_id=node.id, reason=f"there is no pool {node.pool!r} any more")
    if node.provided and not node.is_running:
        return Terminate(node_id=node.id, reason="its machine stopped", is_failure=never_joined)
    if not node.provided and (node.state is not NodeState.REQUESTED or age_s > CREATE_TIMEOUT_S):
        return Terminate(node_id=node.id, reason="the provider does not know it", is_failure=never_joined)
    if never_joined and age_s > JOIN_TIMEOUT_S:
        reason = f"it did not join the Ray cluster within {JOIN_TIMEOUT_S:.0f} s"
        return Terminate(node_id=node.id, reason=reason, is_failure=True)
    if node.state in _JOINED and not node.is_member:
        return Terminate(node_id=node.id, reason="it left the Ray cluster")
    if node.state is NodeState.DRAINING and node.deadline_at is not None and now >= node.deadline_at:
        return Terminate(node_id=node.id, reason="its drain deadline passed")
    return None


def _surplus(pool: PoolView, members: list[PlannedNode]) -> list[Terminate]:
    """The nodes above the pool's size: idle before busy, the newest first."""
    ordered = sorted(members, key=lambda node: (node.is_busy, -node.created_at, node.id))
    reason = f"pool {pool.name!r} has {len(members)} nodes, {pool.size} are wanted"
    return [Terminate(node_id=node.id, reason=reason) for node in ordered[: max(0, len(members) - pool.size)]]


def _missing(pool: PoolView, count: int, nodes: list[PlannedNode], now: float) -> list[Launch]:
    """Launches up to the pool's size, none while the pool pauses after failures, one after a pause."""
    wanted = pool.size - count
    if wanted <= 0 or now < launch_not_before(nodes):
        return []
    failures = failures_in_a_row(nodes)
    if failures:
        # One try at a time until one joins; a start that is still on its way is that try.
        starting = sum(1 for node in nodes if _counts(node) and node.state not in _JOINED)
        wanted = 0 if starting else 1
    reason = f"pool {pool.name!r} has {count} of {pool.size} nodes"
    launch = Launch(pool=pool.name, resources=pool.resources, labels=pool.labels, reason=reason)
    return [launch] * wanted


def failures_in_a_row(nodes: list[PlannedNode]) -> int:
    """Nodes of one pool that failed after its newest node that joined was created."""
    joined_at = max((node.created_at for node in nodes if node.state in _JOINED), default=float("-inf"))
    return sum(1 for node in nodes if node.state is NodeState.FAILED and node.created_at > joined_at)


def launch_not_before(nodes: list[PlannedNode]) -> float:
    """When a pool may launch again: a pause after its newest failure that doubles with every one in a row."""
    failures = failures_in_a_row(nodes)
    if not failures:
        return float("-inf")
    newest = max(node.created_at for node in nodes if node.state is NodeState.FAILED)
    return newest + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))

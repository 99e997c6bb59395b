"""Which Ray node stands for a node of ours (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.ray.heartbeats import AgentStatus

#: Ray counts in ten-thousandths of a resource.
_EXACT = 1e-4


@dataclass(frozen=True, kw_only=True)
class MemberNode:
    """One of our nodes as Ray sees it."""

    #: `node_...`
    node_id: str
    #: Ray's own id of it, hexadecimal.
    ray_node_id: str
    address: str
    #: False once Ray gave it up; such nodes stay listed for a while.
    is_alive: bool
    #: It takes no new work and goes at a deadline.
    is_draining: bool
    #: Ray resources it brings, e.g. {"CPU": 1.0}; empty when it is dead.
    resources: dict[str, float] = field(default_factory=dict)
    #: Ray has allocated some of its resources: to workers on it, or to those that their driver does not report yet.
    is_in_use: bool = False
    #: While draining: when it has to be gone, seconds since 1970.
    deadline_at: float | None = None
    #: What is heard of its agent; None where none was ever heard, as on local nodes, which have no agent.
    agent: AgentStatus | None = None
    #: Port of its raylet, to find out quicker than Ray whether it answers.
    raylet_port: int = 0

    @property
    def leaves(self) -> str | None:
        """While draining, or once it has left: why, as its agent says; None without one."""
        has_to_go = self.is_draining or not self.is_alive
        return self.agent.heartbeat.leaves if has_to_go and self.agent is not None else None


def is_given_away(brings: Mapping[str, float], free: Mapping[str, float] | None) -> bool:
    """Some of what a node brings is not free; None: Ray does not say yet, as of a node that joins just now.

    Objects that are kept on a node are no work: a task or actor that needs them holds other resources of a node.
    """
    if free is None:
        return False
    return any(
        free.get(name, 0.0) < amount - _EXACT
        for name, amount in brings.items()
        if name != "object_store_memory"
    )


def doubtful(members: Iterable[MemberNode]) -> bool:
    """Several living Ray nodes have the same node id, so that `chosen` has to know when they began."""
    living = [member.node_id for member in members if member.is_alive]
    return len(set(living)) < len(living)


def chosen(members: Iterable[MemberNode], began_at: Mapping[str, float]) -> dict[str, MemberNode]:
    """The Ray node that counts for each node id: a living one before a dead one, then the newest.

    A machine joins again when its raylet was restarted.  Until Ray gives the first one up both are alive, in no
    order, and the first is a ghost: whether it drained says nothing about the new one, which takes work.  `began_at`
    is by Ray's own ids.
    """
    found: dict[str, MemberNode] = {}
    for member in members:
        other = found.get(member.node_id)
        if other is None or _rank(member, began_at) > _rank(other, began_at):
            found[member.node_id] = member
    return found


def _rank(member: MemberNode, began_at: Mapping[str, float]) -> tuple[bool, float]:
    return member.is_alive, began_at.get(member.ray_node_id, 0.0)

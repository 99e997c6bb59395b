"""What Ray knows about our nodes; only this, `drain.py` and `agent/gcs.py` touch Ray's internals in `cluster`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private import state as ray_state
from ray.experimental import internal_kv

#: Label that says which of our nodes a Ray node is.
NODE_LABEL = "remora-node"
#: Namespace and beginning of the keys under which agents tell how their machines are, as JSON:
#: `{"at": seconds since 1970, "problems": [text], "leaves": why its node is drained, or null}`.
BEAT_NAMESPACE = b"remora"
BEAT_PREFIX = b"agent:"


class MembershipUnknown(Exception):
    """Ray could not be asked; whoever wanted to know must not take that for "no members"."""


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
    #: While draining: when it has to be gone, seconds since 1970.
    deadline_at: float | None = None
    #: While draining: why, as its agent says; None without one.
    leaves: str | None = None
    #: Port of its raylet, to find out quicker than Ray whether it answers.
    raylet_port: int = 0


class RayMembership:
    """Asks the cluster that this process is connected to (`ray.init` has been called)."""

    def observe(self) -> dict[str, MemberNode]:
        """All nodes that carry our label, by node id; the head is not among them.

        Raises MembershipUnknown when Ray cannot be asked.
        """
        if not ray.is_initialized():
            raise MembershipUnknown("this process is not connected to a Ray cluster")
        try:
            nodes = ray.nodes()
            draining = ray_state.state.get_draining_nodes()
        except Exception as error:  # Ray raises what its RPC library raises
            raise MembershipUnknown(f"the Ray cluster did not say which nodes it has: {error}") from error
        members: dict[str, MemberNode] = {}
        for node in nodes:
            member = _member(node, draining)
            # A node that joined twice is known twice, and only one of the two can be alive.
            if member is not None and (member.is_alive or member.node_id not in members):
                members[member.node_id] = member
        return members


def _member(node: dict[str, Any], draining: dict[str, int]) -> MemberNode | None:
    node_id = node["Labels"].get(NODE_LABEL)
    if node_id is None:
        return None
    deadline_ms = draining.get(node["NodeID"])
    return MemberNode(
        node_id=node_id,
        ray_node_id=node["NodeID"],
        address=node["NodeManagerAddress"],
        is_alive=node["Alive"],
        is_draining=node["Alive"] and deadline_ms is not None,
        resources={k: v for k, v in node["Resources"].items() if not k.startswith("node:")},
        deadline_at=deadline_ms / 1000 if deadline_ms else None,
        leaves=_why_it_leaves(node_id) if node["Alive"] and deadline_ms is not None else None,
        raylet_port=node["NodeManagerPort"],
    )


def _why_it_leaves(node_id: str) -> str | None:
    """What the node's agent says; nothing where it says nothing, or nothing that can be read."""
    with contextlib.suppress(Exception):  # a reason is no reason to see no nodes
        told = internal_kv._internal_kv_get(BEAT_PREFIX + node_id.encode(), namespace=BEAT_NAMESPACE)
        reason = json.loads(told or b"{}").get("leaves")
        return reason[:500] if isinstance(reason, str) and reason else None
    return None

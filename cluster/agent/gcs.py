"""What the agent asks of the head of the Ray cluster, one call each; run in a process that may be thrown away.

Ray's client waits for a head that does not answer, and ends its process when that takes too long.
"""

from __future__ import annotations

from functools import cache

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

from cluster.membership import BEAT_NAMESPACE, BEAT_PREFIX, NODE_LABEL, began_at


@cache
def _client(address: str) -> GcsClient:
    return GcsClient(address=address)


def _node(address: str, node_id: str) -> autoscaler_pb2.NodeState | None:
    """The living Ray node of one of our nodes, or None.  Of several it is the newest, see `cluster.members.chosen`."""
    reply = autoscaler_pb2.GetClusterResourceStateReply()
    reply.ParseFromString(_client(address).get_cluster_resource_state())
    living = [
        node
        for node in reply.cluster_resource_state.node_states
        if node.status != autoscaler_pb2.NodeStatus.DEAD and node.labels.get(NODE_LABEL) == node_id
    ]
    began = began_at(_client(address)) if len(living) > 1 else {}
    return max(living, key=lambda node: began.get(node.node_id.hex(), 0.0), default=None)


def drain(address: str, node_id: str, deadline_at: float, reason: str) -> str:
    """Drain the node; an empty text when the head accepted, else why it did not."""
    node = _node(address, node_id)
    if node is None:
        return "the head does not know this node as a living one"
    kind = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION
    accepted, why = _client(address).drain_node(node.node_id.hex(), kind, reason, int(deadline_at * 1000))
    return "" if accepted else str(why or "the head refused")


def is_empty(address: str, node_id: str) -> bool:
    """True when nothing runs on the node, or Ray has let it go."""
    node = _node(address, node_id)
    return node is None or node.idle_duration_ms > 0


def beat(address: str, node_id: str, text: str) -> None:
    """Leave word of how the machine is."""
    key = BEAT_PREFIX + node_id.encode()
    _client(address).internal_kv_put(key, text.encode(), True, BEAT_NAMESPACE, timeout=5)

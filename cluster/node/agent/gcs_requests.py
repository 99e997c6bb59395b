"""The agent's requests to the head of the Ray cluster, one call each; run in a process that may be killed.

Ray's client waits for a head that does not answer, and ends its process when that takes too long.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

from cluster.ray.membership import BEAT_NAMESPACE, BEAT_PREFIX, began_at
from remora.ray_labels import NODE_LABEL


@cache
def _client(address: str) -> GcsClient:
    return GcsClient(address=address)


def _living(address: str, node_id: str) -> list[autoscaler_pb2.NodeState]:
    """The living Ray nodes of one of our nodes: one, unless its machine has joined twice or has left."""
    reply = autoscaler_pb2.GetClusterResourceStateReply()
    reply.ParseFromString(_client(address).get_cluster_resource_state())
    return [
        node
        for node in reply.cluster_resource_state.node_states
        if node.status != autoscaler_pb2.NodeStatus.DEAD and node.labels.get(NODE_LABEL) == node_id
    ]


class Drained(NamedTuple):
    """What the head says to a drain."""

    #: The Ray node that it drains, in hex; empty: none.
    ray_node_id: str
    #: Why it drains none; empty: it does.
    refusal: str = ""


def drain(address: str, node_id: str, deadline_at: float, reason: str) -> Drained:
    """Drain the node; of several Ray nodes it is the newest, see `cluster.ray.members.chosen`."""
    living = _living(address, node_id)
    if not living:
        return Drained("", "the head does not know this node as a living one")
    began = began_at(_client(address)) if len(living) > 1 else {}
    ray_node_id = max(living, key=lambda node: began.get(node.node_id.hex(), 0.0)).node_id.hex()
    kind = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION
    accepted, why = _client(address).drain_node(ray_node_id, kind, reason, int(deadline_at * 1000))
    return Drained(ray_node_id) if accepted else Drained("", str(why or "the head refused"))


def is_empty(address: str, node_id: str, drained_id: str) -> bool | None:
    """True when nothing runs on the node, of whose Ray nodes `drained_id` was drained, and nothing can be sent there.

    None, unknown, before a drain: then that Ray does not know the node may as well mean that it has given it up.
    """
    if not drained_id:
        return None
    return all(
        node.node_id.hex() == drained_id and node.idle_duration_ms > 0 for node in _living(address, node_id)
    )


def send_heartbeat(address: str, node_id: str, text: str) -> None:
    """Store the agent's heartbeat in Ray's internal KV."""
    key = BEAT_PREFIX + node_id.encode()
    _client(address).internal_kv_put(key, text.encode(), True, BEAT_NAMESPACE, timeout=5)

"""Have Ray give a node no more work, with the true deadline at which it will be gone."""

from __future__ import annotations

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

from cluster.ray.membership import RayMembership


class DrainRefused(Exception):
    """Ray did not accept the drain; the message says why."""


def drain(ray_node_id: str, reason: str, deadline_at: float) -> None:
    """Drain a node of the cluster that this process is connected to; takes some milliseconds.

    `ray_node_id` is Ray's hexadecimal id (`MemberNode.ray_node_id`), `reason` a sentence for people, `deadline_at` in
    seconds since 1970.  The node shows as draining within a second.  Ray itself never ends a node that still works at
    its deadline; the planner does.  Raises DrainRefused when the node is unknown or dead, or the head does not answer.
    """
    if not any(node["NodeID"] == ray_node_id and node["Alive"] for node in ray.nodes()):
        # Ray itself says yes to draining a node that it does not know.
        raise DrainRefused(f"Ray node {ray_node_id[:12]} was not drained: it is not alive")
    try:
        gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
        accepted, why = gcs.drain_node(
            ray_node_id, autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION, reason, int(deadline_at * 1000)
        )
    except Exception as error:  # Ray raises what its RPC library raises
        raise DrainRefused(f"Ray node {ray_node_id[:12]} was not drained: {error}") from error
    if not accepted:
        raise DrainRefused(f"Ray node {ray_node_id[:12]} was not drained: {why}")


class RayDrains:
    """`service.interfaces.Drains` of the cluster that this process is connected to, by the ids of our nodes."""

    def __init__(self, membership: RayMembership) -> None:
        self._membership = membership

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        """Drain a node of ours until `deadline_at`, seconds since 1970.

        One that drains already keeps its deadline when that comes first: a cloud's notice is not put off.
        Raises DrainRefused when it is no living member, MembershipUnknown when Ray does not answer.
        """
        with self._membership.asking():
            member = self._membership.observe().get(node_id)
            if member is None or not member.is_alive:
                raise DrainRefused(f"{node_id} was not drained: it is no living member of the Ray cluster")
            if member.deadline_at is None or member.deadline_at > deadline_at:
                drain(member.ray_node_id, reason, deadline_at)

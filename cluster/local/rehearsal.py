"""Take a local node as a cloud takes a spot machine: with a notice first, or without."""

from __future__ import annotations

from cluster.local.provider import LocalProvider
from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership

#: What Ray and the node's events say about it.
REASON = "a preemption is rehearsed"


class LocalRehearsal:
    """Preempts local nodes; this process is connected to their Ray cluster."""

    def __init__(self, provider: LocalProvider, membership: RayMembership) -> None:
        self._provider = provider
        self._membership = membership

    @property
    def own_notice_s(self) -> None:
        """None: only this process takes a local node, so its notice is as long as requested."""
        return None

    def notify(self, node_id: str, deadline_at: float) -> None:
        """Give the node notice that it goes at `deadline_at` (seconds since 1970), as its agent would after a notice.

        Fine when it knows already.  Raises DrainRefused when it is no living member of the Ray cluster, and
        MembershipUnknown when Ray does not answer.
        """
        with self._membership.asking():
            member = self._membership.observe().get(node_id)
            # A node without a member has no raylet that could be drained; Ray's own refusal says so in words.
            drain(member.ray_node_id if member is not None else node_id, REASON, deadline_at)

    def take(self, node_id: str) -> None:
        """End all of it at once, like a machine that is gone; fine when it is.  Raises ProviderError."""
        self._provider.kill(node_id)

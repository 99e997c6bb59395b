"""The provider of an existing Ray cluster: a node of it is claimed where another provider would make a machine.

The operators of the cluster decide which nodes it has.  What is released goes on running.  Ray is asked to drain none:
the claim of a node says that it drains, and drivers, which use claimed nodes alone, take their work away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import InsufficientCapacity, NodeRequest, ProvidedNode, ProviderError
from cluster.ray.node_claims import Claim, ExistingCluster, RayNode, most_of_each, unclaimed

#: The size that every node has by which policies name it, whatever it brings.
NODE = "node"
#: The quota of which each node uses one unit: there are as many as there are usable nodes.
_QUOTA = "nodes"
#: Seconds for which no further node is asked for when all are claimed.
REFUSED_S = 10.0


@dataclass(frozen=True)
class _Seen:
    """The cluster at one look."""

    usable: int = 0
    unclaimed: int = 0
    most: Mapping[str, float] | None = None


class ExistingProvider:
    """`cluster.provider.Provider` and `service.interfaces.Supply` of the nodes of an existing cluster."""

    def __init__(self, cluster: ExistingCluster, clock: Callable[[], float]) -> None:
        """`clock` says the time of claims and refusals, in seconds since 1970."""
        self._cluster = cluster
        self._clock = clock
        self._seen = _Seen()

    def create(self, request: NodeRequest) -> None:
        """Claim a node; idempotent by `request.node_id`.

        Raises InsufficientCapacity when none is left, ProviderError when Ray does not answer.
        """
        nodes, claims, sick = self._look()
        if any(claim.node_id == request.node_id for claim in claims):
            return
        for node in unclaimed(nodes, claims, sick):
            try:
                if self._cluster.claim(Claim(node.id, request.node_id, request.pool, self._clock())):
                    return
            except Exception as error:  # Ray raises what its RPC library raises
                raise ProviderError(
                    f"the Ray cluster did not say whether a node was claimed: {error}"
                ) from error
        raise InsufficientCapacity(
            "every node of the existing cluster is in use already",
            offering=request.offering or request.pool,
            until=self._clock() + REFUSED_S,
        )

    def list(self) -> list[ProvidedNode]:
        """Every claimed node; those that Ray gave up do not run.  Raises ProviderError when Ray does not answer."""
        nodes, claims, sick = self._look()
        self._forget_dead(nodes, sick)
        by_id = {node.id: node for node in nodes}
        free = unclaimed(nodes, claims, sick)
        counted = {claim.ray_node_id for claim in claims} | {node.id for node in free}
        usable = sum(node.is_usable and node.id in counted for node in nodes)
        self._seen = _Seen(usable, len(free), most_of_each(nodes))
        return [_provided(claim, by_id.get(claim.ray_node_id)) for claim in claims]

    def delete(self, node_id: str) -> None:
        """Release the node; drivers take their work away.  Raises ProviderError when Ray does not answer."""
        _, claims, _ = self._look()
        try:
            for claim in claims:
                if claim.node_id == node_id:
                    self._cluster.release(claim.ray_node_id)
        except Exception as error:  # Ray raises what its RPC library raises
            raise ProviderError(f"the node {node_id} was not released: {error}") from error

    def offerings(self) -> tuple[Offering, ...]:
        """One: a node of the cluster, with the most of each resource that one of them brings."""
        offering = Offering(
            size=NODE,
            zone=None,
            capacity=CapacityType.ON_DEMAND,
            resources=dict(self._seen.most or {}),
            price_per_hour=0.0,
            quota=_QUOTA,
            quota_units=1,
        )
        return (offering,)

    def quota_left(self) -> Mapping[str, int]:
        """Nodes that may still be claimed, at the last look."""
        return {_QUOTA: self._seen.unclaimed}

    def quota_limits(self) -> Mapping[str, int]:
        """Nodes that there are, at the last look."""
        return {_QUOTA: self._seen.usable}

    def withhold(self, node_id: str) -> None:
        """Let the machine behind this node be claimed no more as long as Ray calls it alive: it computes wrongly.

        To be called before `delete`.  Raises ProviderError when Ray does not answer.
        """
        _, claims, _ = self._look()
        try:
            for claim in claims:
                if claim.node_id == node_id:
                    self._cluster.set_sick(claim.ray_node_id, is_sick=True)
        except Exception as error:  # Ray raises what its RPC library raises
            raise ProviderError(f"the node {node_id} was not withheld: {error}") from error

    def _look(self) -> tuple[Sequence[RayNode], Sequence[Claim], set[str]]:
        """Nodes, claims, and Ray's ids of the nodes that are not claimed; none of it while another service has them."""
        try:
            other = self._cluster.other_owner()
            nodes, claims, sick = self._cluster.nodes(), self._cluster.claims(), self._cluster.sick()
        except Exception as error:  # Ray raises what its RPC library raises
            raise ProviderError(f"the Ray cluster did not say which nodes it has: {error}") from error
        if other:
            raise ProviderError(
                f"the Ray cluster is used by the service in {other} now, so no node is claimed: end one of the two with"
                " `remora down`"
            )
        return nodes, claims, sick

    def _forget_dead(self, nodes: Sequence[RayNode], sick: set[str]) -> None:
        try:
            for gone in sick - {node.id for node in nodes if node.is_alive}:
                self._cluster.set_sick(gone, is_sick=False)
        except Exception as error:  # Ray raises what its RPC library raises
            raise ProviderError(f"the Ray cluster did not forget a node that has left: {error}") from error


class ClaimDrains:
    """`service.interfaces.Drains` of nodes that are not ours: to Ray's own drains there is no end."""

    def __init__(self, cluster: ExistingCluster) -> None:
        self._cluster = cluster

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        """Write into the node's claim until when drivers have to take their work away, seconds since 1970.

        An earlier deadline stays; others use the node on.  Raises what Ray raises.
        """
        del reason
        for claim in self._cluster.claims():
            known = claim.drains_until
            if claim.node_id == node_id and (known is None or known > deadline_at):
                self._cluster.rewrite(replace(claim, drains_until=deadline_at))


def _provided(claim: Claim, node: RayNode | None) -> ProvidedNode:
    runs = node is not None and node.is_alive
    return ProvidedNode(
        node_id=claim.node_id,
        pool=claim.pool,
        is_running=runs,
        address=node.address if node is not None else None,
        created_at=claim.claimed_at,
        message=None if runs else "its node has left the Ray cluster",
    )

"""Which nodes of an existing Ray cluster are ours: claims in Ray's internal store, and who may be claimed.

A node is claimed by one entry that Ray makes only once, so that two controllers cannot claim the same node for two
rows.  `cluster/existing/` makes and removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from remora.ray_labels import CLAIM, CLAIMS_NAMESPACE, NODE_LABEL, claims_in

#: Beginning of the keys of nodes that are not claimed again, before Ray's id of the node.
_SICK = b"sick:"
#: The same of nodes on which jobs could not run when the service joined.
_UNFIT = b"unfit:"
#: Which service uses the cluster: the id of its home, and where that is.
_OWNER = b"service"
#: Seconds for a question to the head.
_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """One node of an existing cluster as Ray describes it."""

    #: Ray's own id of it, hexadecimal.
    id: str
    address: str
    is_alive: bool
    is_draining: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        """Workers may run on it: it lives, stays, brings CPUs or GPUs, and was not made by a Remora."""
        brings = self.resources.get("CPU", 0.0) > 0 or self.resources.get("GPU", 0.0) > 0
        return self.is_alive and not self.is_draining and brings and NODE_LABEL not in self.labels


@dataclass(frozen=True)
class Claim:
    """A node that stands for one of our rows."""

    ray_node_id: str
    node_id: str
    pool: str
    #: Seconds since 1970.
    claimed_at: float
    #: While it drains: when our work has to have left it, seconds since 1970.
    drains_until: float | None = None


class ExistingCluster(Protocol):
    """What a provider of existing nodes asks of the cluster; every method raises what Ray raises."""

    def nodes(self) -> list[RayNode]:
        """Every node that Ray knows, dead ones included."""
        ...

    def claims(self) -> list[Claim]:
        """Every claim."""
        ...

    def claim(self, claim: Claim) -> bool:
        """Claim a node; False when another claim was there first."""
        ...

    def release(self, ray_node_id: str) -> None:
        """Let the node be claimed by nothing; fine when it is not."""
        ...

    def rewrite(self, claim: Claim) -> None:
        """Put this in place of the claim of the same node."""
        ...

    def other_owner(self) -> str:
        """The service that uses the cluster in place of this one, in words; empty: this one does."""
        ...

    def sick(self) -> set[str]:
        """Ray's ids of the nodes that are not claimed: they compute wrongly, or cannot run jobs."""
        ...

    def set_sick(self, ray_node_id: str, *, is_sick: bool) -> None:
        """Let the node never be claimed again, or forget that."""
        ...


def unclaimed(nodes: Iterable[RayNode], claims: Iterable[Claim], sick: Collection[str] = ()) -> list[RayNode]:
    """Usable nodes that may be claimed, in a fixed order (pure)."""
    taken = {claim.ray_node_id for claim in claims} | set(sick)
    return sorted(
        (node for node in nodes if node.is_usable and node.id not in taken),
        key=lambda node: (node.address, node.id),
    )


def most_of_each(nodes: Iterable[RayNode]) -> dict[str, float]:
    """The most of each resource that one usable node brings, without what Ray makes for itself (pure)."""
    most: dict[str, float] = {}
    for node in nodes:
        if node.is_usable:
            for name, amount in node.resources.items():
                if not name.startswith("node:") and name != "object_store_memory":
                    most[name] = max(amount, most.get(name, 0.0))
    return most


def written(claim: Claim) -> bytes:
    """The value of a claim's entry (pure)."""
    until = "" if claim.drains_until is None else f" {claim.drains_until!r}"
    return f"{claim.node_id} {claim.pool} {claim.claimed_at!r}{until}".encode()


def parsed(ray_node_id: str, value: bytes) -> Claim | None:
    """The claim of an entry; None for what is none (pure)."""
    try:
        node_id, pool, at, *until = value.decode().split(" ")
        claim = Claim(ray_node_id, node_id, pool, float(at))
        return replace(claim, drains_until=float(*until)) if until else claim
    except (ValueError, TypeError):
        return None


class ClaimStore:
    """`ExistingCluster` of the cluster that this process is connected to (`ray.init` has been called)."""

    def __init__(self, ours: str = "", *, stays: bool = False) -> None:
        """`ours` is this service, as `cluster.existing.owner.owner_of` says it.

        `stays`: it says so again where nothing says whose the cluster is, as after the loss of the head's store.
        """
        self._ours = ours
        self._stays = stays

    def other_owner(self) -> str:
        """The service that uses the cluster in place of this one, in words; empty: this one does."""
        if not (found := self.owner()) and self._stays:
            self.own()
            found = self.owner()
        if not found or _id_of(found) == _id_of(self._ours):
            return ""
        return found.partition(" ")[2][:200] or found[:200]

    def owner(self) -> str:
        """The service that uses the cluster, as it has written it; empty: none does."""
        from ray.experimental import internal_kv

        value = internal_kv._internal_kv_get(_OWNER, namespace=CLAIMS_NAMESPACE) or b""
        return bytes(value).decode("utf-8", "replace")

    def own(self) -> None:
        """Let this service be the one that uses the cluster, unless another one does already."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(_OWNER, self._ours.encode(), overwrite=False, namespace=CLAIMS_NAMESPACE)

    def nodes(self) -> list[RayNode]:
        """Every node that Ray knows, dead ones included."""
        import ray
        from ray._private import state as ray_state

        found, draining = ray.nodes(), ray_state.state.get_draining_nodes()
        return [
            RayNode(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                is_alive=node["Alive"],
                is_draining=node["NodeID"] in draining,
                resources=node["Resources"],
                labels=node["Labels"],
            )
            for node in found
        ]

    def claims(self) -> list[Claim]:
        """Every claim; an entry that is none is passed over."""
        entries = claim_entries()
        found = (parsed(_ray_id(key), value) for key, value in entries.items())
        return [claim for claim in found if claim is not None]

    def claim(self, claim: Claim) -> bool:
        """Claim a node; False when another claim was there first."""
        from ray.experimental import internal_kv

        key = CLAIM + claim.ray_node_id.encode()
        internal_kv._internal_kv_put(key, written(claim), overwrite=False, namespace=CLAIMS_NAMESPACE)
        value = internal_kv._internal_kv_get(key, namespace=CLAIMS_NAMESPACE) or b""
        now = parsed(claim.ray_node_id, value)
        return now is not None and now.node_id == claim.node_id

    def release(self, ray_node_id: str) -> None:
        """Let the node be claimed by nothing; fine when it is not."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(CLAIM + ray_node_id.encode(), namespace=CLAIMS_NAMESPACE)

    def rewrite(self, claim: Claim) -> None:
        """Put this in place of the claim of the same node."""
        from ray.experimental import internal_kv

        key = CLAIM + claim.ray_node_id.encode()
        internal_kv._internal_kv_put(key, written(claim), overwrite=True, namespace=CLAIMS_NAMESPACE)

    def sick(self) -> set[str]:
        """Ray's ids of the nodes that are not claimed: they compute wrongly, or cannot run jobs."""
        from ray.experimental import internal_kv

        gcs = internal_kv.internal_kv_get_gcs_client()
        return {
            key.removeprefix(kind).decode("ascii", "replace")
            for kind in (_SICK, _UNFIT)
            for key in gcs.internal_kv_keys(kind, CLAIMS_NAMESPACE, timeout=_TIMEOUT_S)
        }

    def set_unfit(self, ray_node_ids: Iterable[str]) -> None:
        """Let these nodes not be claimed, and those that were unfit before be claimed again."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(_UNFIT, del_by_prefix=True, namespace=CLAIMS_NAMESPACE)
        for one in ray_node_ids:
            internal_kv._internal_kv_put(_UNFIT + one.encode(), b"1", namespace=CLAIMS_NAMESPACE)

    def set_sick(self, ray_node_id: str, *, is_sick: bool) -> None:
        """Let the node never be claimed again, or forget that."""
        from ray.experimental import internal_kv

        name = ray_node_id.encode()
        if is_sick:
            internal_kv._internal_kv_put(_SICK + name, b"1", namespace=CLAIMS_NAMESPACE)
        else:
            internal_kv._internal_kv_del(_SICK + name, namespace=CLAIMS_NAMESPACE)
            internal_kv._internal_kv_del(_UNFIT + name, namespace=CLAIMS_NAMESPACE)


def claim_entries() -> dict[bytes, bytes]:
    """The entries of all claims, by key.  Raises what Ray raises."""
    from ray.experimental import internal_kv

    gcs = internal_kv.internal_kv_get_gcs_client()
    keys = gcs.internal_kv_keys(CLAIM, CLAIMS_NAMESPACE, timeout=_TIMEOUT_S)
    found: dict[bytes, bytes] = {}
    if keys:
        found = gcs.internal_kv_multi_get(keys, namespace=CLAIMS_NAMESPACE, timeout=_TIMEOUT_S)
    return found


def claimed_nodes() -> dict[str, str]:
    """Our node ids by Ray's.  Raises what Ray raises."""
    return claims_in(claim_entries())


def _ray_id(key: bytes) -> str:
    return key.removeprefix(CLAIM).decode("ascii", "replace")


def _id_of(owner: str) -> str:
    return owner.partition(" ")[0]

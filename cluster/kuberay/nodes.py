"""A node as its claim, its pod and its RayCluster show it (pure)."""

from __future__ import annotations

from cluster.kuberay.documents import SeenCluster
from cluster.kuberay.pod_claims import KubernetesClaim, PodState, SeenPod
from cluster.kuberay.settings import KubeRaySettings
from cluster.provider import InsufficientCapacity, ProvidedNode, ProviderError, QuotaExceeded

#: Seconds for which a refusal is valid; the planner waits for less after a first one.
REFUSED_S = 3600.0
#: Seconds for which a pod on a machine may wait for its image, or for what its container is made of.
STUCK_S = 300.0
#: Seconds for which a refusal is valid that ends with what an operator does.
SUSPENDED_S = 180.0
#: Seconds for which KubeRay may fail to make a pod before that counts.
FAILS_S = 30.0


def node_of(
    claim: KubernetesClaim, cluster: SeenCluster, pod: SeenPod | None, settings: KubeRaySettings, now: float
) -> ProvidedNode:
    """The node of this claim at `now`, seconds since 1970; `pod` is the pod that it has, where that is there."""
    message, refusal = _wrong(claim, cluster, pod, settings, now)
    return ProvidedNode(
        node_id=claim.node_id,
        pool=claim.pool,
        is_running=not message,
        address=pod.address if pod is not None else None,
        created_at=claim.at,
        message=message or None,
        refusal=refusal,
    )


def _wrong(
    claim: KubernetesClaim, cluster: SeenCluster, pod: SeenPod | None, settings: KubeRaySettings, now: float
) -> tuple[str, ProviderError | None]:
    """Why the node does not run, empty when it does or may, and what refused it."""
    if claim.group not in cluster.groups:
        return f"the RayCluster has no worker group {claim.group!r} any more", None
    if is_suspended(cluster, claim.group):
        refusal = suspended(claim.group, settings, now)
        return str(refusal), refusal
    if claim.pod is None:
        return _without_pod(claim, cluster, settings, now)
    if pod is None:
        return f"its pod {claim.pod} is gone: it was evicted or deleted", None
    if pod.state is PodState.ENDED:
        return f"its pod {pod.name} has ended: {pod.message or 'Kubernetes does not say why'}", None
    if pod.state is PodState.LEAVING:
        return f"its pod {pod.name} is being deleted{f': {pod.message}' if pod.message else ''}", None
    if pod.is_stuck and not (pod.may_pass and now - max(pod.created_at, pod.placed_at, claim.at) < STUCK_S):
        return f"its pod {pod.name} cannot start: {pod.message}", None
    if pod.homeless_since is not None and now - max(pod.homeless_since, claim.at) >= settings.patience_s:
        said = f"no machine had capacity for {pod.name} within {settings.patience_s:.0f} s: {pod.message}"
        return said, _sold_out(claim, said, settings, now)
    return "", None


def _without_pod(
    claim: KubernetesClaim, cluster: SeenCluster, settings: KubeRaySettings, now: float
) -> tuple[str, ProviderError | None]:
    waits_s = now - claim.at
    if _fails(claim.group, cluster, settings) and now - max(cluster.failed_since, claim.at) >= FAILS_S:
        said = f"KubeRay cannot make a pod of {claim.group}: {cluster.failure}"
        if "exceeded quota" in cluster.failure:
            return said, QuotaExceeded(
                said, closes=(settings.offering_id(claim.group),), until=now + REFUSED_S
            )
        return said, _sold_out(claim, said, settings, now)
    if waits_s >= settings.patience_s:
        return f"KubeRay made no pod of {claim.group} within {settings.patience_s:.0f} s", None
    return "", None


def _fails(group: str, cluster: SeenCluster, settings: KubeRaySettings) -> bool:
    """Whether KubeRay cannot make pods of this group; what names no pod may be about any."""
    about = {name for name in cluster.groups if f"{settings.cluster}-{name}-worker" in cluster.failure}
    return bool(cluster.failure) and (not about or group in about)


def is_suspended(cluster: SeenCluster, group: str) -> bool:
    """Whether KubeRay has ended the pods of this group of the RayCluster until an operator lets it go on."""
    return cluster.is_suspended or cluster.groups[group].is_suspended


def suspended(group: str, settings: KubeRaySettings, now: float) -> InsufficientCapacity:
    """Why a suspended group has no nodes, until it is asked for again."""
    said = f"the worker group {group!r} is suspended: set suspend to false in the RayCluster"
    return InsufficientCapacity(said, offering=settings.offering_id(group), until=now + SUSPENDED_S)


def _sold_out(
    claim: KubernetesClaim, said: str, settings: KubeRaySettings, now: float
) -> InsufficientCapacity:
    return InsufficientCapacity(said, offering=settings.offering_id(claim.group), until=now + REFUSED_S)

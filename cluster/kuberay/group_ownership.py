"""Whether the pods of a worker group are ours to make and to end, as the RayCluster's document says (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.kuberay.documents import SeenCluster
from cluster.kuberay.pod_claims import NODES_ANNOTATION, SeenPod

AUTOSCALED = "Ray's autoscaler changes the RayCluster, too: set enableInTreeAutoscaling to false"


def why_not_ours(cluster: SeenCluster, pods: Iterable[SeenPod], name: str) -> str:
    """Why nothing may be changed in a group, with what to do; empty: it has our nodes alone.

    A RayCluster without the annotation was never ours, or lost it: pods that are there may be the work of others.
    """
    group = cluster.groups.get(name)
    if group is None:
        return f"the RayCluster has no worker group {name!r}: add it, or take it from the file"
    if cluster.is_autoscaled:
        return AUTOSCALED
    if group.hosts != 1:
        return f"a replica of the worker group {name!r} is {group.hosts} pods: set numOfHosts to 1"
    if cluster.claims is None and (group.replicas > 0 or any(pod.group == name for pod in pods)):
        return (
            f"the worker group {name!r} has pods, and the RayCluster no annotation {NODES_ANNOTATION}, so they are not"
            f" this service's: set replicas to 0, or have them ended by writing {NODES_ANNOTATION}={{}}"
        )
    return ""

"""One pass of KubeRay's operator over a RayCluster, as its release 1.7.0 does it (facts, not code).

https://github.com/ray-project/kuberay, `reconcilePods` in ray-operator/controllers/ray/raycluster_controller.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Pods(Protocol):
    """The pods of one RayCluster, as far as the operator changes them."""

    def of_group(self, group: str) -> Iterable[dict[str, Any]]:
        """Documents of its pods, those that are being deleted as well."""
        ...

    def make(self, group: dict[str, Any]) -> bool:
        """Make one more; False: a quota does not allow it."""
        ...

    def remove(self, name: str) -> None:
        """Delete a pod; fine when it is gone."""
        ...


def reconcile(spec: dict[str, Any], pods: Pods) -> bool:
    """Bring the pods nearer to what the RayCluster says; False: a pod could not be made."""
    groups = spec.get("workerGroupSpecs", [])
    if spec.get("suspend"):
        groups = [{**group, "suspend": True} for group in groups]
    # It ends at the first pod that cannot be made: groups that come later have to wait.
    return all(_group(group, pods, spec) for group in groups)


def _group(group: dict[str, Any], pods: Pods, spec: dict[str, Any]) -> bool:
    there = list(pods.of_group(group["groupName"]))
    if group.get("suspend"):
        for one in there:
            pods.remove(one["metadata"]["name"])
        return True
    ended = [one for one in there if one["status"].get("phase") in ("Failed", "Succeeded")]
    for one in ended:
        pods.remove(one["metadata"]["name"])
    if ended:
        # It ends this pass with an error, and makes new ones in the next one.
        return True
    named = set(group.get("scaleStrategy", {}).get("workersToDelete", []))
    for name in named:
        pods.remove(name)
    # One that is being deleted and is not named counts as one that is there.
    counted = [one for one in there if one["metadata"]["name"] not in named]
    least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
    wanted = min(max(group.get("replicas", least), least), most)
    for _ in range(wanted - len(counted)):
        if not pods.make(group):
            return False
    if not spec.get("enableInTreeAutoscaling"):
        # It chooses by itself which ones go: those that its cache happens to list first.
        for one in counted[: max(0, len(counted) - wanted)]:
            pods.remove(one["metadata"]["name"])
    return True

"""What the emulated API server knows: one RayCluster, its pods, machines with capacity for them, and a quota."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from cluster.kuberay.documents import CLUSTER_LABEL, GROUP_LABEL, KIND_LABEL
from cluster.kuberay.emulator.operator import reconcile

#: How often the operator looks until nothing changes any more.
_PASSES = 10


class World:
    """Pods come, run and go at once, unless a knob says otherwise.  One thread at a time."""

    def __init__(self, cluster: dict[str, Any]) -> None:
        """`cluster` is the document of the RayCluster as an operator writes it."""
        self.cluster = copy.deepcopy(cluster)
        self.pods: dict[str, dict[str, Any]] = {}
        self._version = itertools.count(1000)
        self._number = itertools.count(1)
        metadata = self.cluster["metadata"]
        metadata |= {"generation": 1, "uid": "11111111-1111-1111-1111-111111111111"}
        self.cluster.setdefault("status", {})
        self.touch()
        #: Knob: the operator looks by itself after each change.
        self.operator_runs = True
        #: Knob: pods that machines have capacity for, by group; a group that is not named has capacity for all.
        self.capacity: dict[str, int] = {}
        #: Knob: pods that the quota of the namespace allows; None: all.
        self.quota: int | None = None
        #: Knob: pods that are deleted stay until `finish`.
        self.lingers = False
        #: The pod that the quota did not allow last.
        self._refused = ""

    def touch(self) -> None:
        """The RayCluster has another version."""
        self.cluster["metadata"]["resourceVersion"] = str(next(self._version))

    def replace(self, document: dict[str, Any]) -> None:
        """The RayCluster becomes this document, and the operator sees it."""
        if document.get("spec") != self.cluster.get("spec"):
            document["metadata"]["generation"] = self.cluster["metadata"]["generation"] + 1
        self.cluster = document
        self.touch()
        self.look()

    def look(self) -> None:
        """Let the operator and the scheduler do what is to be done, where they run."""
        for _ in range(_PASSES if self.operator_runs else 0):
            before = {name: dict(one["metadata"]) for name, one in self.pods.items()}
            is_done = reconcile(self.cluster["spec"], self)
            self._report(is_done)
            if before == {name: dict(one["metadata"]) for name, one in self.pods.items()}:
                break
        self._schedule()

    def _report(self, is_done: bool) -> None:
        status = self.cluster["status"]
        conditions = [one for one in status.get("conditions", []) if one["type"] != "ReplicaFailure"]
        if not is_done:
            said = f'failed to create worker pod pods "{self._refused}" is forbidden: exceeded quota: nodes'
            conditions.append(condition("ReplicaFailure", "True", "FailedCreateWorkerPod", said))
        after = {
            **status,
            "conditions": conditions,
            "observedGeneration": self.cluster["metadata"]["generation"],
            "availableWorkerReplicas": len(self.pods),
        }
        # A condition that stays keeps its time.
        if [one["type"] for one in conditions] == [one["type"] for one in status.get("conditions", [])]:
            after["conditions"] = status.get("conditions", [])
        if after != status:
            self.cluster["status"] = after
            self.touch()

    def _schedule(self) -> None:
        running: dict[str, int] = {}
        for one in self.pods.values():
            group = one["metadata"]["labels"][GROUP_LABEL]
            if one["status"]["phase"] == "Running":
                running[group] = running.get(group, 0) + 1
        for one in self.pods.values():
            group = one["metadata"]["labels"][GROUP_LABEL]
            if one["status"]["phase"] != "Pending" or "deletionTimestamp" in one["metadata"]:
                continue
            if running.get(group, 0) < self.capacity.get(group, 2**31):
                running[group] = running.get(group, 0) + 1
                one["status"] = {
                    "phase": "Running",
                    "podIP": f"10.1.0.{next(self._number) % 250 + 1}",
                    "conditions": [condition("PodScheduled", "True", "", "")],
                }
            elif not one["status"]["conditions"]:
                said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
                one["status"]["conditions"] = [condition("PodScheduled", "False", "Unschedulable", said)]

    def of_group(self, group: str) -> Iterable[dict[str, Any]]:
        """See `operator.Pods.of_group`."""
        return [one for one in self.pods.values() if one["metadata"]["labels"][GROUP_LABEL] == group]

    def make(self, group: dict[str, Any]) -> bool:
        """See `operator.Pods.make`."""
        cluster = self.cluster["metadata"]["name"]
        name = f"{cluster}-{group['groupName']}-worker-{next(self._number):05d}"
        if self.quota is not None and len(self.pods) >= self.quota:
            self._refused = name
            return False
        labels = {CLUSTER_LABEL: cluster, KIND_LABEL: "worker", GROUP_LABEL: group["groupName"]}
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": self.cluster["metadata"]["namespace"],
                "creationTimestamp": timestamp(),
                "labels": labels,
            },
            "spec": copy.deepcopy(group.get("template", {}).get("spec", {})),
            "status": {"phase": "Pending", "conditions": []},
        }
        return True

    def remove(self, name: str) -> None:
        """See `operator.Pods.remove`."""
        if name in self.pods and self.lingers:
            self.pods[name]["metadata"].setdefault("deletionTimestamp", timestamp())
        else:
            self.pods.pop(name, None)

    def finish(self) -> None:
        """Knob: pods that were being deleted are gone, and the operator sees it."""
        self.pods = {
            name: one for name, one in self.pods.items() if "deletionTimestamp" not in one["metadata"]
        }
        self.look()

    def fail(self, name: str, reason: str = "Evicted", message: str = "The node was low on memory.") -> None:
        """Knob: all processes of a pod end."""
        self.pods[name]["status"] |= {"phase": "Failed", "reason": reason, "message": message}
        self.look()

    def stick(self, name: str, reason: str, message: str) -> None:
        """Knob: the pod's container cannot start."""
        waiting = {"state": {"waiting": {"reason": reason, "message": message}}}
        self.pods[name]["status"] |= {"phase": "Pending", "containerStatuses": [waiting]}

    def take(self, name: str) -> None:
        """Knob: the cloud takes the pod's machine, and the pod goes with it."""
        self.pods.pop(name, None)
        self.look()


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    """A condition of a status, as from now."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(),
    }


def timestamp() -> str:
    """Now, as Kubernetes writes it."""
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""What Kubernetes' documents say of a RayCluster and its pods, and the patch that changes one (pure).

Every field is optional here: a document that lacks one, or has another kind of value, says nothing by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cluster.kuberay.pod_claims import NODES_ANNOTATION, GroupDecision, PodState, SeenGroup, SeenPod

#: Labels that KubeRay gives to its pods.
CLUSTER_LABEL, KIND_LABEL, GROUP_LABEL = "ray.io/cluster", "ray.io/node-type", "ray.io/group"
#: Characters of what Kubernetes says that are shown.
MOST_CHARACTERS = 300
#: Reasons for which a container waits that do not pass by themselves.
_STUCK = frozenset(
    {
        *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    }
)
#: Those of them that pass when a registry answers again, or when an operator has made what is missing.
_MAY_PASS = frozenset(
    {"ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
#: The largest number that Kubernetes has for pods of a group.
_ANY_NUMBER = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SeenCluster:
    """A RayCluster as its document shows it."""

    version: str
    groups: Mapping[str, SeenGroup]
    #: The annotation with the claims; None: there is none.
    claims: str | None
    has_annotations: bool
    #: Ray's own autoscaler changes the groups, too.
    is_autoscaled: bool
    #: Its pods are ended and none is made, as `spec.suspend` says.
    is_suspended: bool = False
    #: KubeRay has seen this version of what is asked for.
    is_observed: bool = False
    #: Why KubeRay cannot make pods, for people; empty: it can.
    failure: str = ""
    #: Since when, seconds since 1970.
    failed_since: float = math.inf


def read_cluster(document: Mapping[str, Any]) -> SeenCluster:
    """The document of a RayCluster."""
    metadata, spec = _map(document, "metadata"), _map(document, "spec")
    annotations = _map(metadata, "annotations")
    claims = annotations.get(NODES_ANNOTATION)
    groups = [
        _group(index, one)
        for index, one in enumerate(_list(spec, "workerGroupSpecs"))
        if isinstance(one, Mapping)
    ]
    failed = next((one for one in conditions(document, "ReplicaFailure") if one.get("status") == "True"), {})
    return SeenCluster(
        version=str(metadata.get("resourceVersion", "")),
        groups={group.name: group for group in groups},
        claims=claims if isinstance(claims, str) else None,
        has_annotations=bool(annotations),
        is_autoscaled=spec.get("enableInTreeAutoscaling") is True,
        is_suspended=spec.get("suspend") is True,
        is_observed=_map(document, "status").get("observedGeneration", 0) == metadata.get("generation", 0),
        failure=shown(failed.get("message") or failed.get("reason")),
        failed_since=seconds(failed.get("lastTransitionTime")) if failed else math.inf,
    )


def _group(index: int, group: Mapping[str, Any]) -> SeenGroup:
    named = _list(_map(group, "scaleStrategy"), "workersToDelete")
    return SeenGroup(
        name=str(group.get("groupName", "")),
        index=index,
        replicas=_number(group.get("replicas"), 0),
        most=_number(group.get("maxReplicas"), _ANY_NUMBER),
        to_delete=tuple(str(name) for name in named),
        hosts=_number(group.get("numOfHosts"), 1),
        least=_number(group.get("minReplicas"), 0),
        is_suspended=group.get("suspend") is True,
    )


def read_pod(document: Mapping[str, Any]) -> SeenPod:
    """The document of a worker pod."""
    metadata, status = _map(document, "metadata"), _map(document, "status")
    state = _state(metadata, status)
    stuck = next(iter(_stuck(status)), None)
    placed = {str(one.get("status")): one for one in conditions(document, "PodScheduled")}
    unplaced = placed.get("False")
    since = None
    if unplaced is not None and state is PodState.STARTING:
        since = seconds(unplaced.get("lastTransitionTime"))
    address = status.get("podIP")
    return SeenPod(
        name=str(metadata.get("name", "")),
        group=str(_map(metadata, "labels").get(GROUP_LABEL, "")),
        state=state,
        created_at=seconds(metadata.get("creationTimestamp")),
        address=address if isinstance(address, str) and address else None,
        message=_why(status, state, stuck, unplaced),
        homeless_since=since,
        placed_at=seconds(placed["True"].get("lastTransitionTime")) if "True" in placed else 0.0,
        is_stuck=stuck is not None and state is not PodState.ENDED,
        may_pass=stuck is not None and stuck.get("reason") in _MAY_PASS,
    )


def _state(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> PodState:
    if metadata.get("deletionTimestamp"):
        return PodState.LEAVING
    phase = status.get("phase")
    if phase in ("Failed", "Succeeded"):
        return PodState.ENDED
    return PodState.RUNNING if phase == "Running" else PodState.STARTING


def _stuck(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """What containers wait for that will not come."""
    for container in (*_list(status, "initContainerStatuses"), *_list(status, "containerStatuses")):
        if isinstance(container, Mapping):
            waits = _map(_map(container, "state"), "waiting")
            if waits.get("reason") in _STUCK:
                yield waits


def _why(
    status: Mapping[str, Any],
    state: PodState,
    stuck: Mapping[str, Any] | None,
    unplaced: Mapping[str, Any] | None,
) -> str:
    if state in (PodState.ENDED, PodState.LEAVING):
        return _reason(status)
    if stuck is not None:
        return _reason(stuck)
    return _reason(unplaced) if unplaced is not None else ""


def _reason(said: Mapping[str, Any]) -> str:
    reason, message = shown(said.get("reason")), shown(said.get("message"))
    return f"{reason}: {message}" if reason and message else reason or message


def changes(seen: SeenCluster, claims: str, decisions: Mapping[str, GroupDecision]) -> list[dict[str, Any]]:
    """The JSON patch (RFC 6902) that writes claims and groups, and nothing where the document changed meanwhile."""
    path = f"/metadata/annotations/{_escaped(NODES_ANNOTATION)}"
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": seen.version}]
    if seen.has_annotations:
        patch.append({"op": "add", "path": path, "value": claims})
    else:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {NODES_ANNOTATION: claims}})
    for name, decision in decisions.items():
        group = seen.groups[name]
        at = f"/spec/workerGroupSpecs/{group.index}"
        if decision.replicas != group.replicas:
            patch.append({"op": "add", "path": f"{at}/replicas", "value": decision.replicas})
        if decision.to_delete != group.to_delete:
            named = {"workersToDelete": list(decision.to_delete)}
            patch.append({"op": "add", "path": f"{at}/scaleStrategy", "value": named})
    return patch


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def conditions(document: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """The conditions of this type in a document's status."""
    found = _list(_map(document, "status"), "conditions")
    return [one for one in found if isinstance(one, Mapping) and one.get("type") == kind]


def seconds(time: object) -> float:
    """A time of Kubernetes in seconds since 1970; 0.0 for anything else."""
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def shown(said: object) -> str:
    """What Kubernetes says, on one line of bounded length."""
    return " ".join(said[: 4 * MOST_CHARACTERS].split())[:MOST_CHARACTERS] if isinstance(said, str) else ""


def _map(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    found = document.get(key)
    return found if isinstance(found, list) else []


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

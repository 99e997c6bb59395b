"""The KubeRay provider before an emulated API server on the loopback, with the emulator's knobs."""

from __future__ import annotations

import functools
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster.kuberay.api import KubernetesApi
from cluster.kuberay.documents import read_cluster
from cluster.kuberay.emulator.server import TOKEN, Fault, KubernetesEffect, KubernetesServer, Right
from cluster.kuberay.emulator.world import World
from cluster.kuberay.pod_claims import read_claims
from cluster.kuberay.provider import KubeRayProvider
from cluster.kuberay.settings import KubeRaySettings
from cluster.provider import NodeRequest, ProvidedNode

MANIFESTS = Path(__file__).parents[3] / "deploy/kubernetes"
GROUP = "cpu-spot"
OFFERING = f"{GROUP}/any/spot"


@functools.cache
def every_manifest() -> tuple[dict[str, Any], ...]:
    """All documents in deploy/kubernetes; not to be changed."""
    return tuple(
        one for path in sorted(MANIFESTS.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
    )


def manifests(kind: str) -> list[dict[str, Any]]:
    """All documents of this kind in deploy/kubernetes; not to be changed."""
    return [one for one in every_manifest() if one.get("kind") == kind]


def rights() -> list[Right]:
    """What the manifests allow the controller's service account."""
    (role,) = manifests("Role")
    return [
        (verb, group, resource, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    ]


def place() -> dict[str, Any]:
    """The file of REMORA_KUBERAY_FILE that the manifests have."""
    (found,) = [
        text for one in manifests("ConfigMap") for name, text in one["data"].items() if name == "kuberay.yaml"
    ]
    document: dict[str, Any] = yaml.safe_load(found)
    return document


class Names:
    """`PodNames` that remembers."""

    def __init__(self) -> None:
        self.known: dict[str, NodeRequest] = {}
        self.calls = 0
        self.is_silent = False

    def publish(self, pods: Mapping[str, NodeRequest]) -> None:
        if self.is_silent:
            raise ConnectionError("the head does not answer")
        self.calls += 1
        self.known |= pods

    def forget(self, pods: Collection[str]) -> None:
        for name in pods:
            self.known.pop(name, None)


class RigClock:
    """The host's time, moved by the test."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed_s


class KubeRayRig:
    """`Provider` with `kill`, and what tests of KubeRay need besides; to be used as a context manager."""

    def __init__(
        self,
        folder: Path,
        rights: Sequence[Right] | None = None,
        page: int = 500,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        (cluster,) = manifests("RayCluster")
        self.world = World(cluster)
        self.server = KubernetesServer(self.world, rights, page, tls)
        self.names = Names()
        self.clock = RigClock()
        self._token = folder / "token"
        self._token.write_text(f"{TOKEN}\n")
        self._providers: list[KubeRayProvider] = []

    def __enter__(self) -> KubeRayRig:
        self.server.__enter__()
        if self.server.url.startswith("http:"):
            self.kuberay = self.another()
        return self

    def __exit__(self, *_: object) -> None:
        for provider in self._providers:
            provider.close()
        self.server.__exit__(None, None, None)

    def settings(self, **more: Any) -> KubeRaySettings:
        """The place of the manifests, with the emulator's address."""
        own = {"endpoint": self.server.url, "token_file": str(self._token)}
        return KubeRaySettings.model_validate({**place(), **own, **more})

    def another(
        self, timeout_s: float = 10.0, clock: Callable[[], float] | None = None, **more: Any
    ) -> KubeRayProvider:
        """One more provider before the same cluster, as after a restart; `more` are its settings."""
        settings = self.settings(**more)
        api = KubernetesApi(settings, timeout_s)
        provider = KubeRayProvider(settings, self.names, clock or self.clock, api)
        self._providers.append(provider)
        return provider

    def create(self, request: NodeRequest) -> None:
        self.kuberay.create(request)

    def list(self) -> list[ProvidedNode]:
        return self.kuberay.list()

    def delete(self, node_id: str) -> None:
        self.kuberay.delete(node_id)

    def kill(self, node_id: str) -> None:
        """All processes of the node's pod end."""
        self.list()
        with self.server.lock:
            self.world.fail(self.pod_of(node_id))

    def pod_of(self, node_id: str) -> str:
        """Name of the pod that a node has by the RayCluster's annotation."""
        claim = read_claims(read_cluster(self.world.cluster).claims)[node_id]
        assert claim.pod is not None
        return claim.pod

    def fault(self, at: str, effect: KubernetesEffect = KubernetesEffect.REFUSE, **more: Any) -> Fault:
        """The next request of this kind goes wrong."""
        fault = Fault(at=at, effect=effect, **more)
        with self.server.lock:
            self.server.faults.append(fault)
        return fault

    def group(self, name: str = GROUP) -> dict[str, Any]:
        """A worker group of the RayCluster as it is now."""
        groups = self.world.cluster["spec"]["workerGroupSpecs"]
        found: dict[str, Any] = next(one for one in groups if one["groupName"] == name)
        return found

    def patches(self) -> int:
        """How many changes were asked for."""
        return sum(1 for one in self.server.requests if one.startswith("PATCH"))


def request(node_id: str = "node_a", **resources: float) -> NodeRequest:
    """A node of the group that costs least."""
    return NodeRequest(node_id=node_id, pool="cpu", resources=resources or {"CPU": 4.0}, offering=OFFERING)

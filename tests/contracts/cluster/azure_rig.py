"""The Azure provider, with Azure's own clients, before an emulator on the loopback, with the emulator's knobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2
from azure.identity.aio import ManagedIdentityCredential

from cluster.azure import catalogue
from cluster.azure.body import machine_name
from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.emulated_cloud import Cloud
from cluster.azure.emulator.key_vault import Secrets, no_secrets
from cluster.azure.emulator.notices import metadata_of
from cluster.azure.emulator.server import GROUP, REGION, SUBSCRIPTION, EmulatorServer
from cluster.azure.provider import AzureProvider
from cluster.azure.settings import AzureSettings
from cluster.policies.offerings import Offering
from cluster.provider import NodeRequest, ProvidedNode

CPU_SIZE, A100 = "Standard_D4s_v5", "Standard_NC24ads_A100_v4"
#: A size with InfiniBand.
IB_SIZE = "Standard_ND96asr_v4"
CLUSTER = "rig"
_TOKENS = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
_PROVIDERS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"


def settings(endpoint: str, cluster: str = CLUSTER, **more: Any) -> AzureSettings:
    """A cluster in the emulator's resource group."""
    return AzureSettings(
        **{
            "subscription": SUBSCRIPTION,
            "resource_group": GROUP,
            "region": REGION,
            "cluster": cluster,
            "subnet": f"{_PROVIDERS}/Microsoft.Network/virtualNetworks/v/subnets/nodes",
            "image": f"{_PROVIDERS}/Microsoft.Compute/galleries/remora/images/gpu/versions/1.0.0",
            "node_identity": f"{_PROVIDERS}/Microsoft.ManagedIdentity/userAssignedIdentities/nodes",
            "ssh_public_key": "ssh-ed25519 AAAA rig",
            "endpoint": endpoint,
            "vault": endpoint,
            **more,
        }
    )


class RigClock:
    """The provider's time, which the test moves: the host's, or with `stands` one that only the test moves."""

    def __init__(self, stands: bool) -> None:
        self._began = time.time() if stands else None
        self.passed_s = 0.0

    def __call__(self) -> float:
        return (time.time() if self._began is None else self._began) + self.passed_s


class AzureRig:
    """`Provider` with `kill`, and what tests of Azure need besides; to be used as a context manager."""

    def __init__(
        self,
        head: str = "10.0.0.4:6379",
        manual_clock: bool = False,
        secrets: Secrets = no_secrets,
        sizes: Mapping[str, catalogue.Size] = catalogue.BY_NAME,
    ) -> None:
        """`head` is what machines join, where they are more than books, and `secrets` what the key vault has for them.

        With `manual_clock` only the test moves the time, and the emulator goes by it too.  `sizes` are those that are
        sold.
        """
        self.head = head
        self._manual_clock = manual_clock
        self._secrets = secrets
        self.clock = RigClock(stands=manual_clock)
        self._sizes = sizes
        self.offerings: Sequence[Offering] = catalogue.offerings(REGION, sizes=sizes.values())

    def __enter__(self) -> AzureRig:
        cloud, clock = Cloud(self._sizes), Clock(self.clock) if self._manual_clock else Clock()
        self.cloud = cloud
        metadata = metadata_of(cloud, clock).application()
        self.server = EmulatorServer(cloud, metadata=metadata, clock=clock, secrets=self._secrets).__enter__()
        self._before = os.environ.get(_TOKENS)
        os.environ[_TOKENS] = self.server.url
        self._http = httpx2.Client(base_url=self.server.url)
        self._providers: list[AzureProvider] = []
        self.azure = self.another()
        return self

    def __exit__(self, *_: object) -> None:
        for provider in self._providers:
            provider.close()
        self._http.close()
        self.server.__exit__(None, None, None)
        if self._before is None:
            del os.environ[_TOKENS]
        else:
            os.environ[_TOKENS] = self._before

    def another(
        self, clock: Callable[[], float] | None = None, quiet_s: float = 0.0, **more: Any
    ) -> AzureProvider:
        """One more provider before the same cloud, as after a restart; `more` are its settings.

        `clock` is that of its machine, where it is not the rig's.
        """
        provider = AzureProvider(
            settings(**{"endpoint": self.server.url, **more}),
            ManagedIdentityCredential(client_id="rig"),
            self.head,
            lambda: self.offerings,
            clock or self.clock,
            quiet_s,
        )
        self._providers.append(provider)
        return provider

    def create(self, request: NodeRequest) -> None:
        self.azure.create(request)

    def list(self) -> list[ProvidedNode]:
        return self.azure.list()

    def delete(self, node_id: str) -> None:
        self.azure.delete(node_id)

    def kill(self, node_id: str) -> None:
        """The machine fails, and stays."""
        self.control(f"machines/{self.machine_of(node_id)}/fail", {})

    def evict(self, node_id: str) -> None:
        """The cloud takes the machine, and nothing of it is listed any more."""
        self.control(f"machines/{self.machine_of(node_id)}/evict", {})

    def machine_of(self, node_id: str) -> str:
        """Name of a node's machine: the node's own, or that of the instance that bears its tag."""
        machines = self.state()["machines"].items()
        return next(
            (name for name, one in machines if one["node"] == node_id), machine_name(CLUSTER, node_id)
        )

    def fault(self, at: str, **more: Any) -> None:
        """Turn a knob: the next request of this kind goes wrong."""
        self.control("faults", {"at": at, **more})

    def knobs(self, **more: Any) -> None:
        """Settings of the emulator."""
        self.control("knobs", more)

    def replace_tags(self, name: str, **tags: str) -> None:
        """Give a machine with its parts, or a scale set, other tags, as a policy of the subscription may."""
        self.control(f"tags/{name}", tags)

    def notice(self, node_id: str) -> float:
        """The cloud says that it will take the machine; when, seconds since 1970."""
        answer = self.control(f"machines/{self.machine_of(node_id)}/notice", {})
        return float(answer.json()["evicts_at"])

    def control(self, path: str, document: dict[str, Any]) -> httpx2.Response:
        """A request to the emulator's control API."""
        return self._http.post(f"/control/{path}", json=document).raise_for_status()

    def state(self) -> dict[str, Any]:
        """Everything that exists, by the emulator's own books."""
        found: dict[str, Any] = self._http.get("/control/state").raise_for_status().json()
        return found

    def left(self) -> int:
        """How many resources exist."""
        state = self.state()
        return len(state["machines"]) + len(state["interfaces"]) + len(state["disks"])

    def settle(self) -> None:
        """Look until every instance of a scale set has its node."""
        for _ in range(3):
            self.azure.list()

    def fired(self) -> list[int]:
        """How often each fault that was set happened."""
        return [fault["fired"] for fault in self.state()["faults"]]

"""The few requests to Azure Resource Manager that nodes need, with Azure's own client; every failure is an `ArmError`.

Nothing here waits for an operation or tries again: the next list of resources shows the outcome of a request, and the
caller decides when to try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from azure.core import MatchConditions
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import ContentDecodePolicy, RequestIdPolicy, UserAgentPolicy
from azure.core.rest import HttpRequest
from azure.mgmt.compute.aio import ComputeManagementClient

from cluster.azure import spot_market
from cluster.azure.arm_scale_sets import ArmSets
from cluster.azure.error_codes import CloudFailure
from cluster.azure.identity import Bearer
from cluster.azure.settings import AzureSettings
from cluster.azure.wire import (
    Allowance,
    ArmError,
    Failures,
    failure_of,
    header,
    name_of,
    reported_failure,
    state_of,
    tags_of,
    vm_id_of,
)

_SCOPE = "https://management.azure.com/.default"
#: Seconds for a connection, and for an answer: a PUT of the real one takes one to three.
_CONNECT_S = 10
_ANSWER_S = 60
_NETWORK_VERSION = "2024-05-01"
_SCORES_VERSION = "2025-06-05"
_GRAPH_VERSION = "2022-10-01"
_DISK_VERSION = "2024-03-02"


@dataclass(frozen=True, kw_only=True)
class SeenMachine:
    """A virtual machine as a list shows it."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Azure's word: `Creating`, `Succeeded`, `Failed`, `Deleting`, ...
    state: str = ""
    #: Azure's own id of this machine, which no later one of the same name has; empty: none is given.
    vm_id: str = ""


@dataclass(frozen=True, kw_only=True)
class SeenResource:
    """A network interface or a disk."""

    id: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    #: A machine has it.
    is_attached: bool = False


class Arm:
    """Requests for one resource group; to be used and closed on one event loop."""

    def __init__(
        self,
        settings: AzureSettings,
        credential: AsyncTokenCredential,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._subscription = settings.subscription
        self._group = settings.resource_group
        self._group_id = settings.group_id
        self._endpoint = settings.endpoint.rstrip("/")
        # The client's own policies would sleep as long as Azure says inside a call, try writes again, and register
        # resource providers; with these a request is one request.
        #: The rate limits that Azure reports.
        self.allowance = Allowance(clock)
        policies = [
            RequestIdPolicy(),
            UserAgentPolicy("remora"),
            ContentDecodePolicy(),
            self.allowance,
            Bearer(credential, _SCOPE, self._endpoint),
        ]
        self._client = ComputeManagementClient(
            credential,
            settings.subscription,
            base_url=self._endpoint,
            credential_scopes=[_SCOPE],
            policies=policies,
            connection_timeout=_CONNECT_S,
            read_timeout=_ANSWER_S,
        )
        #: Requests about scale sets, over the same connections.
        self.sets = ArmSets(self._client, self._group, settings.region)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def put(self, name: str, body: dict[str, Any]) -> str | None:
        """Ask for a machine that must not exist yet; returns the address of the operation, where there is one.

        Raises ArmError, with status 412 when there is a machine of this name.
        """
        headers: dict[str, str] = {}

        def keep(response: Any, _result: object, _headers: object) -> None:
            headers.update(response.http_response.headers)

        async with Failures():
            poller = await self._client.virtual_machines.begin_create_or_update(
                self._group,
                name,
                body,
                match_condition=MatchConditions.IfMissing,
                polling=False,
                cls=keep,
            )
            # Without polling there is nothing to wait for: `keep` is called now, and not before.
            await poller.result()
        return header(headers, "Azure-AsyncOperation")

    async def delete(self, name: str) -> None:
        """Begin to delete a machine; fine when there is none."""
        async with Failures():
            try:
                await self._client.virtual_machines.begin_delete(
                    self._group, name, force_deletion=True, polling=False
                )
            except ResourceNotFoundError as error:
                if failure_of(error).code == "ResourceGroupNotFound":
                    raise

    async def simulate_eviction(self, name: str) -> None:
        """Let Azure take a spot machine back within minutes, with the notice that it gives to real ones."""
        async with Failures():
            await self._client.virtual_machines.simulate_eviction(self._group, name)

    async def machines(self) -> list[SeenMachine]:
        """All machines of the resource group, those of others too.  Raises ArmError when any page fails."""
        async with Failures():
            return [_seen(one) async for one in self._client.virtual_machines.list(self._group)]

    async def machine(self, name: str) -> SeenMachine | None:
        """One machine, None when there is none."""
        async with Failures():
            try:
                return _seen(await self._client.virtual_machines.get(self._group, name))
            except ResourceNotFoundError as error:
                if failure_of(error).code == "ResourceGroupNotFound":
                    raise
                return None

    async def operation_failure(self, url: str) -> CloudFailure | None:
        """What an operation failed with, None when it did not fail (yet)."""
        document = await self._json("GET", urlsplit(url)._replace(scheme="", netloc="").geturl())
        async with Failures():
            error = document.get("error")
            if not error:
                return None
            said = str(error.get("message") or "")
            return CloudFailure(code=str(error.get("code") or ""), message=said, status=200)

    async def machine_failure(self, name: str) -> CloudFailure | None:
        """What a machine says that its creation failed with, None when it does not say."""
        async with Failures():
            view = await self._client.virtual_machines.instance_view(self._group, name)
            return reported_failure(view.statuses)

    async def usages(self, region: str) -> dict[str, tuple[int, int]]:
        """Used units and limit of every compute quota of a region, by its name in lower case.

        A quota that cannot be read is left out.
        """
        async with Failures():
            return dict([usage async for one in self._client.usage.list(region) if (usage := _usage(one))])

    async def skus(self, region: str) -> list[dict[str, Any]]:
        """Resource SKUs of a region in their wire form; some megabytes."""
        async with Failures():
            listed = self._client.resource_skus.list(filter=f"location eq '{region}'")
            return [one.as_dict() async for one in listed]

    async def evictions(self, region: str) -> list[dict[str, Any]]:
        """How often spot machines of each size are taken back, in the rows of `cluster.azure.spot_market`."""
        path = f"/providers/Microsoft.ResourceGraph/resources?api-version={_GRAPH_VERSION}"
        question = {"subscriptions": [self._subscription], "query": spot_market.evictions_query(region)}
        document = await self._json("POST", path, question)
        async with Failures():
            return list(document["data"])

    async def scores(self, region: str, sizes: Sequence[str]) -> list[dict[str, Any]]:
        """Where there will be spot machines of these sizes, in the rows of `cluster.azure.spot_market`."""
        path = (
            f"/subscriptions/{self._subscription}/providers/Microsoft.Compute/locations/{region}"
            f"/placementScores/spot/generate?api-version={_SCORES_VERSION}"
        )
        rows: list[dict[str, Any]] = []
        for body in spot_market.score_requests(region, sizes):
            document = await self._json("POST", path, body)
            async with Failures():
                rows += document["placementScores"]
        return rows

    async def interfaces(self) -> list[SeenResource]:
        """All network interfaces of the resource group."""
        path = (
            f"{self._group_id}/providers/Microsoft.Network/networkInterfaces?api-version={_NETWORK_VERSION}"
        )
        listed = await self._all(path)
        async with Failures():
            return [_resource(one, "virtualMachine" in (one.get("properties") or {})) for one in listed]

    async def disks(self) -> list[SeenResource]:
        """All managed disks of the resource group."""
        path = f"{self._group_id}/providers/Microsoft.Compute/disks?api-version={_DISK_VERSION}"
        listed = await self._all(path)
        async with Failures():
            return [_resource(one, bool(one.get("managedBy"))) for one in listed]

    async def delete_resource(self, resource: SeenResource) -> None:
        """Delete a network interface or a disk; fine when it is gone."""
        version = _DISK_VERSION if "/disks/" in resource.id else _NETWORK_VERSION
        try:
            async with Failures():
                await self._send("DELETE", f"{resource.id}?api-version={version}")
        except ArmError as error:
            if error.failure.status != 404:
                raise

    async def _all(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while path:
            page = await self._json("GET", path)
            async with Failures():
                found += page["value"]
                path = str(page.get("nextLink") or "")
        return found

    async def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        async with Failures():
            document = (await self._send(method, path, body)).json()
            if not isinstance(document, dict):
                raise TypeError(f"{document!r} is no document")
            return document

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        url = path if path.startswith("http") else self._endpoint + path
        response = await self._client.send_request(HttpRequest(method, url, json=body))
        if response.status_code >= 400:
            raise HttpResponseError(response=response)
        return response


def _seen(machine: Any) -> SeenMachine:
    return SeenMachine(
        name=name_of(machine.name),
        tags=tags_of(machine.tags),
        state=state_of(machine.properties),
        vm_id=vm_id_of(machine.properties),
    )


def _resource(document: Mapping[str, Any], is_attached: bool) -> SeenResource:
    tags = tags_of(document.get("tags"))
    return SeenResource(
        id=name_of(document["id"]), name=name_of(document["name"]), tags=tags, is_attached=is_attached
    )


def _usage(one: Any) -> tuple[str, tuple[int, int]] | None:
    try:
        return name_of(one.name.value).lower(), (int(one.current_value), int(one.limit))
    except (AttributeError, TypeError, ValueError):
        return None

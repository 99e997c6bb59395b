"""The few requests to Azure Resource Manager about Uniform scale sets; as in `arm`, none waits or tries again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import ResourceNotFoundError
from azure.core.polling import AsyncLROPoller
from azure.mgmt.compute.aio import ComputeManagementClient

from cluster.azure.error_codes import CloudFailure
from cluster.azure.fabric_domain import SeenInstance, SeenSet
from cluster.azure.wire import (
    Failures,
    failure_of,
    header,
    name_of,
    reported_failure,
    state_of,
    tags_of,
    unique_id_of,
)


class ArmSets:
    """Requests about the scale sets of one resource group."""

    def __init__(self, client: ComputeManagementClient, group: str, region: str) -> None:
        self._sets = client.virtual_machine_scale_sets
        self._instances = client.virtual_machine_scale_set_vms
        self._group = group
        self._region = region

    async def all(self) -> list[SeenSet]:
        """All scale sets of the resource group, those of others too.  Raises ArmError when any page fails."""
        async with Failures():
            return [_seen(one) async for one in self._sets.list(self._group)]

    async def get(self, name: str) -> SeenSet | None:
        """One set, None when there is none."""
        async with Failures():
            try:
                return _seen(await self._sets.get(self._group, name))
            except ResourceNotFoundError as error:
                _check_group(error)
                return None

    async def put(
        self, name: str, body: Mapping[str, Any], capacity: int, seen: SeenSet | None = None
    ) -> str | None:
        """Make a set that must not exist yet, with its instances; the address of the operation.

        With `seen` that set is replaced: instances that are made from now on follow this body.
        Raises ArmError, with status 412 when there is a set of this name, or when it is not as it was seen.
        """
        sku = {**body["sku"], "capacity": capacity}
        how = {"match_condition": MatchConditions.IfMissing} if seen is None else _as_seen(seen)
        return await self._operation(
            self._sets.begin_create_or_update, *(self._group, name, {**body, "sku": sku}), **how
        )

    async def update(self, seen: SeenSet, capacity: int, tags: Mapping[str, str]) -> str | None:
        """Change capacity and tags of a set, in one request; the address of the operation.

        Raises ArmError, with status 412 when the set is not any more as it was seen.
        """
        sku = {"name": seen.size, "tier": "Standard", "capacity": capacity}
        return await self._operation(
            self._sets.begin_update,
            self._group,
            seen.name,
            {"tags": dict(tags), "sku": sku},
            **_as_seen(seen),
        )

    async def delete(self, name: str) -> None:
        """Begin to delete a set; fine when there is none."""
        async with Failures():
            try:
                await self._sets.begin_delete(self._group, name, polling=False)
            except ResourceNotFoundError as error:
                _check_group(error)

    async def instances(self, name: str) -> list[SeenInstance]:
        """All instances of a set; none when there is no such set.  Raises ArmError when any page fails."""
        async with Failures():
            try:
                return [_instance(one) async for one in self._instances.list(self._group, name)]
            except ResourceNotFoundError as error:
                _check_group(error)
                return []

    async def instance(self, name: str, number: str) -> SeenInstance | None:
        """One instance, None when there is none."""
        async with Failures():
            try:
                return _instance(await self._instances.get(self._group, name, number))
            except ResourceNotFoundError as error:
                _check_group(error)
                return None

    async def claim(self, name: str, instance: SeenInstance, tags: Mapping[str, str]) -> None:
        """Give an instance these tags, and keep Azure from ending it when the capacity is lowered.

        Raises ArmError, with status 412 when the instance is not any more as it was seen.
        """
        body = {
            "location": self._region,
            "tags": dict(tags),
            "properties": {"protectionPolicy": {"protectFromScaleIn": True}},
        }
        await self._operation(
            self._instances.begin_update, self._group, name, instance.id, body, **_as_seen(instance)
        )

    async def delete_instances(self, name: str, numbers: Sequence[str]) -> None:
        """Begin to delete instances, which lowers the capacity by as many; fine when the set is gone."""
        async with Failures():
            try:
                await self._sets.begin_delete_instances(
                    self._group, name, {"instanceIds": list(numbers)}, force_deletion=True, polling=False
                )
            except ResourceNotFoundError as error:
                _check_group(error)

    async def simulate_eviction(self, name: str, number: str) -> None:
        """Let Azure take a spot instance back within minutes, with the notice that it gives to real ones."""
        async with Failures():
            await self._instances.simulate_eviction(self._group, name, number)

    async def failure(self, name: str) -> CloudFailure | None:
        """What a set says that its last operation failed with, None when it does not say."""
        async with Failures():
            return reported_failure((await self._sets.get_instance_view(self._group, name)).statuses)

    async def instance_failure(self, name: str, number: str) -> CloudFailure | None:
        """What an instance says that its creation failed with, None when it does not say."""
        async with Failures():
            view = await self._instances.get_instance_view(self._group, name, number)
            return reported_failure(view.statuses)

    async def _operation(
        self, begin: Callable[..., Awaitable[AsyncLROPoller[Any]]], *what: Any, **how: Any
    ) -> str | None:
        headers: dict[str, str] = {}

        def keep(response: Any, _result: object, _headers: object) -> None:
            headers.update(response.http_response.headers)

        async with Failures():
            poller = await begin(*what, polling=False, cls=keep, **how)
            # Without polling there is nothing to wait for: `keep` is called now, and not before.
            await poller.result()
        return header(headers, "Azure-AsyncOperation")


def _check_group(error: ResourceNotFoundError) -> None:
    """Raise it again when it says that there is no resource group, which is not that there is no such set."""
    if failure_of(error).code == "ResourceGroupNotFound":
        raise error


def _as_seen(thing: SeenSet | SeenInstance) -> dict[str, Any]:
    """The condition that it was not changed meanwhile, where Azure returns versions."""
    if thing.etag is None:
        return {}
    return {"etag": thing.etag, "match_condition": MatchConditions.IfNotModified}


def _seen(one: Any) -> SeenSet:
    return SeenSet(
        name=name_of(one.name),
        tags=tags_of(one.tags),
        state=state_of(one.properties),
        capacity=int(one.sku.capacity or 0) if one.sku is not None else 0,
        size=(one.sku.name if one.sku is not None else None) or "",
        etag=one.etag,
        unique_id=unique_id_of(one.properties),
    )


def _instance(one: Any) -> SeenInstance:
    return SeenInstance(
        id=name_of(one.instance_id),
        tags=tags_of(one.tags),
        state=state_of(one.properties),
        etag=one.etag,
    )

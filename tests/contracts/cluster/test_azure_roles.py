"""The controller's roles in deploy/azure have the actions that its requests need, and no others."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from azure.identity.aio import ManagedIdentityCredential

from cluster.azure.arm import Arm, SeenResource
from cluster.azure.arm_scale_sets import ArmSets
from cluster.azure.body import machine_body, set_body
from cluster.azure.emulator.actions import action_of, linked_actions
from cluster.azure.settings import AzureSettings
from cluster.azure.wire import ArmError
from cluster.provider import NodeRequest
from tests.architecture.repository import ROOT, pages
from tests.contracts.cluster.azure_rig import CPU_SIZE, IB_SIZE, AzureRig, settings

HEAD = "10.0.0.4:6379"
#: What Azure gives to every login, or by a role of its own.
OTHERWISE = {
    "Microsoft.ResourceGraph/resources/action": "shows to everyone what they may read",
    "Microsoft.Compute/locations/placementScores/generate/action": "Compute Recommendations Role",
    # Only a drill asks for it, and is then given it: docs/azure.md.
    "Microsoft.Compute/virtualMachines/simulateEviction/action": "for the time of a rehearsal",
    "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/simulateEviction/action": "the same",
}
#: Of what is only named in the body of a machine, Azure reads the document before it lets it be used.
READ_BESIDES = {
    "Microsoft.Compute/galleries/images/read",
    "Microsoft.ManagedIdentity/userAssignedIdentities/read",
    "Microsoft.Network/virtualNetworks/subnets/read",
}


def roles() -> dict[str, set[str]]:
    """The actions of each role of the template."""
    template = json.loads((ROOT / "deploy/azure/main.json").read_text())
    inner = template["resources"]["roles"]["properties"]["template"]["resources"]
    return {name: set(one["properties"]["permissions"][0]["actions"]) for name, one in inner.items()}


@pytest.fixture(scope="module")
def rig() -> Iterator[AzureRig]:
    with AzureRig() as rig:
        yield rig


def bodies(place: AzureSettings, rig: AzureRig) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The bodies of a machine and of a scale set as the provider sends them, with everything that a place can have."""
    cpu = next(one for one in rig.offerings if one.size == CPU_SIZE and one.zone is None)
    fabric = next(one for one in rig.offerings if one.size == IB_SIZE and one.zone is None)
    request = NodeRequest(node_id="node_01ARZ3NDEKTSV4RRFFQ69G5FAV", pool="p", resources={}, offering=cpu.id)
    joined = NodeRequest(
        node_id="node_01ARZ3NDEKTSV4RRFFQ69G5FAW", pool="p", resources={}, offering=fabric.id, fabric="d"
    )
    return (
        machine_body(place, request, cpu, HEAD, 0.0),
        set_body(place, joined, fabric, HEAD, {}),
        "remora-rig-set",
    )


async def every_request(rig: AzureRig, place: AzureSettings) -> None:
    """Each method of both classes, once; what a method answers does not matter here, and a refusal does."""
    machine, scale_set, name = bodies(place, rig)
    credential = ManagedIdentityCredential(client_id="rig")
    arm = Arm(place, credential)
    called: set[str] = set()

    async def call(method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        called.add(method.__qualname__)
        try:
            return await method(*arguments)
        except ArmError as error:
            if error.failure.status in (401, 403):
                raise
            return None

    try:
        url = await call(arm.put, "m", machine)
        await call(arm.operation_failure, url)
        await call(arm.machine, "m")
        await call(arm.machines)
        await call(arm.machine_failure, "m")
        await call(arm.usages, place.region)
        await call(arm.skus, place.region)
        await call(arm.evictions, place.region)
        await call(arm.scores, place.region, [CPU_SIZE])
        await call(arm.interfaces)
        await call(arm.disks)
        for kind in ("Microsoft.Network/networkInterfaces", "Microsoft.Compute/disks"):
            id = f"{place.group_id}/providers/{kind}/nothing"
            await call(arm.delete_resource, SeenResource(id=id, name="nothing"))
        await call(arm.simulate_eviction, "m")
        await call(arm.delete, "m")
        await call(arm.sets.put, name, scale_set, 1)
        seen = await call(arm.sets.get, name)
        await call(arm.sets.all)
        (instance,) = await call(arm.sets.instances, name)
        await call(arm.sets.instance, name, instance.id)
        await call(arm.sets.claim, name, instance, {"a": "b"})
        await call(arm.sets.failure, name)
        await call(arm.sets.instance_failure, name, instance.id)
        await call(arm.sets.simulate_eviction, name, instance.id)
        await call(arm.sets.update, seen, 1, {})
        await call(arm.sets.delete_instances, name, [instance.id])
        await call(arm.sets.delete, name)
    finally:
        await arm.close()
        await credential.close()
    methods = {
        f"{one.__name__}.{name}"
        for one in (Arm, ArmSets)
        for name, method in vars(one).items()
        if inspect.iscoroutinefunction(method) and not name.startswith("_")
    }
    assert methods - called == {"Arm.close"}, "a request is not made here whose action the roles may lack"


def test_the_roles_have_the_actions_that_are_needed_and_no_others(rig: AzureRig) -> None:
    nsg = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkSecurityGroups/nodes"
    place = settings(rig.server.url, network_security_group=nsg)
    given = set().union(*roles().values())
    rig.cloud.actions.clear()
    rig.cloud.allowed = frozenset(given | OTHERWISE.keys())
    asyncio.run(every_request(rig, place))
    machine, scale_set, _ = bodies(place, rig)
    needed = rig.cloud.actions | linked_actions(machine) | linked_actions(scale_set)
    assert needed - OTHERWISE.keys() - given == set(), "the roles lack these"
    assert given - needed == READ_BESIDES, "nothing needs these"
    assert OTHERWISE.keys() - needed == set()


@pytest.mark.parametrize("missing", ["virtualMachines/write", "disks/read", "locations/usages/read"])
def test_without_one_of_its_actions_the_controller_is_refused(rig: AzureRig, missing: str) -> None:
    given = set().union(*roles().values())
    rig.cloud.allowed = frozenset(given | OTHERWISE.keys()) - {f"Microsoft.Compute/{missing}"}
    with pytest.raises(ArmError, match="AuthorizationFailed"):
        asyncio.run(every_request(rig, settings(rig.server.url)))


def test_each_role_stands_where_what_it_allows_is() -> None:
    allowed = roles()
    assert all(
        one.startswith("Microsoft.Compute/locations/") or "skus" in one for one in allowed["regionRole"]
    )
    assert not [one for one in allowed["partsRole"] if one.endswith(("/write", "/delete"))]
    assert not [one for one in set().union(*allowed.values()) if "*" in one or "Authorization" in one]


def test_the_checklist_names_the_roles_of_the_template() -> None:
    page = pages()["docs/azure-first-run.md"]
    for name in ("nodes", "parts", "region"):
        assert f"Remora $CLUSTER {name}" in page


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("GET", "/subscriptions/s/providers/Microsoft.Compute/skus", "Microsoft.Compute/skus/read"),
        ("GET", "/subscriptions/s/resourceGroups/g", None),
        (
            "POST",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/n/delete",
            "Microsoft.Compute/virtualMachineScaleSets/delete/action",
        ),
        (
            "PATCH",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/n/virtualMachines/0",
            "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write",
        ),
    ],
)
def test_the_action_of_a_request(method: str, path: str, action: str | None) -> None:
    assert action_of(method, path) == action

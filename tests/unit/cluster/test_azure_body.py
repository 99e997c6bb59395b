"""The body of the request that makes a machine: golden, and what must never be in it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from cluster.azure.body import (
    CREATED_TAG,
    DISK_PLACEMENT_LABEL,
    created_at,
    is_set_name,
    machine_body,
    machine_name,
    node_named,
    node_of,
    set_body,
    set_name,
)
from cluster.azure.settings import AzureSettings
from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import InvalidRequest, NodeRequest

GROUP = "/subscriptions/s-1/resourceGroups/nodes/providers"
SETTINGS = AzureSettings(
    subscription="s-1",
    resource_group="nodes",
    region="eastus",
    cluster="c1",
    subnet=f"{GROUP}/Microsoft.Network/virtualNetworks/v/subnets/workers",
    image=f"{GROUP}/Microsoft.Compute/galleries/remora/images/gpu/versions/2026.11.1",
    node_identity=f"{GROUP}/Microsoft.ManagedIdentity/userAssignedIdentities/remora-node",
    node_identity_client_id="11111111-2222",
    vault="https://remora.vault.azure.net",
    ssh_public_key="ssh-ed25519 AAAA operator",
)
SIZE = "Standard_NC24ads_A100_v4"
REQUEST = NodeRequest(
    node_id="node_01J", pool="a100", resources={"CPU": 24.0, "GPU": 1.0}, labels={"tier": "spot"}
)
NAME = "remora-c1-node-01j-ed970ae66d"
TAGS = {
    "remora:cluster": "c1",
    "remora:node": "node_01J",
    "remora:pool": "a100",
    "remora:created-at": "12.5",
    "remora:offering": f"{SIZE}/1/spot",
}


def offering(zone: str | None = "1", capacity: CapacityType = CapacityType.SPOT, **labels: str) -> Offering:
    return Offering(
        size=SIZE, zone=zone, capacity=capacity, resources={"GPU": 1.0}, price_per_hour=1.0, labels=labels
    )


def body(
    offered: Offering | None = None, node_request: NodeRequest = REQUEST, settings: AzureSettings = SETTINGS
) -> dict[str, Any]:
    return machine_body(settings, node_request, offered or offering(), "10.1.0.4:6379", 12.5)


def start_up(made: dict[str, Any]) -> str:
    return base64.b64decode(made["properties"]["osProfile"]["customData"]).decode()


def test_the_body_of_a_spot_machine() -> None:
    made = body(offering(**{DISK_PLACEMENT_LABEL: "ResourceDisk"}))
    made["properties"]["osProfile"].pop("customData")
    assert made == {
        "location": "eastus",
        "zones": ["1"],
        "tags": TAGS,
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {SETTINGS.node_identity: {}}},
        "properties": {
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "billingProfile": {"maxPrice": -1.0},
            "hardwareProfile": {"vmSize": SIZE},
            "storageProfile": {
                "imageReference": {"id": SETTINGS.image},
                "osDisk": {
                    "name": f"{NAME}-os",
                    "createOption": "FromImage",
                    "deleteOption": "Delete",
                    "caching": "ReadOnly",
                    "diskSizeGB": 128,
                    "diffDiskSettings": {"option": "Local", "placement": "ResourceDisk"},
                },
            },
            "osProfile": {
                "computerName": NAME,
                "adminUsername": "remora",
                "linuxConfiguration": {
                    "disablePasswordAuthentication": True,
                    "provisionVMAgent": True,
                    "ssh": {
                        "publicKeys": [
                            {
                                "path": "/".join(["", "home", "remora", ".ssh", "authorized_keys"]),
                                "keyData": SETTINGS.ssh_public_key,
                            }
                        ]
                    },
                },
            },
            "networkProfile": {
                "networkApiVersion": "2022-11-01",
                "networkInterfaceConfigurations": [
                    {
                        "name": f"{NAME}-nic",
                        "tags": TAGS,
                        "properties": {
                            "primary": True,
                            "deleteOption": "Delete",
                            "enableAcceleratedNetworking": True,
                            "ipConfigurations": [
                                {
                                    "name": "ip",
                                    "properties": {"primary": True, "subnet": {"id": SETTINGS.subnet}},
                                }
                            ],
                        },
                    }
                ],
            },
        },
    }


def test_an_on_demand_machine_without_a_zone_names_neither() -> None:
    made = body(offering(zone=None, capacity=CapacityType.ON_DEMAND))
    assert "zones" not in made
    assert not {"priority", "evictionPolicy", "billingProfile"} & set(made["properties"])


def test_without_a_local_placement_the_disk_is_a_managed_one_that_goes_with_the_machine() -> None:
    disk = body()["properties"]["storageProfile"]["osDisk"]
    assert disk["managedDisk"] == {"storageAccountType": "StandardSSD_LRS"}
    assert disk["deleteOption"] == "Delete"


def test_the_node_learns_what_it_is_in_a_cloud_init_document() -> None:
    text = start_up(body())
    assert text.startswith("#cloud-config\n")
    document = yaml.safe_load(text)
    (file,) = document["write_files"]
    assert file["path"] == "/etc/remora/node.json"
    assert json.loads(file["content"]) == {
        "cluster": "c1",
        "node": "node_01J",
        "pool": "a100",
        "head": "10.1.0.4:6379",
        "resources": {"CPU": 24.0, "GPU": 1.0},
        "labels": {"remora-capacity": "spot", "remora-zone": "1", "tier": "spot"},
        "vault": "https://remora.vault.azure.net",
        "identity_client_id": "11111111-2222",
        "tls": False,
    }
    assert document["runcmd"] == [["systemctl", "enable", "--now", "remora-node.service"]]


def test_no_secret_is_in_what_every_process_of_the_machine_can_read() -> None:
    words = start_up(body()).lower()
    assert not [word for word in ("token", "secret", "password", "accountkey", "sig=") if word in words]


def test_start_up_data_that_azure_would_refuse_is_refused_here() -> None:
    large = NodeRequest(node_id="node_a", pool="p", resources={}, labels={"x": "y" * 66_000})
    with pytest.raises(InvalidRequest, match="too large"):
        body(node_request=large)


def test_a_pool_whose_name_is_longer_than_a_tag_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        body(node_request=NodeRequest(node_id="node_a", pool="p" * 257, resources={}))


def test_names_differ_even_where_azure_would_not_see_the_difference() -> None:
    ids = ["node_a", "node-a", "NODE_A", "node_" + "x" * 59, "node_" + "x" * 58 + "y"]
    names = {machine_name("c1", one).lower() for one in ids}
    assert len(names) == len(ids)
    assert all(len(machine_name("c" * 20, one)) <= 64 for one in ids)
    assert not [name for name in names if not name.replace("-", "").isalnum() or name.endswith("-")]


ULID = "01M7Y8NRHRW6ZK2C8GF7JR4CXR"


@pytest.mark.parametrize("cluster", ["c", "a-b", "c" * 20])
def test_the_name_of_a_machine_says_which_node_it_is(cluster: str) -> None:
    name = machine_name(cluster, f"node_{ULID}")
    assert len(name) <= 64
    assert node_named(cluster, name) == node_named(cluster, name.upper()) == f"node_{ULID}"


@pytest.mark.parametrize(
    "name",
    ["", "remora-a", f"remora-a-b-{ULID}", f"remora-{ULID}", f"vm-remora-a-{ULID}", f"remora-a-{ULID}0"],
)
def test_names_that_are_nearly_ours_are_not(name: str) -> None:
    assert node_named("a", name) is None


def test_a_tag_says_which_node_a_machine_is_only_together_with_its_name() -> None:
    tags = {"remora:cluster": "a", "remora:node": "node_x"}
    assert node_of("a", machine_name("a", "node_x"), tags) == "node_x"
    assert node_of("a", machine_name("a", "node_y"), tags) is None
    assert node_of("a", machine_name("a", "node_x"), {}) is None
    assert node_of("a", machine_name("a", f"node_{ULID}"), tags) == f"node_{ULID}"


def scale_set(offered: Offering | None = None, domain: str = "a100-job_7") -> dict[str, Any]:
    node_request = replace(REQUEST, fabric=domain)
    return set_body(
        SETTINGS, node_request, offered or offering(), "10.1.0.4:6379", {"remora:waits-0": "node_01J@12.5"}
    )


def test_the_body_of_a_scale_set_of_spot_machines() -> None:
    made = scale_set(offering(**{DISK_PLACEMENT_LABEL: "ResourceDisk"}))
    start = yaml.safe_load(
        base64.b64decode(made["properties"]["virtualMachineProfile"]["osProfile"].pop("customData"))
    )
    node = json.loads(start["write_files"][0]["content"])
    assert (node["node"], node["pool"], node["head"]) == (None, "a100", "10.1.0.4:6379")
    single = body(offering(**{DISK_PLACEMENT_LABEL: "ResourceDisk"}))["properties"]
    ssh = single["osProfile"]["linuxConfiguration"]
    name = "remora-c1-a100-job-7-fbf92eb6383a55"
    assert len(made["tags"].pop("remora:model")) == 10
    assert made == {
        "location": "eastus",
        "zones": ["1"],
        "tags": {
            "remora:cluster": "c1",
            "remora:pool": "a100",
            "remora:offering": f"{SIZE}/1/spot",
            "remora:fabric": "a100-job_7",
            "remora:waits-0": "node_01J@12.5",
        },
        "sku": {"name": SIZE, "tier": "Standard"},
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {SETTINGS.node_identity: {}}},
        "properties": {
            "orchestrationMode": "Uniform",
            "singlePlacementGroup": True,
            "overprovision": False,
            "platformFaultDomainCount": 1,
            "upgradePolicy": {"mode": "Manual"},
            "virtualMachineProfile": {
                "priority": "Spot",
                "evictionPolicy": "Delete",
                "billingProfile": {"maxPrice": -1.0},
                "storageProfile": {
                    "imageReference": {"id": SETTINGS.image},
                    "osDisk": {
                        "createOption": "FromImage",
                        "caching": "ReadOnly",
                        "diskSizeGB": 128,
                        "diffDiskSettings": {"option": "Local", "placement": "ResourceDisk"},
                    },
                },
                "osProfile": {
                    "computerNamePrefix": "remora-fbf92eb6383a55-",
                    "adminUsername": "remora",
                    "linuxConfiguration": ssh,
                },
                "networkProfile": {
                    "networkInterfaceConfigurations": [
                        {
                            "name": f"{name}-nic",
                            "properties": {
                                "primary": True,
                                "enableAcceleratedNetworking": True,
                                "ipConfigurations": [
                                    {
                                        "name": "ip",
                                        "properties": {"primary": True, "subnet": {"id": SETTINGS.subnet}},
                                    }
                                ],
                            },
                        }
                    ]
                },
            },
        },
    }


def test_a_set_on_demand_without_a_zone_names_neither() -> None:
    made = scale_set(offering(zone=None, capacity=CapacityType.ON_DEMAND))
    assert "zones" not in made
    assert not {"priority", "evictionPolicy"} & set(made["properties"]["virtualMachineProfile"])


def test_what_a_set_is_made_of_is_distinguished_by_a_tag_and_who_waits_is_not_part_of_it() -> None:
    def model(head: str = "10.1.0.4:6379", waits: str = "", **changed: str) -> str:
        node_request = replace(REQUEST, fabric="a100-job_7")
        settings = SETTINGS.model_copy(update=changed)
        made = set_body(settings, node_request, offering(), head, {"remora:waits-0": waits})
        return str(made["tags"]["remora:model"])

    assert model() == model(waits="node_b@1.0")
    changed = [model(head="10.1.0.5:6379"), model(image="i"), model(subnet="s"), model(ssh_public_key="k")]
    assert len({model(), model(node_identity="n"), *changed}) == 6


def test_a_set_is_of_one_domain_and_one_offering() -> None:
    names = {
        set_name("c1", domain, offered)
        for domain in ("a-job_1", "A-job_1", "a" * 90, "a" * 91)
        for offered in ("s/1/spot", "s/1/on-demand")
    }
    assert len(names) == 8
    assert max(len(name) for name in names) <= 64
    assert all(is_set_name("c1", name.upper()) for name in names)


def test_a_set_of_another_cluster_is_not_ours_however_alike_the_names_are() -> None:
    theirs = set_name("a-b", "gpu-job_1", "s/1/spot")
    assert is_set_name("a-b", theirs)
    assert not is_set_name("a", theirs)
    assert not any(
        is_set_name("a", name) for name in ("", "remora-a", "remora-a-", "remora-a-web", theirs[:-1])
    )


@pytest.mark.parametrize(
    ("tag", "at"),
    [("1763832000.5", 1763832000.5), ("", 0.0), (None, 0.0), ("soon", 0.0), ("nan", 0.0), ("inf", 0.0)],
)
def test_a_machine_whose_tag_says_no_time_is_as_old_as_can_be(tag: str | None, at: float) -> None:
    assert created_at({} if tag is None else {CREATED_TAG: tag}) == at

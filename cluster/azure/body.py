"""The body of the one request that makes a node's machine, with its network interface and its disk (pure).

Everything the machine brings is deleted with it.  What is written here is read by anybody on the machine, so it holds
names and addresses and no secret: the node fetches the cluster's secret with its identity.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from cluster.azure.settings import AzureSettings
from cluster.offerings import CapacityType, Offering
from cluster.placement import labels_of
from cluster.provider import InvalidRequest, NodeRequest

#: Tags of every resource of a node.
CLUSTER_TAG = "remora:cluster"
NODE_TAG = "remora:node"
POOL_TAG = "remora:pool"
#: When the machine was asked for by the controller's clock, seconds since 1970.
CREATED_TAG = "remora:created-at"
OFFERING_TAG = "remora:offering"

#: Label of an offering: where its ephemeral disk lies, one of Azure's words such as `ResourceDisk`.
DISK_PLACEMENT_LABEL = "azure-disk-placement"
#: Where the node finds what it has to know; the image's service reads it.
NODE_FILE = "/etc/remora/node.json"
NODE_SERVICE = "remora-node.service"

_ADMIN = "remora"
#: Bytes that Azure accepts, before base64.
_CUSTOM_DATA_BYTES = 65_535
#: What a tag's value may have.
_TAG_CHARACTERS = 256
#: Version of the network service's words in the inline network interface; the newest that the client knows.
_NETWORK_VERSION = "2022-11-01"


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """What a machine is told about itself."""

    cluster: str
    node: str
    pool: str
    #: Address of the Ray head, `host:port`.
    head: str
    resources: dict[str, float]
    labels: dict[str, str]
    vault: str | None
    identity_client_id: str | None

    def to_json(self) -> str:
        """One line; equal values give equal text."""
        return json.dumps(vars(self), sort_keys=True)


def machine_name(cluster: str, node_id: str) -> str:
    """Name of the machine of a node: the same for the same node, another for every other, at most 64 characters.

    Azure compares names without regard to case and allows fewer characters than node ids have, so a digest is part
    of it.
    """
    readable = "".join(one if one.isalnum() else "-" for one in node_id.lower())[:24].strip("-")
    return f"remora-{cluster}-{readable}-{hashlib.sha256(node_id.encode()).hexdigest()[:10]}"


def machine_body(
    settings: AzureSettings, request: NodeRequest, offering: Offering, head: str, now: float
) -> dict[str, Any]:
    """The body of the PUT for a node, in Azure's own words.

    `head` is the Ray head's `host:port`, `now` the time of asking in seconds since 1970.
    Raises InvalidRequest for what Azure would refuse.
    """
    name = machine_name(settings.cluster, request.node_id)
    tags = {
        CLUSTER_TAG: settings.cluster,
        NODE_TAG: request.node_id,
        POOL_TAG: request.pool,
        CREATED_TAG: repr(now),
        OFFERING_TAG: offering.id,
    }
    for value in tags.values():
        if len(value) > _TAG_CHARACTERS:
            raise InvalidRequest(
                f"{value[:40]!r}... is longer than the {_TAG_CHARACTERS} characters of a tag"
            )
    body: dict[str, Any] = {
        "location": settings.region,
        "tags": tags,
        "properties": {
            "hardwareProfile": {"vmSize": offering.size},
            # Secure boot refuses the modules of the GPU driver, and some subscriptions switch it on by themselves.
            "securityProfile": {"securityType": "Standard"},
            "storageProfile": _storage(settings, offering, name),
            "osProfile": _system(settings, name, custom_data(settings, request, offering, head)),
            "networkProfile": _network(settings, name, tags),
        },
    }
    if offering.zone is not None:
        body["zones"] = [offering.zone]
    if settings.node_identity is not None:
        body["identity"] = {
            "type": "UserAssigned",
            "userAssignedIdentities": {settings.node_identity: {}},
        }
    if offering.capacity is CapacityType.SPOT:
        # Azure's own default keeps an evicted machine, its disk and its part of the quota.
        spot = {"priority": "Spot", "evictionPolicy": "Delete"}
        body["properties"] |= spot | {"billingProfile": {"maxPrice": settings.max_spot_price}}
    return body


def custom_data(settings: AzureSettings, request: NodeRequest, offering: Offering, head: str) -> str:
    """The cloud-init document of a node, as text.  Raises InvalidRequest when it is larger than Azure takes."""
    node = NodeFile(
        cluster=settings.cluster,
        node=request.node_id,
        pool=request.pool,
        head=head,
        resources=dict(request.resources),
        labels={**labels_of(offering.zone, offering.capacity), **request.labels},
        vault=settings.vault,
        identity_client_id=settings.node_identity_client_id,
    )
    document = {
        "write_files": [{"path": NODE_FILE, "permissions": "0644", "content": node.to_json() + "\n"}],
        "runcmd": [["systemctl", "enable", "--now", NODE_SERVICE]],
    }
    # JSON is YAML; nothing has to be quoted by hand.
    text = "#cloud-config\n" + json.dumps(document, indent=1) + "\n"
    if len(text.encode()) > _CUSTOM_DATA_BYTES:
        raise InvalidRequest(
            f"labels and resources of {request.node_id} are too large for a machine's start-up data"
        )
    return text


def _storage(settings: AzureSettings, offering: Offering, name: str) -> dict[str, Any]:
    disk: dict[str, Any] = {
        "name": f"{name}-os",
        "createOption": "FromImage",
        # Azure's default would leave the disk behind.
        "deleteOption": "Delete",
        "caching": "ReadOnly",
        "diskSizeGB": settings.disk_gb,
    }
    placement = offering.labels.get(DISK_PLACEMENT_LABEL)
    if placement:
        disk["diffDiskSettings"] = {"option": "Local", "placement": placement}
    else:
        disk["managedDisk"] = {"storageAccountType": "StandardSSD_LRS"}
    return {"imageReference": {"id": settings.image}, "osDisk": disk}


def _system(settings: AzureSettings, name: str, start_up: str) -> dict[str, Any]:
    key = {"path": f"/home/{_ADMIN}/.ssh/authorized_keys", "keyData": settings.ssh_public_key}
    return {
        "computerName": name,
        "adminUsername": _ADMIN,
        "customData": base64.b64encode(start_up.encode()).decode(),
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "provisionVMAgent": True,
            "ssh": {"publicKeys": [key]},
        },
    }


def _network(settings: AzureSettings, name: str, tags: dict[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "primary": True,
        "deleteOption": "Delete",
        "enableAcceleratedNetworking": True,
        "ipConfigurations": [
            {"name": "ip", "properties": {"primary": True, "subnet": {"id": settings.subnet}}}
        ],
    }
    if settings.network_security_group is not None:
        properties["networkSecurityGroup"] = {"id": settings.network_security_group}
    interface = {"name": f"{name}-nic", "tags": tags, "properties": properties}
    return {"networkApiVersion": _NETWORK_VERSION, "networkInterfaceConfigurations": [interface]}

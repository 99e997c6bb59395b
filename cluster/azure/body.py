"""The body of the one request that makes a node's machine, with its network interface and its disk (pure).

Nodes of a fabric domain are instances of a scale set, whose body is made of the same parts.

Everything the machine brings is deleted with it.  Every process of the machine can read what is written here, so it
holds names and addresses and no secret: the node fetches the cluster's secret with its identity.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.azure.settings import AzureSettings
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import labels_of
from cluster.provider import InvalidRequest, NodeRequest

#: Tags of every resource of a node.
CLUSTER_TAG = "remora:cluster"
NODE_TAG = "remora:node"
POOL_TAG = "remora:pool"
#: When the machine was asked for by the controller's clock, seconds since 1970.
CREATED_TAG = "remora:created-at"
OFFERING_TAG = "remora:offering"
#: Fabric domain of a scale set and of its instances.
FABRIC_TAG = "remora:fabric"
#: Digest of what the instances of a scale set are made of: another one means that the set's document is out of date.
MODEL_TAG = "remora:model"

#: What a tag's value may have.
TAG_CHARACTERS = 256
#: Label of an offering: where its ephemeral disk lies, one of Azure's words such as `ResourceDisk`.
DISK_PLACEMENT_LABEL = "azure-disk-placement"
#: Where the node finds what it has to know; the image's service reads it.
NODE_FILE = "/etc/remora/node.json"
NODE_SERVICE = "remora-node.service"

#: Node ids as the service makes them; group 1 is the ULID.
_ULID_ID = re.compile(r"node_([0-9A-HJKMNP-TV-Z]{26})")
#: Last characters of a set's name, by which it proves that it was made here: one in 65,536 names does by chance.
_CHECK_DIGITS = 4

_ADMIN = "remora"
#: Bytes that Azure accepts, before base64.
_CUSTOM_DATA_BYTES = 65_535
#: Version of the network service's words in the inline network interface; the newest that the client knows.
_NETWORK_VERSION = "2022-11-01"


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """The content of the node file: what a machine needs to join the cluster."""

    cluster: str
    #: None: an instance of a scale set, whose instances all get the same file; its own tags say which node it is.
    node: str | None
    pool: str
    #: Address of the Ray head, `host:port`.
    head: str
    resources: dict[str, float]
    labels: dict[str, str]
    vault: str | None
    identity_client_id: str | None
    #: Processes of the cluster's Ray speak TLS with each other; the vault has its authority, too.
    tls: bool = False

    def to_json(self) -> str:
        """One line; equal values give equal text."""
        return json.dumps(vars(self), sort_keys=True)


def machine_name(cluster: str, node_id: str) -> str:
    """Name of the machine of a node: the same for the same node, another for every other, at most 64 characters.

    The name says which node it is, see `node_named`: tags may be replaced by others, a name stays.  Azure compares
    names without regard to case and allows fewer characters than node ids may have; of an id that is not
    `node_` and a ULID the name has a part and a digest, and only such a name needs the tag as well.
    """
    found = _ULID_ID.fullmatch(node_id)
    if found is not None:
        return f"remora-{cluster}-{found[1].lower()}"
    return f"remora-{cluster}-{_readable(node_id)}-{_digest(node_id)}"


def node_named(cluster: str, machine: str) -> str | None:
    """Id of the node of this cluster whose machine has this name; None: its name alone does not say.

    `machine` is in any case, as Azure does not keep it.  The name of another cluster's machine is never taken for
    one of this cluster's, although names of clusters may begin alike: a ULID has no hyphen.
    """
    before, _, ulid = machine.upper().rpartition("-")
    node_id = f"node_{ulid}"
    is_ours = before == f"remora-{cluster}".upper() and _ULID_ID.fullmatch(node_id) is not None
    return node_id if is_ours else None


def part_of(cluster: str, part: str) -> bool:
    """True when a network interface or disk of this name is of a machine of this cluster, by the name alone."""
    machine = f"remora-{cluster}-" + "x" * 26
    # Azure adds some characters of its own to the names of interfaces.
    return part[len(machine) :].startswith("-") and node_named(cluster, part[: len(machine)]) is not None


def node_of(cluster: str, machine: str, tags: Mapping[str, str]) -> str | None:
    """Id of the node of this cluster that a machine is, by its name first and its tags second; None: it is not ours.

    A machine that bears our tags and another name was not made by us: a copy of one of ours, or one that was tagged
    by others.
    """
    node_id = node_named(cluster, machine)
    if node_id is not None or tags.get(CLUSTER_TAG) != cluster:
        return node_id
    tagged = tags.get(NODE_TAG, "")
    return tagged if machine_name(cluster, tagged).lower() == machine.lower() else None


def set_name(cluster: str, domain: str, offering: str) -> str:
    """Name of the scale set of a fabric domain that is bought as this offering.

    The same for the same domain and offering, another for every other, at most 64 characters; `is_set_name` knows it.
    """
    stem = f"{_readable(domain)[:20].strip('-')}-{_digest(f'{domain} {offering}')}"
    return f"remora-{cluster}-{stem}{_check_digits(cluster, stem)}"


def is_set_name(cluster: str, name: str) -> bool:
    """True when `set_name` makes this name, in any case, for a domain of this cluster: its end proves the rest."""
    before, name = f"remora-{cluster}-", name.lower()
    stem, check = name[len(before) : -_CHECK_DIGITS], name[-_CHECK_DIGITS:]
    return name.startswith(before) and bool(stem) and check == _check_digits(cluster, stem)


def _check_digits(cluster: str, stem: str) -> str:
    # With the cluster apart: `a-b` and a stem `c` are not `a` and a stem `b-c`.
    return _digest(f"{cluster} {stem}")[:_CHECK_DIGITS]


def secret_name(cluster: str) -> str:
    """Name in the key vault of the secret that the processes of a cluster's Ray show to each other."""
    return f"remora-{cluster}-ray-token"


def authority_name(cluster: str) -> str:
    """Name in the key vault of the authority whose certificates the processes of a cluster's Ray show to each other."""
    return f"remora-{cluster}-ray-authority"


def _readable(text: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in text.lower())[:24].strip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def created_at(tags: Mapping[str, str]) -> float:
    """When a machine was requested, seconds since 1970; 0.0 when the tag has another content."""
    try:
        at = float(tags.get(CREATED_TAG) or 0.0)
    except ValueError:
        return 0.0
    # A machine that was requested at no time would never be old.
    return at if math.isfinite(at) else 0.0


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
    _check_tags(tags)
    body: dict[str, Any] = {
        "location": settings.region,
        "tags": tags,
        "properties": {
            "hardwareProfile": {"vmSize": offering.size},
            "storageProfile": _storage(settings, offering, name),
            "osProfile": _system(settings, name, custom_data(settings, request, offering, head)),
            "networkProfile": _network(settings, name, tags),
        },
    }
    body["properties"] |= _paid(settings, offering)
    return body | _placed(settings, offering)


def set_body(
    settings: AzureSettings, request: NodeRequest, offering: Offering, head: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """The body of the PUT for a Uniform scale set whose instances InfiniBand joins, without its capacity.

    `request` is one of the nodes of its fabric domain; the instances are alike in all but their names.  `tags` are
    added to the set's own.  Raises InvalidRequest for what Azure would refuse.
    """
    domain = request.fabric or ""
    name = set_name(settings.cluster, domain, offering.id)
    own = {
        CLUSTER_TAG: settings.cluster,
        POOL_TAG: request.pool,
        OFFERING_TAG: offering.id,
        FABRIC_TAG: domain,
    }
    _check_tags(own)
    start_up = custom_data(settings, replace(request, node_id=""), offering, head)
    # Its interface and its disk are parts of an instance: they go with it, and there is nothing to say about that.
    storage = _storage(settings, offering, name)
    for word in ("name", "deleteOption"):
        storage["osDisk"].pop(word)
    system = _system(settings, name, start_up)
    # Azure adds six characters, and Linux takes sixty-four.
    system["computerNamePrefix"] = f"remora-{system.pop('computerName').rpartition('-')[2]}-"
    interface = _interface(settings, name)
    interface["properties"].pop("deleteOption")
    profile: dict[str, Any] = {
        "storageProfile": storage,
        "osProfile": system,
        "networkProfile": {"networkInterfaceConfigurations": [interface]},
    }
    body: dict[str, Any] = {
        "location": settings.region,
        "tags": own | dict(tags),
        "sku": {"name": offering.size, "tier": "Standard"},
        "properties": {
            # Only here are machines joined by InfiniBand.
            "orchestrationMode": "Uniform",
            "singlePlacementGroup": True,
            # More would be made than asked for, and some of them deleted again.
            "overprovision": False,
            "platformFaultDomainCount": 1,
            # Nothing is done to machines that run.
            "upgradePolicy": {"mode": "Manual"},
            "virtualMachineProfile": profile | _paid(settings, offering),
        },
    }
    body |= _placed(settings, offering)
    made_of = {name: value for name, value in body.items() if name != "tags"}
    body["tags"][MODEL_TAG] = _digest(json.dumps(made_of, sort_keys=True))
    return body


def _check_tags(tags: Mapping[str, str]) -> None:
    for value in tags.values():
        if len(value) > TAG_CHARACTERS:
            raise InvalidRequest(f"{value[:40]!r}... is longer than the {TAG_CHARACTERS} characters of a tag")


def _paid(settings: AzureSettings, offering: Offering) -> dict[str, Any]:
    """How the machine is paid for, and what its eviction does."""
    if offering.capacity is not CapacityType.SPOT:
        return {}
    # Azure's own default keeps an evicted machine, its disk and its part of the quota.
    spot = {"priority": "Spot", "evictionPolicy": "Delete"}
    return spot | {"billingProfile": {"maxPrice": settings.max_spot_price}}


def _placed(settings: AzureSettings, offering: Offering) -> dict[str, Any]:
    """Where the machine stands and who it is."""
    placed: dict[str, Any] = {} if offering.zone is None else {"zones": [offering.zone]}
    identity = {"type": "UserAssigned", "userAssignedIdentities": {settings.node_identity: {}}}
    return placed | {"identity": identity}


def custom_data(settings: AzureSettings, request: NodeRequest, offering: Offering, head: str) -> str:
    """The cloud-init document of a node, as text; without an id it is that of every node like it.

    Raises InvalidRequest when it is larger than Azure takes.
    """
    node = NodeFile(
        cluster=settings.cluster,
        node=request.node_id or None,
        pool=request.pool,
        head=head,
        resources=dict(request.resources),
        labels={**labels_of(offering.zone, offering.capacity), **request.labels},
        vault=settings.vault,
        identity_client_id=settings.node_identity_client_id,
        tls=settings.ray_tls,
    )
    document = {
        "write_files": [{"path": NODE_FILE, "permissions": "0644", "content": node.to_json() + "\n"}],
        "runcmd": [["systemctl", "enable", "--now", NODE_SERVICE]],
    }
    # JSON is YAML; nothing has to be quoted by hand.
    text = "#cloud-config\n" + json.dumps(document, indent=1) + "\n"
    if len(text.encode()) > _CUSTOM_DATA_BYTES:
        raise InvalidRequest(
            f"labels and resources of {request.node_id or request.fabric} are too large for start-up data"
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
    interface = {**_interface(settings, name), "tags": tags}
    return {"networkApiVersion": _NETWORK_VERSION, "networkInterfaceConfigurations": [interface]}


def _interface(settings: AzureSettings, name: str) -> dict[str, Any]:
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
    return {"name": f"{name}-nic", "properties": properties}

"""What Azure adds to resources, and what of them it refuses to change or to show, by their types (pure)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from cluster.azure.emulator.emulated_cloud import Refused

Json = dict[str, Any]

IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"
VAULTS = "Microsoft.KeyVault/vaults"
SECRETS = "Microsoft.KeyVault/vaults/secrets"
MACHINES = "Microsoft.Compute/virtualMachines"
ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"
DEFINITIONS = "Microsoft.Authorization/roleDefinitions"
BUDGETS = "Microsoft.Consumption/budgets"
GROUPS = "Microsoft.Resources/resourceGroups"
SERVERS = "Microsoft.DBforPostgreSQL/flexibleServers"
ACCOUNTS = "Microsoft.Storage/storageAccounts"
NETWORKS = "Microsoft.Network/virtualNetworks"
PEERINGS = "Microsoft.Network/virtualNetworks/virtualNetworkPeerings"
VERSIONS = "Microsoft.Compute/galleries/images/versions"

#: Roles of Azure itself that templates of ours name.
BUILT_IN_ROLES = frozenset(
    {
        "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
        "4633458b-17de-408a-b874-0445c86b69e6",
        "b86a8fe4-44ce-4948-aee5-eccb2c155cd7",
        "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
        "db58b8e5-c6ad-4a2a-8342-4190687cbf4a",
        "e82342c9-ac7f-422b-af64-e426d2e12b2d",
    }
)


def _id_number(words: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, words))


def _identity(one: Json) -> Json:
    return {
        "principalId": _id_number(f"principal {one['id']}"),
        "clientId": _id_number(f"client {one['id']}"),
    }


def _address(one: Json) -> Json:
    number = int(_id_number(one["id"])[:4], 16)
    found: Json = {"ipAddress": f"192.0.2.{number % 250 + 1}"}
    label = one["properties"].get("dnsSettings", {}).get("domainNameLabel")
    if label:
        name = f"{label}.{one['location']}.cloudapp.azure.com"
        found["dnsSettings"] = {"domainNameLabel": label, "fqdn": name}
    return found


def added(url: str) -> Mapping[str, Callable[[Json], Json]]:
    """Properties that Azure gives to a resource of each type; `url` is where vaults and storage answer."""
    return {
        IDENTITIES: _identity,
        "Microsoft.Network/publicIPAddresses": _address,
        VAULTS: lambda _one: {"vaultUri": f"{url}/"},
        "Microsoft.Storage/storageAccounts": lambda one: {
            "primaryEndpoints": {"blob": f"{url}/blobs/{one['name']}/"}
        },
        SERVERS: lambda one: {"fullyQualifiedDomainName": f"{one['name']}.postgres.database.azure.com"},
    }


#: Properties that are accepted and never shown again.
HIDDEN: Mapping[str, tuple[str, ...]] = {
    SECRETS: ("value",),
    SERVERS: ("administratorLoginPassword", "createMode"),
    VAULTS: ("createMode",),
    MACHINES: ("userData",),
}
#: Of machines, what cannot be changed.
_FIXED = (("osProfile", "customData"), ("osProfile", "adminUsername"), ("storageProfile", "imageReference"))


def check_change(kind: str, old: Json, new: Json) -> None:
    """Raise Refused for a change that Azure refuses."""
    before, after = old.get("properties", {}), new.get("properties", {})
    if kind == MACHINES:
        for part, name in _FIXED:
            if before[part].get(name) != after[part].get(name):
                raise Refused(
                    409, "PropertyChangeNotAllowed", f"Changing property '{part}.{name}' is not allowed."
                )
    if kind == ASSIGNMENTS and any(before[one] != after[one] for one in ("roleDefinitionId", "principalId")):
        said = "Tenant ID, application ID, principal ID, and scope are not allowed to be updated."
        raise Refused(400, "RoleAssignmentUpdateNotPermitted", said)
    if kind == BUDGETS and before["timePeriod"] != after["timePeriod"]:
        raise Refused(400, "400", "The start date of a budget cannot be changed.")
    if kind == VAULTS and before["softDeleteRetentionInDays"] != after["softDeleteRetentionInDays"]:
        said = 'The property "softDeleteRetentionInDays" has been set already and it can\'t be modified.'
        raise Refused(400, "BadRequest", said)
    if old.get("location") != new.get("location"):
        raise Refused(
            409, "InvalidResourceLocation", f"The resource '{new['name']}' exists in another location."
        )


_NAMES: Mapping[str, str] = {
    VAULTS: r"(?!.*--)[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]",
    "Microsoft.Storage/storageAccounts": r"[a-z0-9]{3,24}",
    SERVERS: r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
    "Microsoft.Compute/galleries": r"[A-Za-z0-9][A-Za-z0-9._]{0,78}[A-Za-z0-9]",
    MACHINES: r"[A-Za-z0-9][A-Za-z0-9-]{0,62}",
    SECRETS: r"[A-Za-z0-9-]{1,127}",
}


def check_new(kind: str, one: Json) -> None:
    """Raise Refused for a resource that cannot be made."""
    form = _NAMES.get(kind)
    if form is not None and not re.fullmatch(form, one["name"]):
        raise Refused(400, "InvalidResourceName", f"'{one['name']}' is not a valid name of {kind}.")
    properties = one.get("properties", {})
    if kind == SERVERS and not properties.get("administratorLoginPassword"):
        raise Refused(400, "InvalidParameterValue", "The administrator login password is missing.")
    if kind == BUDGETS and not re.fullmatch(r"\d{4}-\d\d-01.*", properties["timePeriod"]["startDate"]):
        raise Refused(400, "400", "The start date of a budget must be the first day of a month.")

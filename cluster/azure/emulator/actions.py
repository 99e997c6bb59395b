"""By which words roles of Azure allow a request (pure).

https://learn.microsoft.com/azure/role-based-access-control/resource-provider-operations
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VERBS = {"GET": "read", "HEAD": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}


def action_of(method: str, path: str) -> str | None:
    """The action that a request needs, None for one that is not about a resource of a provider.

    `POST .../virtualMachines/NAME/simulateEviction` is `Microsoft.Compute/virtualMachines/simulateEviction/action`.
    """
    provider, _, rest = path.rpartition("/providers/")[2].partition("/")
    if "/providers/" not in path or not rest:
        return None
    parts = rest.split("/")
    # Types and names alternate, and a request without a last name is a list, or a question about what is before it.
    kinds = parts[::2]
    if method == "POST":
        return f"{provider}/{'/'.join(kinds)}/action"
    return f"{provider}/{'/'.join(kinds)}/{_VERBS[method]}"


def linked_actions(body: Any) -> set[str]:
    """The actions that Azure asks for besides, for what the body of a machine or a scale set names or brings along."""
    found = {"Microsoft.Compute/disks/write"}
    for key, value in _pairs(body):
        if key == "networkInterfaceConfigurations":
            found |= {
                "Microsoft.Network/networkInterfaces/write",
                "Microsoft.Network/networkInterfaces/join/action",
            }
        elif key == "subnet":
            found.add("Microsoft.Network/virtualNetworks/subnets/join/action")
        elif key == "networkSecurityGroup":
            found.add("Microsoft.Network/networkSecurityGroups/join/action")
        elif key == "userAssignedIdentities":
            found.add("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action")
        elif key == "imageReference" and "/galleries/" in str(value):
            found.add("Microsoft.Compute/galleries/images/versions/read")
    return found


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key, one
            yield from _pairs(one)
    elif isinstance(value, list):
        for one in value:
            yield from _pairs(one)

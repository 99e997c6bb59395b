"""What Azure refuses of networks, and of firewalls that admit their subnets, in any region and subscription (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from itertools import product

from cluster.azure.emulator.deployments.kinds import ACCOUNTS, NETWORKS, PEERINGS, VAULTS, Json
from cluster.azure.emulator.emulated_cloud import Refused

#: A resource's document by its id, None when there is none.
Find = Callable[[str], Json | None]

_LOCAL, _GLOBAL, _VAULTS = "Microsoft.Storage", "Microsoft.Storage.Global", "Microsoft.KeyVault"


def check_networks(document: Json, find: Find) -> None:
    """Raise Refused for a network, a peering or a firewall that Azure does not make."""
    if document["type"] == NETWORKS:
        for subnet in document["properties"].get("subnets", []):
            if {_LOCAL, _GLOBAL} <= _services(subnet):
                said = "A subnet has service endpoints of storage either of its region or of all regions."
                raise Refused(400, "SubnetCannotHaveBothServiceEndpoints", said)
    if document["type"] == PEERINGS:
        _check_peering(document, find)
    if document["type"] in (ACCOUNTS, VAULTS):
        rules = document["properties"].get("networkAcls", {}).get("virtualNetworkRules", [])
        for rule in rules:
            _check_rule(document, rule["id"], find)


def _check_peering(document: Json, find: Find) -> None:
    here = document["id"].rpartition("/virtualNetworkPeerings/")[0]
    there = document["properties"]["remoteVirtualNetwork"]["id"]
    for one, other in product(_prefixes(find(here)), _prefixes(find(there))):
        if one.overlaps(other):
            said = f"Cannot create or update peering: {one} of {here} overlaps {other} of {there}."
            raise Refused(400, "VnetAddressSpacesOverlap", said)


def _prefixes(network: Json | None) -> list[ipaddress.IPv4Network]:
    space = network["properties"]["addressSpace"]["addressPrefixes"] if network is not None else []
    return [ipaddress.IPv4Network(one) for one in space]


def _check_rule(document: Json, subnet: str, find: Find) -> None:
    network = find(subnet.rpartition("/subnets/")[0])
    if network is None:
        return  # another check says that it is missing
    name = subnet.rpartition("/")[2]
    (found,) = [one for one in network["properties"]["subnets"] if one["name"] == name]
    admitted = {_VAULTS} if document["type"] == VAULTS else {_GLOBAL}
    if document["type"] == ACCOUNTS and network["location"] == document["location"]:
        admitted.add(_LOCAL)
    if not admitted & _services(found):
        said = f"Subnet {subnet} has no service endpoint of {' or '.join(sorted(admitted))}."
        raise Refused(400, "SubnetsHaveNoServiceEndpointsConfigured", said)


def _services(subnet: Json) -> set[str]:
    return {one["service"] for one in subnet["properties"].get("serviceEndpoints", [])}

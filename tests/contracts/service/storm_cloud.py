"""The emulated cloud in a storm: its own books, read where they lie, and who else has machines in the resource group.

A request for each look would take a third of the time.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.azure.body import CLUSTER_TAG, NODE_TAG, machine_name
from cluster.azure.emulator.emulated_cloud import CREATING, EmulatedMachine
from cluster.provider import NodeRequest
from tests.contracts.cluster.azure_rig import CLUSTER, CPU_SIZE, AzureRig

NEIGHBOUR = "neighbour"
#: vCPUs of the spot quota that the machine of another cluster uses.
NEIGHBOURS_VCPUS = 4


def machines_of(rig: AzureRig) -> list[EmulatedMachine]:
    """Our machines that exist now; no client asks the emulator for anything meanwhile."""
    rig.cloud.advance(rig.server.clock())
    return [one for one in rig.cloud.machines.values() if one.body["tags"][CLUSTER_TAG] == CLUSTER]


def node_of(machine: EmulatedMachine) -> str:
    """Our node that a machine is."""
    return str(machine.body["tags"][NODE_TAG])


def is_nothing_left(rig: AzureRig) -> bool:
    """No machine, network interface or disk of ours exists."""
    books = (rig.cloud.interfaces, rig.cloud.disks)
    parts = [one for book in books for one in book.values() if one["tags"][CLUSTER_TAG] == CLUSTER]
    return not machines_of(rig) and not parts


def settle_neighbour(rig: AzureRig) -> None:
    """Another cluster has a machine in the same resource group, which uses the same quotas, and a spare interface."""
    node_request = NodeRequest(
        node_id="node_1", pool="cpu", resources={"CPU": 4.0}, offering=f"{CPU_SIZE}/1/spot"
    )
    rig.another(cluster=NEIGHBOUR).create(node_request)
    for interface in rig.cloud.interfaces.values():
        interface["properties"].pop("virtualMachine")


def add_stray(rig: AzureRig, node_id: str) -> None:
    """A machine with our tag begins to be made that no controller has requested, as by hand or by a lost database."""
    example = next(iter(rig.cloud.machines.values()))
    tags = {**example.body["tags"], CLUSTER_TAG: CLUSTER, NODE_TAG: node_id}
    # No plan can count with what it uses, so that it uses nothing.
    stray = replace(
        example,
        name=machine_name(CLUSTER, node_id),
        body={**example.body, "tags": tags},
        state=CREATING,
        vcpus=0,
    )
    rig.cloud.machines[stray.name.lower()] = stray


def is_neighbour_well(rig: AzureRig) -> bool:
    """What belongs to the other cluster is all there."""
    books = ([one.body for one in rig.cloud.machines.values()], rig.cloud.interfaces.values())
    return all(any(one["tags"][CLUSTER_TAG] == NEIGHBOUR for one in book) for book in books)

"""The policies of a service whose operators have applied none: a fixed pool of local nodes."""

from __future__ import annotations

from cluster.catalogue_conflicts import Known
from cluster.installed_rules import rule_names
from cluster.offerings import CapacityType, Offering
from cluster.policy_documents import digest_of
from service.queue.policy_versions import PolicyRow
from service.settings import Settings

#: Nodes that one machine can be asked for.
MOST_LOCAL_NODES = 64
#: The size whose nodes are processes of this machine.
LOCAL = "local"

_DOCUMENT = """\
# Made from the settings of the service (REMORA_NODES): a fixed pool of processes on this machine.
pools:
  local:
    sizes: [local]
    capacity: on-demand
    min_nodes: {nodes}
    max_nodes: {nodes}
"""


def fixed_pool(settings: Settings) -> PolicyRow:
    """Version 0 of the policies."""
    document = _DOCUMENT.format(nodes=settings.nodes)
    return PolicyRow(
        version=0,
        based_on=0,
        created_at=0.0,
        author="remora",
        comment="made from the settings",
        digest=digest_of(document),
        document=document,
    )


def local_offerings(settings: Settings) -> tuple[Offering, ...]:
    """What can be bought on this machine."""
    resources = {"CPU": float(settings.node_cpus)}
    if settings.node_gpus:
        resources["GPU"] = float(settings.node_gpus)
    offering = Offering(
        size=LOCAL, zone=None, capacity=CapacityType.ON_DEMAND, resources=resources, price_per_hour=0.0
    )
    return (offering,)


def known(settings: Settings) -> Known:
    """What the service can hold a policy document against."""
    return Known(
        catalogue=local_offerings(settings), most_nodes={LOCAL: MOST_LOCAL_NODES}, rules=rule_names()
    )

"""Default policies while operators have applied none: a fixed pool of local nodes, or one pool of a cloud."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.azure.place_names import table_of
from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.documents import digest_of
from cluster.policies.offerings import CapacityType, Offering
from cluster.scheduling.installed_rules import rule_names
from service.clouds.azure_settings import read_azure_settings
from service.clouds.kuberay_settings import read_kuberay_settings
from service.clouds.own_sizes import sizes_of
from service.clouds.place_files import CloudUnusable
from service.queue.full_pools import LOCAL
from service.queue.policy_versions import PolicyRow
from service.settings import CLUSTERS, Settings

#: Local nodes that a policy may ask for at most.
MOST_LOCAL_NODES = 64
#: Nodes of an existing cluster that are used at most while no policy says how many.
MOST_EXISTING_NODES = 1000
#: Sizes that a pool may have.
MOST_SIZES = 32

_DOCUMENT = """\
# Made from the settings of the service (REMORA_NODES): a fixed pool of processes on this machine.
pools:
  local:
    sizes: [local]
    capacity: on-demand
    min_nodes: {nodes}
    max_nodes: {nodes}
"""

_EXISTING_DOCUMENT = """\
# Made from the settings of the service (REMORA_CLOUD): the nodes of a Ray cluster that Remora did not start.
pools:
  existing:
    sizes: [node]
    capacity: on-demand
    min_nodes: 0
    max_nodes: {nodes}
"""

_AZURE_DOCUMENT = """\
# Made from the settings of the service (REMORA_CLOUD, REMORA_NODES): CPU machines of Azure, while jobs need them.
pools:
  cpu:
    sizes: [Standard_D4s_v5]
    zones: [any]
    capacity: prefer-spot
    min_nodes: 0
    max_nodes: {nodes}
    idle_s: 60
    patience_s: 60
"""


_KUBERAY_DOCUMENT = """\
# Made from the settings of the service (REMORA_CLOUD, REMORA_KUBERAY_FILE, REMORA_NODES): pods, while jobs need them.
pools:
  pods:
    sizes: [{sizes}]
    zones: [any]
    capacity: prefer-spot
    min_nodes: 0
    max_nodes: {nodes}
    idle_s: 60
    patience_s: 60
"""


def fixed_pool(settings: Settings) -> PolicyRow:
    """Version 0 of the policies."""
    nodes = MOST_EXISTING_NODES if settings.cloud == "existing" else settings.nodes
    document = _template(settings).format(nodes=nodes, sizes=", ".join(_sizes(settings)))
    return PolicyRow(
        version=0,
        based_on=0,
        created_at=0.0,
        author="remora",
        comment="made from the settings",
        digest=digest_of(document),
        document=document,
    )


def _template(settings: Settings) -> str:
    return {
        "local": _DOCUMENT,
        "existing": _EXISTING_DOCUMENT,
        "kuberay": _KUBERAY_DOCUMENT,
        "azure": _AZURE_DOCUMENT,
        "azure-emulated": _AZURE_DOCUMENT,
    }[settings.cloud]


def _sizes(settings: Settings) -> tuple[str, ...]:
    """The first groups of the file that says where pods are made; the controller reports what is wrong with it."""
    if settings.cloud != "kuberay":
        return ()
    try:
        return tuple(group.name for group in read_kuberay_settings(settings).groups[:MOST_SIZES])
    except CloudUnusable:
        return ("unknown",)


def local_offerings(settings: Settings) -> tuple[Offering, ...]:
    """The offerings of this machine."""
    resources = {"CPU": float(settings.node_cpus)}
    if settings.node_gpus:
        resources["GPU"] = float(settings.node_gpus)
    offering = Offering(
        size=LOCAL,
        zone=None,
        capacity=CapacityType.ON_DEMAND,
        resources=resources,
        price_per_hour=settings.node_price_per_hour,
    )
    return (offering,)


class LocalSupply:
    """`service.interfaces.Supply` of this machine: its processes, without a quota."""

    def __init__(self, settings: Settings) -> None:
        self._offerings = local_offerings(settings)

    def offerings(self) -> tuple[Offering, ...]:
        """The offerings of this machine."""
        return self._offerings

    def quota_left(self) -> Mapping[str, int]:
        """Nothing is limited."""
        return {}

    def quota_limits(self) -> Mapping[str, int]:
        """Nothing is limited."""
        return {}


def known(settings: Settings) -> ClusterFacts:
    """The catalogues and rules that a policy document is checked against."""
    if settings.cloud == "local":
        return ClusterFacts(
            catalogue=local_offerings(settings), most_nodes={LOCAL: MOST_LOCAL_NODES}, rules=rule_names()
        )
    if settings.cloud == "existing":
        # What its nodes bring, the controller alone sees.
        return ClusterFacts(rules=rule_names())
    parent = settings.home / CLUSTERS
    names = sorted(one.name for one in parent.iterdir() if one.is_dir()) if parent.is_dir() else []
    further = {name: _catalogue(settings.for_cluster(name)) for name in names}
    return ClusterFacts(catalogue=_catalogue(settings), further=further, rules=rule_names())


def _catalogue(settings: Settings) -> tuple[Offering, ...] | None:
    """What can be bought by the file of the place; None while it cannot be read.

    The controller reports what is wrong with the file; sizes are not checked meanwhile.
    """
    try:
        if settings.cloud == "kuberay":
            return tuple(group.offering for group in read_kuberay_settings(settings).groups)
        return table_of(read_azure_settings(settings), sizes_of(settings).values())
    except CloudUnusable:
        return None

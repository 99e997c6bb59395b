"""The GPU sizes of Azure that nodes can be (pure): a dated table, corrected by what Azure itself says where it does.

Resource SKUs say what can be had and where; they know neither a price nor the model of a GPU, so the table is needed
even when they answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.azure.body import DISK_PLACEMENT_LABEL
from cluster.azure.spot_market import Scarce
from cluster.policies.offerings import CapacityType, Offering

#: When the table was made; prices are USD per hour for Linux, pay as you go, in `eastus` unless a line says otherwise.
TABLE_DATE = "2026-06-18"

#: Prices of other regions as parts of those of `eastus`; regions that are not named are taken to cost as much as the
#: dearest here, so that a budget is not passed by surprise.
REGION_FACTORS = {"eastus": 1.0, "eastus2": 1.0, "westus3": 1.0, "southcentralus": 1.2}
_OTHER_REGIONS = 1.3

#: The quota of all spot machines of a region, whatever their size.
SPOT_QUOTA = "lowPriorityCores"

#: An unknown spot price counts as this part of the on-demand price: above what spot mostly costs.
_UNKNOWN_SPOT_PART = 0.4
#: Chance of an eviction per hour where Azure states none: the middle of its second-lowest bucket (5 to 10 %).
_UNKNOWN_EVICTIONS_PER_HOUR = 0.075


#: The disk that an operating system gets unless the settings of a place say otherwise, in GiB.
DISK_GB = 128

#: Of a machine's memory, what the kernel and the firmware keep, and bytes that the system, Ray and the agent take.
_KERNEL_PART = 0.03
_SYSTEM_BYTES = 2**30
#: What Ray gives to its object store by default: this part of the available memory, and at most these bytes.
#: https://docs.ray.io/en/latest/ray-core/scheduling/memory-management.html
_OBJECT_STORE_PART = 0.3
_OBJECT_STORE_BYTES = 200 * 10**9


def memory_for_workers(memory_gib: int) -> int:
    """Bytes that workers may request on a machine of `memory_gib` GiB, without what the system and Ray take.

    A node passes the same number to Ray (`ray start --memory`), so that it has the memory that the planner counted.
    """
    available = memory_gib * 2**30 * (1 - _KERNEL_PART) - _SYSTEM_BYTES
    return int(available - min(_OBJECT_STORE_PART * available, _OBJECT_STORE_BYTES))


#: Where an ephemeral disk may lie, in Azure's words and order, each with its capacity in GiB.
Placements = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One kind of machine."""

    name: str
    #: Model of its GPUs; empty when it has none.
    gpu: str
    gpus: int
    vcpus: int
    memory_gib: int
    on_demand_usd: float
    #: About 2024, as an order of magnitude; None when unknown.
    spot_usd: float | None = None
    #: InfiniBand between machines of one Uniform scale set.
    has_fabric: bool = False
    #: Name of its on-demand quota; empty where only the SKUs of a subscription state it.
    family: str = ""
    #: Where its ephemeral disk may lie; empty when the table does not know it.
    placements: Placements = ()
    #: Memory of each of its GPUs, GiB; 0 when the table does not say.
    gpu_memory_gib: int = 0
    #: Zones in which it is sold while Azure does not say, and whether as spot.
    zones: frozenset[str] = frozenset("123")
    has_spot: bool = True
    #: Its prices are those of the region in which it is used, and not those of `eastus`.
    is_priced_here: bool = False


def _gpu(
    name: str, gpu: str, gpus: int, vcpus: int, memory_gib: int, *prices: float | None, **more: Any
) -> Size:
    on_demand, spot = (*prices, None)[:2]
    assert on_demand is not None
    return Size(
        name=f"Standard_{name}",
        gpu=gpu,
        gpus=gpus,
        vcpus=vcpus,
        memory_gib=memory_gib,
        on_demand_usd=on_demand,
        spot_usd=spot,
        **more,
    )


_T4 = {"family": "Standard NCASv3_T4 Family"}
_A100 = {"family": "StandardNCADSA100v4Family"}
#: Of its resource SKU in southcentralus on 2025-06-03.  Those of its larger sisters were not seen.
_A100_ALONE = {**_A100, "placements": (("ResourceDisk", 64), ("CacheDisk", 256))}
_FABRIC = {"has_fabric": True}

#: Fractions of a GPU are left out: NCCL cannot use them.  Retired sizes are left out too, and so are those with GPUs of
#: AMD (`cluster.policies.amd_sizes`).
SIZES = (
    _gpu("NC4as_T4_v3", "T4", 1, 4, 28, 0.526, 0.063, **_T4),
    _gpu("NC8as_T4_v3", "T4", 1, 8, 56, 0.752, 0.090, **_T4),
    _gpu("NC16as_T4_v3", "T4", 1, 16, 110, 1.204, 0.144, **_T4),
    _gpu("NC64as_T4_v3", "T4", 4, 64, 440, 4.352, 0.519, **_T4),
    _gpu("NV36ads_A10_v5", "A10", 1, 36, 440, 3.20),
    _gpu("NV36adms_A10_v5", "A10", 1, 36, 880, 4.52),
    _gpu("NV72ads_A10_v5", "A10", 2, 72, 880, 6.52),
    _gpu("NC24ads_A100_v4", "A100-80G", 1, 24, 220, 3.673, 0.444, **_A100_ALONE),
    _gpu("NC48ads_A100_v4", "A100-80G", 2, 48, 440, 7.346, 0.889, **_A100),
    _gpu("NC96ads_A100_v4", "A100-80G", 4, 96, 880, 14.692, 1.778, **_A100),
    _gpu("NC40ads_H100_v5", "H100-NVL", 1, 40, 320, 6.98, 1.75),
    _gpu("NC80adis_H100_v5", "H100-NVL", 2, 80, 640, 13.96),
    _gpu("ND96asr_v4", "A100-40G", 8, 96, 900, 27.197, **_FABRIC),
    _gpu("ND96amsr_A100_v4", "A100-80G", 8, 96, 1900, 32.77, **_FABRIC),
    _gpu("ND96isr_H100_v5", "H100", 8, 96, 1900, 98.32, family="standardNDSH100v5Family", **_FABRIC),
    _gpu("ND96is_noIB_H100_v5", "H100", 8, 96, 1900, 88.488),
    # Price of eastus2.
    _gpu("ND96isr_H200_v5", "H200", 8, 96, 1850, 84.80, **_FABRIC),
    # Without a GPU, for the head, for rehearsals and for training on CPUs.
    _gpu("D4s_v5", "", 0, 4, 16, 0.192, family="standardDSv5Family"),
    _gpu("D16s_v5", "", 0, 16, 64, 0.768, family="standardDSv5Family"),
)
BY_NAME = {size.name: size for size in SIZES}


@dataclass(frozen=True, kw_only=True)
class SkuFacts:
    """What Azure says of one size in one region."""

    family: str
    zones: frozenset[str]
    #: It can be had as spot.
    spot: bool
    #: It can be had at all.
    usable: bool
    placements: Placements


def read_skus(records: Iterable[Mapping[str, Any]], region: str) -> dict[str, SkuFacts]:
    """The machine sizes of a region out of resource SKUs in their wire form, by name."""
    return {
        record["name"]: _facts(record, region)
        for record in records
        if record.get("resourceType") == "virtualMachines"
        and region in [place.lower() for place in record.get("locations", [])]
    }


def _facts(record: Mapping[str, Any], region: str) -> SkuFacts:
    # All capabilities are strings, the numbers too.
    capabilities = {one["name"]: one.get("value", "") for one in record.get("capabilities") or []}
    zones = {
        zone
        for place in record.get("locationInfo") or []
        if place.get("location", "").lower() == region
        for zone in place.get("zones") or []
    }
    usable = True
    for restriction in record.get("restrictions") or []:
        if restriction.get("type") == "Location":
            usable = False
        elif restriction.get("type") == "Zone":
            zones -= set((restriction.get("restrictionInfo") or {}).get("zones") or [])
    return SkuFacts(
        family=record.get("family", ""),
        zones=frozenset(zones),
        spot=capabilities.get("LowPriorityCapable") == "True",
        usable=usable,
        placements=_placements(capabilities),
    )


#: Which capability says how much capacity a placement has, and its units in a GiB.
_CAPACITY = {
    "ResourceDisk": ("MaxResourceVolumeMB", 1024),
    "CacheDisk": ("CachedDiskBytes", 1024**3),
    "NvmeDisk": ("NvmeDiskSizeInMiB", 1024),
}


def _placements(capabilities: Mapping[str, str]) -> Placements:
    """Where an ephemeral disk may lie; a placement whose capacity Azure does not state in a number is left out."""
    if capabilities.get("EphemeralOSDiskSupported") != "True":
        return ()
    found = []
    for placement in capabilities.get("SupportedEphemeralOSDiskPlacements", "").split(","):
        name, in_a_gib = _CAPACITY.get(placement.strip(), ("", 1))
        capacity = capabilities.get(name, "")
        if capacity.isascii() and capacity.isdigit():
            found.append((placement.strip(), int(capacity) // in_a_gib))
    return tuple(found)


def offerings(
    region: str,
    skus: Mapping[str, SkuFacts] | None = None,
    prices: Mapping[tuple[str, CapacityType], float] | None = None,
    evictions: Mapping[str, float] | None = None,
    scarce: Scarce = frozenset(),
    disk_gb: int = DISK_GB,
    sizes: Iterable[Size] = SIZES,
) -> tuple[Offering, ...]:
    """Everything that nodes of a region can be bought as: each size in each zone and in none, spot and on demand.

    `skus` of `read_skus`, `prices` in USD per hour by size and capacity type, and `evictions` in chances per hour by
    size in lower case are what Azure said lately; where one is None, or lacks a size, the table stands in.
    `scarce` are the spot offerings of which it hardly has any, by size in lower case and zone.
    `sizes` is the table, with what operators have added to it (`cluster.azure.catalogue_file`).
    Where there is capacity for a disk of `disk_gb` GiB on the machine itself, a label says which placement that is.
    """
    found: list[Offering] = []
    for size in sizes:
        facts = skus.get(size.name) if skus is not None else _unknown(size)
        if facts is None or not facts.usable:
            continue
        for capacity in CapacityType:
            if capacity is CapacityType.SPOT and not facts.spot:
                continue
            read = (prices or {}).get((size.name, capacity))
            price = read or _price(size, capacity, region)
            evicted = (evictions or {}).get(size.name.lower(), _UNKNOWN_EVICTIONS_PER_HOUR)
            for zone in (None, *sorted(facts.zones)):
                offering = _offering(size, facts, zone, capacity, price, evicted, disk_gb)
                is_scarce = capacity is CapacityType.SPOT and (size.name.lower(), zone) in scarce
                # The price of an operator's own size is no assumption.
                is_assumed = not read and not size.is_priced_here
                found.append(replace(offering, is_scarce=is_scarce, is_price_assumed=is_assumed))
    return tuple(found)


def _unknown(size: Size) -> SkuFacts:
    """What is taken for true of a size while Azure does not say."""
    return SkuFacts(
        family=size.family,
        zones=size.zones,
        spot=size.has_spot,
        usable=True,
        placements=size.placements,
    )


def _price(size: Size, capacity: CapacityType, region: str) -> float:
    price = size.on_demand_usd
    if capacity is CapacityType.SPOT:
        price = size.spot_usd if size.spot_usd is not None else _UNKNOWN_SPOT_PART * size.on_demand_usd
    return price if size.is_priced_here else price * REGION_FACTORS.get(region, _OTHER_REGIONS)


def _offering(
    size: Size,
    facts: SkuFacts,
    zone: str | None,
    capacity: CapacityType,
    price: float,
    evicted: float,
    disk_gb: int,
) -> Offering:
    is_spot = capacity is CapacityType.SPOT
    resources = {"CPU": float(size.vcpus), "memory": float(memory_for_workers(size.memory_gib))}
    if size.gpus:
        resources["GPU"] = float(size.gpus)
    labels = {"azure-gpu": size.gpu} if size.gpu else {}
    if size.gpu_memory_gib:
        labels["azure-gpu-memory-gib"] = str(size.gpu_memory_gib)
    placement = next((name for name, gib in facts.placements if gib >= disk_gb), None)
    if placement is not None:
        labels[DISK_PLACEMENT_LABEL] = placement
    return Offering(
        size=size.name,
        zone=zone,
        capacity=capacity,
        resources=resources,
        price_per_hour=price,
        evictions_per_hour=evicted if is_spot else 0.0,
        quota=SPOT_QUOTA if is_spot else facts.family,
        quota_units=size.vcpus,
        has_fabric=size.has_fabric,
        labels=labels,
    )

"""The catalogue: the table alone, and the table corrected by what Azure says."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.azure.catalogue import BY_NAME, SIZES, memory_for_workers, offerings, read_skus
from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import NodeRequest
from cluster.ray.joining import join_flags

A100 = "Standard_NC24ads_A100_v4"
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def sku(name: str = A100, **more: Any) -> dict[str, Any]:
    """A record as Azure gives it: this one is of `southcentralus`, shortened."""
    capabilities = {
        "vCPUs": "24",
        "GPUs": "1",
        "LowPriorityCapable": "True",
        "EphemeralOSDiskSupported": "True",
        "SupportedEphemeralOSDiskPlacements": "ResourceDisk,CacheDisk",
        "MaxResourceVolumeMB": "65536",
        "CachedDiskBytes": "274877906944",
        "NvmeDiskSizeInMiB": "915527",
    }
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "family": "StandardNCADSA100v4Family",
        "locations": ["southcentralus"],
        "locationInfo": [{"location": "southcentralus", "zones": ["1", "3"]}],
        "capabilities": [{"name": key, "value": value} for key, value in capabilities.items()],
        "restrictions": [],
        **more,
    }


def found(*records: dict[str, Any]) -> dict[str, Offering]:
    return {one.id: one for one in offerings("southcentralus", read_skus(records, "southcentralus"))}


def test_the_table_alone_offers_every_size_in_each_zone_and_without_one() -> None:
    ids = {one.id for one in offerings("eastus")}
    assert len(ids) == len(SIZES) * 4 * 2
    assert {f"{A100}/any/spot", f"{A100}/3/on-demand"} <= ids


def test_an_offering_of_the_table() -> None:
    (one,) = [one for one in offerings("eastus") if one.id == f"{A100}/1/spot"]
    assert one.resources == {"CPU": 24.0, "GPU": 1.0, "memory": memory_for_workers(220)}
    assert (one.price_per_hour, one.quota, one.quota_units) == (0.444, "lowPriorityCores", 24)
    assert 0 < one.evictions_per_hour < 1


def test_other_regions_cost_more_than_the_tables() -> None:
    cost = {
        region: offerings(region)[0].price_per_hour for region in ("eastus", "southcentralus", "elsewhere")
    }
    assert cost["southcentralus"] == pytest.approx(1.2 * cost["eastus"])
    assert cost["elsewhere"] == pytest.approx(1.3 * cost["eastus"])


def test_what_azure_says_decides_zones_quota_and_disk() -> None:
    ids = found(sku())
    assert set(ids) == {
        f"{A100}/{zone}/{kind}" for zone in ("any", "1", "3") for kind in ("spot", "on-demand")
    }
    assert ids[f"{A100}/any/on-demand"].quota == "StandardNCADSA100v4Family"


def disk(reported: dict[str, str] | None, disk_gb: int) -> str | None:
    """Where the disk of an A100 node lies; `reported` changes what the SKU says, None: the table alone is known."""
    skus = None
    if reported is not None:
        record = sku()
        said = {one["name"]: one["value"] for one in record["capabilities"]} | reported
        record["capabilities"] = [{"name": key, "value": value} for key, value in said.items()]
        skus = read_skus([record], "southcentralus")
    placed = {
        one.labels.get("azure-disk-placement")
        for one in offerings("southcentralus", skus, disk_gb=disk_gb)
        if one.size == A100
    }
    (only,) = placed
    return only


@pytest.mark.parametrize("reported", [None, {}], ids=["the table", "the SKU"])
@pytest.mark.parametrize(
    ("disk_gb", "lies_on"),
    [(64, "ResourceDisk"), (65, "CacheDisk"), (128, "CacheDisk"), (256, "CacheDisk"), (257, None)],
)
def test_a_disk_lies_on_the_first_placement_that_is_large_enough_or_on_the_network(
    reported: dict[str, str] | None, disk_gb: int, lies_on: str | None
) -> None:
    assert disk(reported, disk_gb) == lies_on


@pytest.mark.parametrize(
    ("reported", "lies_on"),
    [
        ({"SupportedEphemeralOSDiskPlacements": "NvmeDisk,CacheDisk"}, "NvmeDisk"),
        (
            {"SupportedEphemeralOSDiskPlacements": "NvmeDisk, CacheDisk", "NvmeDiskSizeInMiB": "1024"},
            "CacheDisk",
        ),
        ({"SupportedEphemeralOSDiskPlacements": "ResourceDisk"}, None),
        ({"SupportedEphemeralOSDiskPlacements": "UnheardOf"}, None),
        ({"SupportedEphemeralOSDiskPlacements": ""}, None),
        ({"CachedDiskBytes": "much"}, None),
        ({"EphemeralOSDiskSupported": "False"}, None),
    ],
)
def test_a_placement_counts_only_with_the_size_that_azure_says_it_has(
    reported: dict[str, str], lies_on: str | None
) -> None:
    assert disk(reported, 128) == lies_on


def test_the_table_claims_an_ephemeral_disk_only_for_sizes_whose_disks_are_known() -> None:
    assert {size.name for size in SIZES if size.placements} == {A100}


def test_a_size_that_is_closed_to_the_subscription_is_not_offered() -> None:
    closed = {"type": "Location", "reasonCode": "NotAvailableForSubscription"}
    assert found(sku(restrictions=[closed])) == {}


def test_a_zone_that_is_closed_is_left_out() -> None:
    closed = {"type": "Zone", "restrictionInfo": {"zones": ["3"]}}
    assert {one.zone for one in found(sku(restrictions=[closed])).values()} == {None, "1"}


def test_a_size_that_cannot_be_spot_is_offered_on_demand_only() -> None:
    assert {one.capacity for one in found(sku(capabilities=[])).values()} == {ON_DEMAND}


def test_sizes_that_the_table_does_not_know_and_things_that_are_no_machines_are_left_out() -> None:
    assert found(sku("Standard_Unknown"), sku(resourceType="disks")) == {}


def test_prices_and_evictions_that_azure_states_replace_the_tables() -> None:
    reported = offerings("eastus", prices={(A100, SPOT): 0.5}, evictions={A100.lower(): 0.01})
    by_id = {one.id: one for one in reported}
    assert by_id[f"{A100}/1/spot"].price_per_hour == 0.5
    assert by_id[f"{A100}/1/spot"].evictions_per_hour == 0.01
    assert by_id[f"{A100}/1/on-demand"].price_per_hour == BY_NAME[A100].on_demand_usd
    assert by_id[f"{A100}/1/on-demand"].evictions_per_hour == 0.0


def test_no_retired_size_is_in_the_table() -> None:
    assert not [one.name for one in SIZES if one.name.endswith("_v3") and "T4" not in one.name]


def test_memory_is_what_the_system_and_ray_leave_and_a_node_announces_the_very_number() -> None:
    """16 GiB leave what Ray measures on such a machine, or less; the object store takes 200 GB at most."""
    assert memory_for_workers(16) / 2**30 == pytest.approx(10.16, abs=0.01)
    assert memory_for_workers(1900) == pytest.approx(1900 * 2**30 * 0.97 - 2**30 - 200e9, abs=1.0)
    for offering in offerings("eastus"):
        request = NodeRequest(node_id="node_1", pool="p", resources=dict(offering.resources))
        assert f"--memory={int(offering.resources['memory'])}" in join_flags(request, "10.0.0.1:6379")

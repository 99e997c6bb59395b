"""A size of the operators' own file, before the emulator: it is sold, bought, priced and refused like any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.azure.catalogue_file import read_sizes, with_own
from cluster.azure.emulator.books import FACTOR
from cluster.azure.emulator.server import REGION
from cluster.azure.prices import fetch_prices
from cluster.azure.region_catalogue import RegionCatalogue, Sources
from cluster.policies.offerings import CapacityType
from cluster.provider import NodeRequest, QuotaExceeded
from tests.contracts.cluster.azure_rig import AzureRig

V100 = "Standard_NC6s_v3"
OWN = with_own(
    read_sizes(
        f"sizes: {{{V100}: {{cpus: 6, memory_gib: 112, gpus: 1, gpu: V100, on_demand_usd: 3,"
        " family: standardNCSv3Family}}"
    )
)


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(sizes=OWN) as rig:
        yield rig


def request(number: int) -> NodeRequest:
    return NodeRequest(
        node_id=f"node_{number:026d}",
        pool="gpu",
        resources={"CPU": 6.0, "GPU": 1.0},
        offering=f"{V100}/1/on-demand",
    )


def test_azure_corrects_its_price_and_zones_as_those_of_the_table(rig: AzureRig) -> None:
    sources = Sources(
        skus=rig.azure.skus,
        prices=lambda: fetch_prices(REGION, rig.server.url),
        evictions=rig.azure.evictions,
        scores=rig.azure.scores,
    )
    catalogue = RegionCatalogue(REGION, sources, rig.clock, sizes=OWN.values())

    def price() -> float:
        wanted = (V100, "1", CapacityType.ON_DEMAND)
        return next(one.price_per_hour for one in catalogue() if (one.size, one.zone, one.capacity) == wanted)

    assert price() == 3.0
    catalogue.refresh()
    assert price() == FACTOR * 3.0


def test_a_machine_of_it_is_made_and_counts_in_its_own_quota(rig: AzureRig) -> None:
    rig.cloud.limits["standardNCSv3Family"] = 6
    rig.azure.create(request(1))
    assert [node.is_running for node in rig.azure.list()] == [True]
    (machine,) = rig.cloud.machines.values()
    assert (machine.size, machine.vcpus) == (V100, 6)
    with pytest.raises(QuotaExceeded, match="standardncsv3family"):
        rig.azure.create(request(2))

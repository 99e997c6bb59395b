"""What can be bought, before the emulator: whatever answers corrects the table, whatever does not leaves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.azure.catalogue import BY_NAME, offerings
from cluster.azure.emulator.books import FACTOR
from cluster.azure.emulator.server import REGION
from cluster.azure.prices import PricesUnknown, fetch_prices
from cluster.azure.region_catalogue import AGAIN_S, PRICES_EVERY_S, SCORES_EVERY_S, RegionCatalogue, Sources
from cluster.policies.offerings import CapacityType, Offering
from tests.contracts.cluster.azure_rig import A100, AzureRig

TABLE = BY_NAME[A100]


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig() as rig:
        yield rig


@pytest.fixture
def catalogue(rig: AzureRig) -> RegionCatalogue:
    sources = Sources(
        skus=rig.azure.skus,
        prices=lambda: fetch_prices(REGION, rig.server.url),
        evictions=rig.azure.evictions,
        scores=rig.azure.scores,
    )
    return RegionCatalogue(REGION, sources, rig.clock)


def sold(catalogue: RegionCatalogue, capacity: CapacityType = CapacityType.ON_DEMAND) -> Offering:
    return next(one for one in catalogue() if (one.size, one.zone, one.capacity) == (A100, "1", capacity))


def test_before_anybody_was_asked_the_table_is_what_can_be_bought(catalogue: RegionCatalogue) -> None:
    assert catalogue() == offerings(REGION)


def test_prices_of_all_pages_replace_the_tables(catalogue: RegionCatalogue) -> None:
    catalogue.refresh()
    assert sold(catalogue).price_per_hour == FACTOR * TABLE.on_demand_usd
    assert sold(catalogue, CapacityType.SPOT).price_per_hour == pytest.approx(FACTOR * 0.444)
    assert sold(catalogue, CapacityType.SPOT).evictions_per_hour == 0.075


@pytest.mark.parametrize("silent", ["skus", "prices", "evictions", "scores"])
def test_a_source_that_does_not_answer_leaves_the_others_and_is_asked_again(
    rig: AzureRig, catalogue: RegionCatalogue, silent: str
) -> None:
    rig.fault(silent, status=500)
    catalogue.refresh()
    assert rig.fired() == [1]
    assert sold(catalogue).price_per_hour == TABLE.on_demand_usd * (1.0 if silent == "prices" else FACTOR)
    rig.clock.passed_s = AGAIN_S + 1
    catalogue.refresh()
    assert sold(catalogue).price_per_hour == FACTOR * TABLE.on_demand_usd


def test_answers_are_kept_for_hours_and_through_a_failure(rig: AzureRig, catalogue: RegionCatalogue) -> None:
    catalogue.refresh()
    rig.fault("prices", status=500, times=0)
    catalogue.refresh()
    assert rig.fired() == [0]
    rig.clock.passed_s = PRICES_EVERY_S + 1
    catalogue.refresh()
    assert rig.fired() == [1]
    assert sold(catalogue).price_per_hour == FACTOR * TABLE.on_demand_usd


def test_a_zone_that_hardly_has_any_spot_is_known_for_half_an_hour(
    rig: AzureRig, catalogue: RegionCatalogue
) -> None:
    rig.cloud.most_machines[A100, "1", "spot"] = 0

    def scarce() -> set[str | None]:
        return {one.zone for one in catalogue() if one.is_scarce}

    catalogue.refresh()
    assert scarce() == {"1"}
    assert {(one.size, one.capacity) for one in catalogue() if one.is_scarce} == {(A100, CapacityType.SPOT)}
    del rig.cloud.most_machines[A100, "1", "spot"]
    catalogue.refresh()
    assert scarce() == {"1"}
    rig.fault("scores", status=500)
    rig.clock.passed_s = SCORES_EVERY_S + 1
    catalogue.refresh()
    assert scarce() == set(), "an old score is worth less than none"


def test_the_disk_of_the_place_decides_where_it_lies(rig: AzureRig) -> None:
    def placements(disk_gb: int) -> list[str | None]:
        sources = Sources(
            skus=rig.azure.skus, prices=dict, evictions=rig.azure.evictions, scores=rig.azure.scores
        )
        catalogue = RegionCatalogue(REGION, sources, rig.clock, disk_gb)
        before = sold(catalogue).labels.get("azure-disk-placement")
        catalogue.refresh()
        return [before, sold(catalogue).labels.get("azure-disk-placement")]

    assert placements(64) == ["ResourceDisk"] * 2
    assert placements(128) == ["CacheDisk"] * 2
    assert placements(512) == [None] * 2


def test_a_list_of_prices_that_no_server_has_is_reported_in_a_sentence() -> None:
    with pytest.raises(PricesUnknown, match="cannot be read"):
        fetch_prices(REGION, "http://127.0.0.1:9")

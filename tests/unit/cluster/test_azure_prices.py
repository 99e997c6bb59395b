"""Prices and eviction rates out of Azure's answers."""

from __future__ import annotations

from typing import Any

from cluster.azure.prices import read_prices
from cluster.azure.spot_market import read_evictions
from cluster.policies.offerings import CapacityType

SIZE = "Standard_NC24ads_A100_v4"


def item(price: float = 3.673, meter: str = "NC24ads A100 v4", **more: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD",
        "retailPrice": price,
        "armSkuName": SIZE,
        "meterName": meter,
        "productName": "Virtual Machines NCads A100 v4 Series",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        **more,
    }


def test_spot_and_on_demand_are_distinguished_by_the_meters_name() -> None:
    prices = read_prices([item(), item(0.68, "NC24ads A100 v4 Spot")])
    assert prices == {(SIZE, CapacityType.ON_DEMAND): 3.673, (SIZE, CapacityType.SPOT): 0.68}


def test_what_is_not_an_hour_of_linux_in_dollars_is_left_out() -> None:
    others = [
        item(9.0, productName="Virtual Machines NCads A100 v4 Series Windows"),
        item(9.0, "NC24ads A100 v4 Low Priority"),
        item(9.0, unitOfMeasure="1/Month"),
        item(9.0, type="Reservation"),
        item(9.0, currencyCode="EUR"),
        item(0.0),
        item(9.0, armSkuName=""),
        {key: value for key, value in item(9.0, "NC24ads A100 v4 Spot").items() if key != "retailPrice"},
        {},
    ]
    assert read_prices([*others, item()]) == {(SIZE, CapacityType.ON_DEMAND): 3.673}


def test_of_several_meters_the_dearest_counts() -> None:
    assert read_prices([item(2.0), item(3.0), item(1.0)]) == {(SIZE, CapacityType.ON_DEMAND): 3.0}


def test_eviction_rates_are_the_middle_of_azures_ranges() -> None:
    rows = [{"skuName": SIZE, "evictionRate": "0-5"}, {"skuName": "standard_b", "evictionRate": "20+"}]
    assert read_evictions(rows) == {SIZE.lower(): 0.025, "standard_b": 0.25}


def test_rates_in_words_that_are_new_are_left_out() -> None:
    rows = [{"skuName": SIZE, "evictionRate": "many"}, {"evictionRate": "0-5"}, {"skuName": SIZE}]
    assert read_evictions(rows) == {}

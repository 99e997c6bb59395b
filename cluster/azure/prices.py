"""What machines of Azure cost, from its public list of retail prices, which needs no account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import httpx2

from cluster.policies.offerings import CapacityType

#: Public clouds only; other clouds have no such list.
ENDPOINT = "https://prices.azure.com"
_VERSION = "2023-01-01-preview"
#: A region has some thirty pages of machines; a list that is longer is not one that we know.
_MOST_PAGES = 200
_TIMEOUT_S = 20.0

Prices = dict[tuple[str, CapacityType], float]


class PricesUnknown(Exception):
    """The list did not answer, or not in words that are known; the message is one sentence."""


def read_prices(items: Iterable[Mapping[str, Any]]) -> Prices:
    """USD per hour by size and capacity type out of the list's items, pure.

    Windows, the retired "low priority" kind, and prices of other units are left out; where a size has several
    meters, the dearest counts, so that no more is spent than was planned.
    """
    found: Prices = {}
    for item in items:
        name, meter = item.get("armSkuName", ""), item.get("meterName", "")
        is_ours = item.get("unitOfMeasure") == "1 Hour" and item.get("type", "Consumption") == "Consumption"
        if not name or not is_ours or item.get("currencyCode", "USD") != "USD":
            continue
        if item.get("productName", "").endswith(" Windows") or meter.endswith(" Low Priority"):
            continue
        capacity = CapacityType.SPOT if meter.endswith(" Spot") else CapacityType.ON_DEMAND
        price = float(item.get("retailPrice", 0.0))
        if price > 0:
            found[name, capacity] = max(price, found.get((name, capacity), 0.0))
    return found


def fetch_prices(region: str, endpoint: str = ENDPOINT) -> Prices:
    """All prices of a region, by one request per page.  Raises PricesUnknown when any page fails."""
    # Values are compared with regard to case.
    wanted = (
        f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption'"
    )
    url = f"{endpoint}/api/retail/prices"
    query: dict[str, str] | None = {"api-version": _VERSION, "$filter": wanted}
    items: list[Mapping[str, Any]] = []
    try:
        with httpx2.Client(timeout=_TIMEOUT_S) as client:
            for _ in range(_MOST_PAGES):
                page = client.get(url, params=query).raise_for_status().json()
                items += page["Items"]
                url, query = page.get("NextPageLink") or "", None
                if not url:
                    return read_prices(items)
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PricesUnknown(f"the list of prices of {region} cannot be read: {error!r}") from error
    raise PricesUnknown(f"the list of prices of {region} has more than {_MOST_PAGES} pages")

"""How often Azure takes spot machines back, as its Resource Graph tells it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Chance that a machine is taken within an hour, by Azure's word for it: a range of percent over the last 28 days.
#: The middle of each range counts, and for the open one a little more than its begin.
_CHANCES = {"0-5": 0.025, "5-10": 0.075, "10-15": 0.125, "15-20": 0.175, "20+": 0.25}


def query(region: str) -> str:
    """The question for the Resource Graph."""
    return (
        "SpotResources"
        " | where type =~ 'microsoft.compute/skuspotevictionrate/location'"
        f" | where location =~ '{region}'"
        " | project skuName = tostring(sku.name), evictionRate = tostring(properties.evictionRate)"
    )


def read_evictions(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Chances per hour by the size's name in lower case; words that are not known are left out."""
    return {
        str(row["skuName"]).lower(): _CHANCES[str(row["evictionRate"])]
        for row in rows
        if row.get("skuName") and str(row.get("evictionRate")) in _CHANCES
    }

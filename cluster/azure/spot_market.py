"""What Azure says of its spot machines: how often it takes them back, and where it expects to have some (pure).

The placement scores are of the moment, promise nothing and know nothing of evictions, so they only decide which zone is
asked first.  Request and answer: the REST operation `placementScores/spot/generate` of Microsoft.Compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Chance that a machine is taken within an hour, by Azure's word for it: a range of percent over the last 28 days.
#: The middle of each range counts, and for the open one a little more than its begin.
_CHANCES = {"0-5": 0.025, "5-10": 0.075, "10-15": 0.125, "15-20": 0.175, "20+": 0.25}


def evictions_query(region: str) -> str:
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


#: Sizes of one request at most.
_SIZES = 5
#: Machines that are asked for: more than one job of this service needs at once would only lower every score.
_COUNT = 8
#: What says that there is hardly any.
_POOR = frozenset({"low", "restrictedsku"})

Scarce = frozenset[tuple[str, str]]


def score_requests(region: str, sizes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Bodies of the requests for these sizes, zone by zone."""
    for at in range(0, len(sizes), _SIZES):
        yield {
            "desiredLocations": [region],
            "desiredSizes": [{"sku": size} for size in sizes[at : at + _SIZES]],
            "desiredCount": _COUNT,
            "availabilityZones": True,
        }


def read_scores(rows: Iterable[Mapping[str, Any]]) -> Scarce:
    """(Size in lower case, zone) of which Azure says that it hardly has any; other words count as no word."""
    return frozenset(
        (str(row["sku"]).lower(), str(row["availabilityZone"]))
        for row in rows
        if row.get("sku") and row.get("availabilityZone") and str(row.get("score", "")).lower() in _POOR
    )

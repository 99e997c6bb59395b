"""Where Azure expects to have spot machines, as its placement scores tell it (pure).

The scores are of the moment, promise nothing and know nothing of evictions, so they only decide which zone is asked
first.  Request and answer: the REST operation `placementScores/spot/generate` of Microsoft.Compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Sizes of one request at most.
_SIZES = 5
#: Machines that are asked for: more than one job of this service needs at once would only lower every score.
_COUNT = 8
#: What says that there is hardly any.
_POOR = frozenset({"low", "restrictedsku"})

Scarce = frozenset[tuple[str, str]]


def requests(region: str, sizes: Sequence[str]) -> Iterator[dict[str, Any]]:
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

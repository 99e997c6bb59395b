"""The offerings of one region: the built-in catalogue, corrected by Azure's SKUs, prices, evictions and scores."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.azure.catalogue import DISK_GB, SIZES, Size, SkuFacts, offerings, read_skus
from cluster.azure.prices import Prices
from cluster.azure.spot_market import Scarce, read_evictions, read_scores
from cluster.policies.offerings import CapacityType, Offering

log = logging.getLogger(__name__)

HOUR_S = 3600.0
#: Sizes change when Azure opens or closes one for a region or a subscription; the answer has megabytes.
SKUS_EVERY_S = 24 * HOUR_S
#: Spot prices change a few times a month.
PRICES_EVERY_S = 12 * HOUR_S
#: The rates are those of the last 28 days.
EVICTIONS_EVERY_S = 12 * HOUR_S
#: Azure advises to keep an answer for 15 to 30 minutes.
SCORES_EVERY_S = 1800.0
#: Seconds after which a source that did not answer is read again.
AGAIN_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The sources of the corrections; each may raise any exception when it does not answer."""

    #: Resource SKUs of the region in their wire form.
    skus: Callable[[], list[dict[str, Any]]]
    prices: Callable[[], Prices]
    #: Rows of the Resource Graph.
    evictions: Callable[[], list[dict[str, Any]]]
    #: Placement scores of spot machines of these sizes in their wire form.
    scores: Callable[[Sequence[str]], list[dict[str, Any]]]


class RegionCatalogue:
    """The catalogue of one region; a call returns its offerings."""

    def __init__(
        self,
        region: str,
        sources: Sources,
        clock: Callable[[], float] = time.time,
        disk_gb: int = DISK_GB,
        sizes: Iterable[Size] = SIZES,
    ) -> None:
        """`disk_gb` is the size of the nodes' disks in GiB, which decides where they may lie.

        `sizes` is the table that is corrected.
        """
        self._sizes = tuple(sizes)
        self._region = region
        self._disk_gb = disk_gb
        self._sources = sources
        self._clock = clock
        self._skus: dict[str, SkuFacts] | None = None
        self._prices: Prices | None = None
        self._evictions: dict[str, float] | None = None
        self._scarce: Scarce = frozenset()
        self._due = {"skus": 0.0, "prices": 0.0, "evictions": 0.0, "scores": 0.0}
        self._offerings = offerings(region, disk_gb=disk_gb, sizes=self._sizes)

    def __call__(self) -> tuple[Offering, ...]:
        """Everything that can be bought, as far as it is known; sends no request."""
        return self._offerings

    def refresh(self) -> None:
        """Read the sources whose answers are old; takes seconds.  Where one does not answer, the old values stay."""
        if self._is_due("skus", SKUS_EVERY_S):
            self._ask("skus", self._read_skus)
        if self._is_due("prices", PRICES_EVERY_S):
            self._ask("prices", self._read_prices)
        if self._is_due("evictions", EVICTIONS_EVERY_S):
            self._ask("evictions", self._read_evictions)
        if self._is_due("scores", SCORES_EVERY_S):
            # Scores change quickly: old ones are worse than none.
            self._scarce = frozenset()
            self._ask("scores", self._read_scores)
        self._offerings = offerings(
            self._region,
            self._skus,
            self._prices,
            self._evictions,
            self._scarce,
            self._disk_gb,
            self._sizes,
        )

    def _is_due(self, name: str, every_s: float) -> bool:
        now = self._clock()
        if now < self._due[name]:
            return False
        self._due[name] = now + every_s
        return True

    def _ask(self, name: str, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as error:
            self._due[name] = self._clock() + AGAIN_S
            log.warning("%s of %s are not known: %s", name, self._region, error)

    def _read_skus(self) -> None:
        # An answer without any known size counts as none: nothing could be bought.
        found = read_skus(self._sources.skus(), self._region)
        if not offerings(self._region, found, sizes=self._sizes):
            raise ValueError("no size of the catalogue is sold there")
        self._skus = found

    def _read_prices(self) -> None:
        self._prices = self._sources.prices()

    def _read_evictions(self) -> None:
        self._evictions = read_evictions(self._sources.evictions())

    def _read_scores(self) -> None:
        sold = sorted({one.size for one in self._offerings if one.capacity is CapacityType.SPOT})
        self._scarce = read_scores(self._sources.scores(sold))

"""The limits that storms press against, and how one knows that a limit was reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.contracts.service.storm_cloud import NEIGHBOURS_VCPUS

if TYPE_CHECKING:
    from tests.contracts.service.azure_storm import Storm

SPOT_QUOTA, FAMILY_QUOTA, REGION_QUOTA = "lowPriorityCores", "standardDSv5Family", "cores"
VCPUS = 4
#: USD that are never spent.
PLENTY = 100.0


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a storm has too little of; all else has capacity for what its jobs request."""

    name: str
    #: Nodes that each quota has capacity for.
    spot: int = 12
    family: int = 12
    region: int = 12
    max_nodes: int = 8
    #: What a job says that is short of nodes then.
    words: str
    #: By the books of the cloud and of the service: there is no capacity for one node more.
    is_reached: Callable[[Storm], bool]

    @property
    def quotas(self) -> Mapping[str, int]:
        """Limits of the cloud, in vCPUs."""
        return {
            SPOT_QUOTA: VCPUS * self.spot + NEIGHBOURS_VCPUS,
            FAMILY_QUOTA: VCPUS * self.family,
            REGION_QUOTA: VCPUS * self.region,
        }

    def binds(self, storm: Storm) -> bool:
        """It is reached, a job is short of nodes, and its owner reads so."""
        return self.is_reached(storm) and any(self.words in why for why in storm.books.why_short())


def _is_full(storm: Storm, quota: str) -> bool:
    used, limit = storm.rig.cloud.usages()[quota]
    return used + VCPUS > limit


def _is_money_gone(storm: Storm) -> bool:
    """So far that no machine is left: what nodes cost until they can be gone counts as spent before."""
    return storm.usd < PLENTY and storm.rate() == 0.0


BUDGET = Limit(name="the budget", max_nodes=6, words="the budget", is_reached=_is_money_gone)
LIMITS = (
    Limit(
        name="the quota of spot",
        spot=3,
        family=2,
        words=f"of the quota {SPOT_QUOTA}",
        is_reached=lambda storm: _is_full(storm, SPOT_QUOTA),
    ),
    Limit(
        name="the quota of a family",
        spot=2,
        family=2,
        words=f"of the quota {FAMILY_QUOTA}",
        is_reached=lambda storm: _is_full(storm, FAMILY_QUOTA),
    ),
    Limit(
        name="the quota of the region",
        spot=2,
        region=2,
        words=f"of the quota {FAMILY_QUOTA}",
        is_reached=lambda storm: _is_full(storm, REGION_QUOTA),
    ),
    Limit(
        name="the maximum of the pool",
        max_nodes=3,
        words="pool 'cpu' may have 3 nodes",
        is_reached=lambda storm: len(storm.books.counted()) == 3,
    ),
    BUDGET,
)

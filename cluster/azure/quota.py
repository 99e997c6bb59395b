"""What is left of the quotas of a region, so that what must be refused is not even asked for (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.azure.catalogue import SPOT_QUOTA
from cluster.policies.offerings import CapacityType, Offering

#: The quota of all on-demand machines of a region, which every on-demand machine uses besides its family's.
REGION_QUOTA = "cores"
#: Seconds for which a reading with units left is valid: errors correct it anyway.
READ_EVERY_S = 600.0
#: Seconds for which a reading with a used-up quota, or one that is used for planning, is valid: nodes that ended gave
#: some back.
READ_AGAIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What Azure said, and what was asked for since."""

    #: When Azure said it, by which this reading is known from others.
    read_at: float
    #: Used units and limit by quota name in lower case.
    usages: Mapping[str, tuple[int, int]]

    def with_one_more(self, offering: Offering) -> Reading:
        """The reading after one more machine was asked for."""
        return self._with(offering, offering.quota_units)

    def with_one_less(self, offering: Offering) -> Reading:
        """The reading after a machine that it counts turned out not to have been made."""
        return self._with(offering, -offering.quota_units)

    def _with(self, offering: Offering, units: int) -> Reading:
        usages = dict(self.usages)
        for name in _names(offering):
            if name in usages:
                used, limit = usages[name]
                usages[name] = (used + units, limit)
        return Reading(read_at=self.read_at, usages=usages)

    def left(self) -> dict[str, int]:
        """Units left by quota name in lower case; never below 0.

        Of no family is more left than of all on-demand machines of the region together.
        """
        left = {name: max(0, limit - used) for name, (used, limit) in self.usages.items()}
        whole = left.get(REGION_QUOTA)
        if whole is None:
            return left
        return {
            name: units if name == SPOT_QUOTA.lower() else min(units, whole) for name, units in left.items()
        }

    def limits(self) -> dict[str, int]:
        """Units in all by quota name in lower case, used or not."""
        return {name: limit for name, (_, limit) in self.usages.items()}


def full_quota(reading: Reading, offering: Offering) -> str | None:
    """One sentence about the quota that has no capacity for one more machine of an offering, None when all have.

    A quota that Azure does not list has capacity: Azure itself refuses where it has not.
    """
    for name in _names(offering):
        if name in reading.usages:
            used, limit = reading.usages[name]
            if used + offering.quota_units > limit:
                return f"the quota {name!r} has {limit} vCPUs, {used} are used and {offering.quota_units} are needed"
    return None


def _names(offering: Offering) -> tuple[str, ...]:
    if offering.capacity is CapacityType.SPOT:
        return (SPOT_QUOTA.lower(),)
    return (offering.quota.lower(), REGION_QUOTA)

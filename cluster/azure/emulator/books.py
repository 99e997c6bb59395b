"""The emulator's books: for which times it bills which machine, at which price.

A machine is billed from when its request was accepted until it is taken back, or until its deletion begins, at the
price of its size and capacity type in the emulated list of retail prices.  Azure does not bill a machine that it
deallocates, nor one whose hardware it has not allocated yet
(https://learn.microsoft.com/azure/virtual-machines/states-billing); the latter is billed here, as Azure does not say
when that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.azure.catalogue import Size

#: The emulator's prices are those of the table times this, so that it can be seen whose price was used.
FACTOR = 0.5
#: Part of the on-demand price that spot costs where the table does not say.
_SPOT = 0.3


def price_of(size: Size, capacity: str) -> float:
    """USD for an hour of a machine on Linux; `capacity` is `spot` or `on-demand`."""
    spot = size.spot_usd if size.spot_usd is not None else _SPOT * size.on_demand_usd
    return FACTOR * (spot if capacity == "spot" else size.on_demand_usd)


@dataclass(frozen=True, kw_only=True)
class BilledMachine:
    """One machine in the books; times are seconds since 1970."""

    name: str
    #: The node that it was tagged with when it was requested; empty without such a tag.
    node: str
    size: str
    zone: str
    capacity: str
    began_at: float
    #: None: it is still there.
    ended_at: float | None
    #: USD; 0 for a size without a price.
    price_per_hour: float

    def cost(self, now: float) -> float:
        """USD."""
        ended_at = now if self.ended_at is None else self.ended_at
        return max(0.0, ended_at - self.began_at) / 3600.0 * self.price_per_hour


def billed_price(sizes: Mapping[str, Size], size: str, capacity: str) -> float:
    """The price of what may be no size of the table."""
    known = sizes.get(size)
    return 0.0 if known is None else price_of(known, capacity)

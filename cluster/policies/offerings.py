"""What can be bought: a machine size in a zone with a capacity type, and what is known about it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from cluster.lazy_property import lazy


class CapacityType(StrEnum):
    """How a machine is paid for, and whether the cloud may take it back."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, kw_only=True)
class Offering:
    """One line of the catalogue: the same size in another zone or with another capacity type is another offering."""

    #: The cloud's word for the kind of machine, e.g. `Standard_NC24ads_A100_v4`; `local` for processes of this host.
    size: str
    #: Zone in which it is asked for; None asks for any, which the cloud answers independently of the zones.
    zone: str | None
    capacity: CapacityType
    #: Ray resources of one node, e.g. {"CPU": 24.0, "GPU": 1.0}.
    resources: Mapping[str, float]
    #: USD for an hour of one node.
    price_per_hour: float
    #: Chance that one node is preempted within an hour; 0 for what the cloud does not take back.
    evictions_per_hour: float = 0.0
    #: Name of the quota that it uses, compared without regard to case, e.g. `StandardNCADSA100v4Family`.
    quota: str = ""
    #: How much of that quota one node uses: its vCPUs.
    quota_units: int = 0
    #: Its nodes can be joined by InfiniBand when they are launched into one fabric domain.
    has_fabric: bool = False
    #: The cloud says that it hardly has any now; asked for after the other zones of its size.
    is_scarce: bool = False
    #: The price is the built-in table's, as the cloud's own list was not read yet or lacks it.
    is_price_assumed: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @lazy
    def id(self) -> str:
        """`<size>/<zone or any>/<capacity type>`; unique in a catalogue."""
        return f"{self.size}/{self.zone or 'any'}/{self.capacity}"


@lru_cache(maxsize=4096)
def zone_and_capacity(offering_id: str) -> tuple[str | None, CapacityType | None]:
    """What an `Offering.id` says of its nodes; None for what is not known, as of an empty id."""
    try:
        _, zone, capacity = offering_id.rsplit("/", 2)
        return None if zone == "any" else zone, CapacityType(capacity)
    except ValueError:
        return None, None

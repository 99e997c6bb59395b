"""Which nodes a job accepts, by pool, zone, capacity type and fabric domain (pure).

One description for all uses: the planner and the queue match nodes against it, and Ray gets it as a label selector for
the labels that every node bears.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.lazy_property import lazy
from cluster.policies.offerings import CapacityType
from cluster.policies.policies import CapacityRule

#: Labels of a Ray node for its location; a node whose zone or capacity type is not known lacks that one.
POOL_LABEL = "remora-pool"
ZONE_LABEL = "remora-zone"
CAPACITY_LABEL = "remora-capacity"
#: The fabric domain of a node that InfiniBand joins to others; nodes of one domain have the same value.
FABRIC_LABEL = "remora-fabric"

#: Labels of nodes that the cloud does not take back, with their values.
ON_DEMAND_LABELS: Mapping[str, tuple[str, ...]] = {CAPACITY_LABEL: (CapacityType.ON_DEMAND.value,)}

_CAPACITIES: Mapping[CapacityRule | None, tuple[CapacityType, ...]] = {
    CapacityRule.SPOT: (CapacityType.SPOT,),
    CapacityRule.ON_DEMAND: (CapacityType.ON_DEMAND,),
}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a job asks of its nodes; empty fields ask for nothing."""

    #: Pools in order of preference.
    pools: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    #: `prefer-spot` and `mixed` say what is bought first; on nodes that are there such a job accepts both.
    capacity: CapacityRule | None = None
    #: All of its workers have to be in one fabric domain: on machines that are joined by InfiniBand.
    needs_fabric: bool = False
    #: The fabric domain that was chosen for its workers; None: none yet, or it needs none.
    fabric: str | None = None

    @lazy
    def is_anywhere(self) -> bool:
        """It asks for nothing."""
        return self == ANYWHERE

    @lazy
    def on_demand(self) -> Placement:
        """The same restricted to on-demand nodes."""
        return replace(self, capacity=CapacityRule.ON_DEMAND)

    @lazy
    def capacities(self) -> tuple[CapacityType, ...]:
        """Capacity types that it accepts; empty: all."""
        return _CAPACITIES.get(self.capacity, ())

    def takes(self, capacity: CapacityType | None) -> bool:
        """The job may run on nodes of this capacity type.

        None: not known, and then it matches no job that asks for one, as the node lacks the label that Ray matches.
        """
        return not self.capacities or capacity in self.capacities

    def allows(self, pool: str, zone: str | None, capacity: CapacityType | None) -> bool:
        """The job may run on such a node.  Where its zone or capacity is not known, it is none that a job asks for."""
        return (
            (not self.pools or pool in self.pools)
            and (not self.zones or zone in self.zones)
            and self.takes(capacity)
        )

    def reaches(self, fabric: str | None) -> bool:
        """The job may run in that fabric domain (None: on a node that is in none), as far as one was chosen."""
        if not self.needs_fabric:
            return True
        return fabric is not None and self.fabric in (None, fabric)

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Accepted values by label of a Ray node; a label that is not named may have any."""
        accepted = {
            POOL_LABEL: self.pools,
            ZONE_LABEL: self.zones,
            CAPACITY_LABEL: tuple(one.value for one in self.capacities),
            FABRIC_LABEL: () if self.fabric is None else (self.fabric,),
        }
        return {label: values for label, values in accepted.items() if values}

    def in_words(self) -> str:
        """Which nodes it asks for, for people: `of pools a and b, zone 1, spot capacity, with InfiniBand`; or `""`."""
        parts = []
        if self.pools:
            parts.append(f"pool{'s' if len(self.pools) > 1 else ''} {' and '.join(self.pools)}")
        if self.zones:
            parts.append(f"zone{'s' if len(self.zones) > 1 else ''} {' and '.join(self.zones)}")
        if self.capacities:
            parts.append(f"{self.capacities[0].value} capacity")
        words = [f"of {', '.join(parts)}"] if parts else []
        return ", ".join([*words, "with InfiniBand"] if self.needs_fabric else words)


def bought_by(rule: CapacityRule) -> tuple[CapacityType, ...]:
    """Capacity types that a pool with this rule may have."""
    return _CAPACITIES.get(rule, tuple(CapacityType))


#: Asks for nothing.
ANYWHERE = Placement()


def labels_of(zone: str | None, capacity: CapacityType | None) -> dict[str, str]:
    """Labels of a Ray node in that zone and of that capacity type; its provider adds the pool."""
    found = {ZONE_LABEL: zone, CAPACITY_LABEL: None if capacity is None else capacity.value}
    return {label: value for label, value in found.items() if value is not None}

"""What an offering leaves open, and the labels of the nodes that are bought as it."""

from __future__ import annotations

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import CAPACITY_LABEL, ZONE_LABEL, labels_of


def test_an_offering_is_not_taken_back_and_uses_no_quota_unless_it_says_so() -> None:
    plain = Offering(
        size="m", zone=None, capacity=CapacityType.ON_DEMAND, resources={"CPU": 1.0}, price_per_hour=1.0
    )
    assert (plain.evictions_per_hour, plain.quota, plain.quota_units, plain.has_fabric) == (0.0, "", 0, False)


@pytest.mark.parametrize(
    ("zone", "capacity", "labels"),
    [
        (None, None, {}),
        ("1", None, {ZONE_LABEL: "1"}),
        ("1", CapacityType.SPOT, {ZONE_LABEL: "1", CAPACITY_LABEL: "spot"}),
    ],
)
def test_what_is_not_known_of_a_node_is_no_label(
    zone: str | None, capacity: CapacityType | None, labels: dict[str, str]
) -> None:
    assert labels_of(zone, capacity) == labels

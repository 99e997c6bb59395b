"""Quotas: what is left, and when it is certain that one has no capacity."""

from __future__ import annotations

from cluster.azure.quota import Reading, full_quota
from cluster.policies.offerings import CapacityType, Offering


def offering(capacity: CapacityType) -> Offering:
    quota = "lowPriorityCores" if capacity is CapacityType.SPOT else "StandardNCADSA100v4Family"
    return Offering(
        size="a100",
        zone=None,
        capacity=capacity,
        resources={},
        price_per_hour=1.0,
        quota=quota,
        quota_units=24,
    )


SPOT, ON_DEMAND = offering(CapacityType.SPOT), offering(CapacityType.ON_DEMAND)
FAMILY = "standardncadsa100v4family"


def reading(**usages: tuple[int, int]) -> Reading:
    return Reading(read_at=0.0, usages=usages)


def test_spot_uses_the_one_quota_of_all_spot() -> None:
    assert full_quota(reading(lowprioritycores=(24, 48), cores=(96, 96)), SPOT) is None
    assert "lowprioritycores" in str(full_quota(reading(lowprioritycores=(25, 48)), SPOT))


def test_on_demand_uses_its_familys_and_the_regions() -> None:
    assert (
        full_quota(reading(**{FAMILY: (0, 24), "cores": (0, 24), "lowprioritycores": (9, 9)}), ON_DEMAND)
        is None
    )
    assert FAMILY in str(full_quota(reading(**{FAMILY: (1, 24), "cores": (0, 24)}), ON_DEMAND))
    assert "'cores'" in str(full_quota(reading(**{FAMILY: (0, 24), "cores": (1, 24)}), ON_DEMAND))


def test_a_quota_that_is_not_listed_is_no_limit() -> None:
    assert full_quota(reading(), SPOT) is None


def test_what_was_asked_for_since_counts() -> None:
    before = reading(**{FAMILY: (0, 48), "cores": (0, 100)})
    after = before.with_one_more(ON_DEMAND)
    assert after.left() == {FAMILY: 24, "cores": 76}
    assert before.left() == {FAMILY: 48, "cores": 100}


def test_a_quota_that_was_lowered_below_its_use_has_nothing_left() -> None:
    assert reading(cores=(96, 48)).left() == {"cores": 0}


def test_what_there_is_in_all_does_not_depend_on_what_is_used() -> None:
    before = reading(**{FAMILY: (24, 48), "cores": (96, 48)})
    assert before.limits() == before.with_one_more(ON_DEMAND).limits() == {FAMILY: 48, "cores": 48}


def test_of_no_family_is_more_left_than_of_the_whole_region() -> None:
    reported = reading(**{FAMILY: (0, 96), "cores": (72, 96), "lowprioritycores": (0, 96)})
    assert reported.left() == {FAMILY: 24, "cores": 24, "lowprioritycores": 96}

"""What is recorded of what the cloud sells."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from service.queue.market import MOST, from_data, market_of, may_buy, to_data


def offering(size: str, zone: str | None, capacity: CapacityType, price: float = 1.0) -> Offering:
    return Offering(size=size, zone=zone, capacity=capacity, resources={"CPU": 4.0}, price_per_hour=price)


SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
POLICIES = Policies(
    pools={
        "spot": PoolPolicy(sizes=("D4",), zones=("1", "any"), capacity=CapacityRule.SPOT),
        "mixed": PoolPolicy(sizes=("E8",)),
    }
)


def test_what_some_pool_may_buy_is_recorded_by_id() -> None:
    sold = [offering(size, zone, capacity) for size in ("F2", "E8", "D4") for zone in (None, "1", "2")
            for capacity in (SPOT, ON_DEMAND)]  # fmt: skip
    found = [one.id for one in market_of(POLICIES, sold, [])]
    assert found == ["D4/1/spot", "D4/any/spot", "E8/any/on-demand", "E8/any/spot"]
    assert not may_buy(POLICIES.pools["spot"], "")
    many = [offering("D4", None, SPOT) for _ in range(MOST + 1)]
    assert len(market_of(POLICIES, many, [])) == MOST


def test_an_assumed_price_replaces_no_known_one() -> None:
    known, other = offering("D4", None, SPOT, 0.3), offering("D4", "1", SPOT, 0.4)
    assumed = [replace(one, price_per_hour=7.0, is_price_assumed=True) for one in (known, other)]
    found = {one.id: one.price_per_hour for one in market_of(POLICIES, assumed, [known])}
    assert found == {known.id: 0.3, other.id: 7.0}
    again = {one.id: one.price_per_hour for one in market_of(POLICIES, [known, other], assumed)}
    assert again == {known.id: 0.3, other.id: 0.4}


OFFERINGS = st.builds(
    Offering,
    size=st.sampled_from(["D4", "D4@west", "a/b"]),
    zone=st.sampled_from([None, "1"]),
    capacity=st.sampled_from(CapacityType),
    resources=st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.floats(0, 9)),
    price_per_hour=st.floats(0, 9),
    evictions_per_hour=st.floats(0, 1),
    is_price_assumed=st.booleans(),
)


@given(st.lists(OFFERINGS, max_size=4))
def test_what_is_recorded_is_read_back(market: list[Offering]) -> None:
    assert from_data(to_data(market)) == market

"""How often the cloud takes spot back decides between sizes that are equal to the operators, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.documents import read_document
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies
from cluster.policies.policy_problems import PoliciesRefused
from cluster.scheduling.actions import Launch
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView, NodeView, Refusal
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import CATALOGUE, NOW, job, node, offering, policies, views

#: Middles of the ranges that Azure publishes.
RATES = (0.025, 0.075, 0.125, 0.175, 0.25)
OFTEN, SELDOM = offering("a", "1", evictions_per_hour=0.125), offering("b", "1", evictions_per_hour=0.025)
WHY = "as the cloud takes back b less often: 2.5 % an hour, 12.5 % of a"


def launches(
    sold: Sequence[Offering], refused: Sequence[Offering] = (), nodes: Sequence[NodeView] = (), **pool: object
) -> list[Launch]:
    """For a job that could use either size."""
    fields = {"sizes": ["a", "b"], "zones": ["1", "2"], "sizes_are_equal": True, **pool}
    view = ClusterView(
        jobs=(job(),),
        nodes=tuple(nodes),
        offerings=tuple(sold),
        refusals=tuple(Refusal(offering=one.id, until=NOW + 60.0) for one in refused),
    )
    actions = plan(view, Policies.model_validate({"pools": {"p": fields}}), NOW)
    return [action for action in actions if isinstance(action, Launch)]


def test_of_equal_sizes_the_one_that_is_taken_back_less_often_is_bought_with_the_reason() -> None:
    (launch,) = launches([OFTEN, SELDOM])
    assert launch.offering == SELDOM.id
    assert launch.reason == f"job j has no capacity for all its workers, {WHY}"


def test_a_pool_says_so_of_its_own_nodes_too() -> None:
    reasons = [one.reason for one in launches([OFTEN, SELDOM], min_nodes=2)]
    assert reasons == [f"pool 'p' has 0 of 2 nodes, {WHY}"] * 2


def test_a_spot_node_that_takes_over_from_an_on_demand_one_is_chosen_so_as_well() -> None:
    stand_in = offering("a", "1", CapacityType.ON_DEMAND)
    works = node("n", offering=stand_in.id, jobs={"j": 1})
    (launch,) = launches([OFTEN, SELDOM, stand_in], nodes=[works], return_to_spot_s=600)
    assert launch.reason == f"spot is back: it takes over from an on-demand node, {WHY}"


def test_sizes_in_order_of_preference_are_bought_in_that_order() -> None:
    (launch,) = launches([OFTEN, SELDOM], sizes_are_equal=False)
    assert (launch.offering, launch.reason) == (OFTEN.id, "job j has no capacity for all its workers")


@pytest.mark.parametrize(
    ("sold", "refused", "bought"),
    [
        ([SELDOM, replace(OFTEN, evictions_per_hour=0.025)], [], OFTEN.id),
        ([OFTEN, SELDOM], [OFTEN], SELDOM.id),
        ([OFTEN, SELDOM], [SELDOM], OFTEN.id),
        ([OFTEN, replace(SELDOM, is_scarce=True)], [], OFTEN.id),
        ([replace(OFTEN, is_scarce=True), SELDOM], [], SELDOM.id),
    ],
)
def test_where_something_else_decides_nothing_is_said_of_the_rate(
    sold: list[Offering], refused: list[Offering], bought: str
) -> None:
    (launch,) = launches(sold, refused)
    assert launch.offering == bought
    assert "less often" not in launch.reason


def test_a_zone_whose_nodes_do_not_join_is_asked_last_whatever_its_rate() -> None:
    failed = node("f", offering=SELDOM.id, state=NodeState.FAILED, created_at=NOW - 900)
    often = replace(OFTEN, zone="2")
    (launch,) = launches([often, SELDOM], nodes=[failed])
    assert (launch.offering, "less often" in launch.reason) == (often.id, False)


def test_sizes_cannot_be_equal_where_nothing_is_taken_back() -> None:
    document = "pools: {{p: {{sizes: [a, b], capacity: {}, sizes_are_equal: true}}}}"
    with pytest.raises(PoliciesRefused, match="the cloud takes back nothing but spot"):
        read_document(document.format("on-demand"), ClusterFacts())
    assert read_document(document.format("mixed"), ClusterFacts()).pools["p"].sizes_are_equal


always = settings(max_examples=40, deadline=None)
rated = st.lists(st.sampled_from(RATES), min_size=len(CATALOGUE), max_size=len(CATALOGUE))
scarcities = st.lists(st.booleans(), min_size=len(CATALOGUE), max_size=len(CATALOGUE))


def with_rates(view: ClusterView, rates: list[float], scarce: list[bool]) -> ClusterView:
    sold = [
        replace(one, evictions_per_hour=rate, is_scarce=is_scarce)
        if one.capacity is CapacityType.SPOT
        else one
        for one, rate, is_scarce in zip(CATALOGUE, rates, scarce, strict=True)
    ]
    return replace(view, offerings=tuple(sold))


def called_equal(rules: Policies, are_equal: bool) -> Policies:
    pools = {name: one.model_copy(update={"sizes_are_equal": are_equal}) for name, one in rules.pools.items()}
    return rules.model_copy(update={"pools": pools})


@always
@given(views(), policies, rated, scarcities)
def test_a_plan_under_an_order_of_sizes_is_the_same_whatever_the_rates(
    view: ClusterView, rules: Policies, rates: list[float], scarce: list[bool]
) -> None:
    rules = called_equal(rules, are_equal=False)
    never = [0.0] * len(rates)
    assert plan(with_rates(view, rates, scarce), rules, NOW) == plan(
        with_rates(view, never, scarce), rules, NOW
    )


@always
@given(views(), policies, st.sampled_from(RATES), scarcities)
def test_equal_rates_leave_equal_sizes_in_the_order_of_the_policy(
    view: ClusterView, rules: Policies, rate: float, scarce: list[bool]
) -> None:
    same = with_rates(view, [rate] * len(CATALOGUE), [False] * len(CATALOGUE))
    silent = PlanningContext(same, rules, NOW)._silent_zones
    contexts = [PlanningContext(same, called_equal(rules, are_equal), NOW) for are_equal in (False, True)]
    for pool in rules.pools:
        ordered, equal = (one.sold(pool, CapacityType.SPOT) for one in contexts)
        assert [o for o in ordered if o.zone not in silent] == [o for o in equal if o.zone not in silent]


@always
@given(views(), policies, rated, scarcities)
def test_of_equal_sizes_those_come_first_of_which_there_is_some_then_those_that_stay_longest(
    view: ClusterView, rules: Policies, rates: list[float], scarce: list[bool]
) -> None:
    context = PlanningContext(with_rates(view, rates, scarce), called_equal(rules, are_equal=True), NOW)
    silent = context._silent_zones
    for name, pool in rules.pools.items():
        asked = context.sold(name, CapacityType.SPOT)
        order = [
            (
                one.zone in silent,
                one.is_scarce,
                one.evictions_per_hour,
                pool.sizes.index(one.size),
                pool.zones.index(one.zone or "any"),
            )
            for one in asked
        ]
        assert order == sorted(order)
        for at, one in enumerate(asked):
            behind = [
                other
                for other in asked[at + 1 :]
                if pool.sizes.index(other.size) < pool.sizes.index(one.size)
                and order[asked.index(other)][:2] == order[at][:2]
                and other.id not in context.refused
            ]
            said = context.why_before_others(name, one)
            assert bool(said) == bool(behind)
            assert all(one.evictions_per_hour < other.evictions_per_hour for other in behind)

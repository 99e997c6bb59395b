"""What the cluster's budget still allows, whatever was spent and whatever runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.policies import BudgetStep, Policies
from cluster.scheduling.money import LOOK_S, STAY_S, STEPS, Money, leaving_time_s, money_of
from cluster.scheduling.view import Spending
from tests.unit.cluster.planner_worlds import ON_DEMAND, node, rules, view

#: USD that one node costs an hour.
PRICE = ON_DEMAND.price_per_hour
PARTS = {BudgetStep.STOP_GROWING: 0.5, BudgetStep.SPOT_ONLY: 0.7, BudgetStep.SHRINK: 0.9}
amounts = st.floats(0.0, 500.0)


def budget(**limits: float) -> Policies:
    return rules(drain_s=600, budget={**limits, "steps": {str(step): part for step, part in PARTS.items()}})


def money(policies: Policies, nodes: int, today: float, month: float = 0.0) -> Money:
    there = [node(f"n{at}", offering=ON_DEMAND.id, jobs={"j": 1}) for at in range(nodes)]
    seen = view([], there, spent=Spending(today=today, this_month=month))
    return money_of(seen, policies, {ON_DEMAND.id: ON_DEMAND})


def test_nodes_cost_money_until_the_end_of_the_budget_was_seen_and_they_were_drained() -> None:
    assert leaving_time_s(budget(usd_per_day=1.0)) == 600.0 + 2 * LOOK_S


@given(amounts, amounts, st.integers(0, 9))
def test_what_may_still_be_bought_is_what_the_nearer_budget_pays_for_as_long_as_it_is_worth_it(
    today: float, month: float, nodes: int
) -> None:
    policies = budget(usd_per_day=100.0, usd_per_month=300.0)
    rate_left = money(policies, nodes, today, month).rate_left
    lasts_h = (leaving_time_s(policies) + STAY_S) / 3600.0
    costs = (nodes * PRICE + rate_left) * lasts_h
    left = min(100.0 - today, 300.0 - month)
    assert costs == pytest.approx(left) if rate_left > 0.0 else costs >= left - 1e-6


@given(amounts, st.integers(0, 9))
def test_a_step_holds_from_its_part_of_the_budget_on_and_the_last_before_what_still_runs_exceeds_it(
    today: float, nodes: int
) -> None:
    policies = budget(usd_per_day=100.0)
    ahead = nodes * PRICE * leaving_time_s(policies) / 3600.0
    reached = [
        step
        for step in STEPS
        if today + (ahead if step not in PARTS else 0.0) >= 100.0 * PARTS.get(step, 1.0)
    ]
    assert money(policies, nodes, today).step == (reached[-1] if reached else None)


@given(amounts, st.integers(0, 9), st.integers(0, 9))
def test_nodes_of_other_clusters_count_as_those_of_this_one(today: float, here: int, elsewhere: int) -> None:
    policies = budget(usd_per_day=100.0)
    there = [node(f"n{at}", offering=ON_DEMAND.id, jobs={"j": 1}) for at in range(here)]
    seen = view([], there, spent=Spending(today=today))
    seen = replace(seen, rate_elsewhere=elsewhere * PRICE, leaving_elsewhere_s=leaving_time_s(policies))
    of_all, of_one = (
        money_of(seen, policies, {ON_DEMAND.id: ON_DEMAND}),
        money(policies, here + elsewhere, today),
    )
    assert of_all.step == of_one.step
    assert of_all.rate_left == pytest.approx(of_one.rate_left, abs=1e-6)


@given(amounts, st.integers(0, 9))
def test_without_a_budget_nothing_is_limited(today: float, nodes: int) -> None:
    assert money(rules(), nodes, today) == Money(step=None, words="", rate_left=float("inf"))

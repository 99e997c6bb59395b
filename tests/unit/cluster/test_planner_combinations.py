"""What the planner does where two of its concerns meet: money and warm nodes, deadlines and exchanges, and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType
from cluster.policies.policies import BudgetStep, Policies
from cluster.scheduling.actions import Drain, Launch, Terminate, Wait
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.drains import START_S, Losses
from cluster.scheduling.money import STAY_S, leaving_time_s
from cluster.scheduling.planner import plan
from cluster.scheduling.purchases import Ask, Purchases
from cluster.scheduling.slack import may_return
from cluster.scheduling.view import START_UP_S, ClusterView, NodeView, Spending
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import (
    BY_ID,
    NOW,
    ON_DEMAND,
    SPOT,
    SPOT_2,
    acts,
    bought,
    job,
    node,
    policies,
    rules,
    said_to,
    view,
    views,
)

often = settings(max_examples=100, deadline=None)
#: Seconds for which no pool keeps an unused node.
LONG_AGO = NOW - 100_000.0


# --- budget and warm nodes ----------------------------------------------------------------------------------


@often
@given(
    least=st.integers(0, 3),
    warm=st.integers(0, 3),
    working=st.integers(0, 3),
    unused=st.integers(0, 5),
    spent=st.sampled_from([0.0, 8.0, 8.5]),
    price=st.sampled_from([0.0, 1.0]),
)
def test_warm_nodes_are_neither_bought_nor_kept_once_a_budget_stops_growth(
    least: int, warm: int, working: int, unused: int, spent: float, price: float
) -> None:
    """Not even those that cost nothing: they would be bought, be of no use, be returned, and be bought again."""
    sold = [replace(SPOT, price_per_hour=price)]
    there = [node(f"w{at}", offering=SPOT.id, jobs={"j": 1}) for at in range(working)]
    there += [node(f"u{at}", offering=SPOT.id, idle_since=LONG_AGO) for at in range(unused)]
    running = [job(workers=working, is_running=True)] if working else []
    limits = rules(
        min_nodes=least, warm_nodes=warm, max_nodes=20,
        budget={"usd_per_day": 10, "steps": {"stop-growing": 0.8, "shrink": 0.9}},
    )  # fmt: skip
    actions = plan(view(running, there, sold, spent=Spending(today=spent)), limits, NOW)
    wanted = max(least, working + (warm if spent == 0.0 else 0))
    have = len(there)
    if spent == 0.0 or price == 0.0:
        assert len(bought(actions)) == max(0, wanted - have)
        assert not [one for one in actions if isinstance(one, Wait) and "cannot be had" in one.reason]
    else:
        assert len(bought(actions)) == max(0, least - have), (
            "a pool's minimum is bought as long as anything is"
        )
    drained = [one for one in actions if isinstance(one, Drain)]
    assert len(drained) == max(0, min(unused, have - wanted))
    assert all(one.node_id.startswith("u") for one in drained)


# --- undo and money -----------------------------------------------------------------------------------------


@st.composite
def ask(draw: st.DrawFn) -> Ask:
    """Nodes for that number of workers, for no particular job."""
    return Ask(
        pool=draw(st.sampled_from(["p", "q"])),
        worker=draw(st.sampled_from([{}, {"GPU": 1.0}, {"GPU": 2.0}])),
        workers=draw(st.integers(1, 6)),
        is_patient=draw(st.booleans()),
    )


asks = st.lists(ask(), max_size=3)


@often
@given(views(), policies, asks, asks, asks, st.sampled_from([None, 2.0, 5.0, 8.0, 20.0]))
def test_what_is_taken_back_was_never_bought(
    seen: ClusterView,
    limits: Policies,
    before: Sequence[Ask],
    undone: Sequence[Ask],
    after: Sequence[Ask],
    left: float | None,
) -> None:
    """Neither its money nor its places in pools and quotas are gone; `left` is what more may cost, in USD an hour."""
    rate = sum(BY_ID[one.offering].price_per_hour for one in seen.nodes if one.is_paid)
    ends_in_s = leaving_time_s(limits) + STAY_S
    usd = None if left is None else seen.spent.today + (rate + left) * ends_in_s / 3600.0
    budget = limits.budget.model_copy(update={"usd_per_day": usd, "usd_per_month": None, "steps": {}})
    limits = limits.model_copy(update={"budget": budget})
    context = PlanningContext(seen, limits, NOW)
    changed, untouched = (Purchases(context, context.usable) for _ in range(2))

    def buy(purchases: Purchases, asks: Sequence[Ask]) -> list[object]:
        return [purchases.buy(one) for one in asks if one.pool in limits.pools]

    assert buy(changed, before) == buy(untouched, before)
    mark = changed.mark()
    buy(changed, undone)
    changed.back(mark)
    assert buy(changed, after) == buy(untouched, after)
    assert +Counter(changed.nodes) == +Counter(untouched.nodes)


def test_what_one_pool_has_not_enough_of_leaves_its_money_to_the_next() -> None:
    """Two nodes are paid for; the first pool may have one, which would not be the whole group."""
    limits = Policies.model_validate(
        {
            "pools": {
                "p": {"sizes": ["a"], "zones": ["1"], "max_nodes": 1},
                "q": {"sizes": ["a"], "zones": ["1"], "max_nodes": 2},
            },
            "budget": {"usd_per_day": 0.75},
        }
    )
    context = PlanningContext(view([job(workers=2)], sold=[SPOT]), limits, NOW)
    assert 2.0 <= context.money.rate_left < 3.0, "at 1 USD an hour"
    launches = [one for one in plan(context.view, limits, NOW) if isinstance(one, Launch)]
    assert [one.pool for one in launches] == ["q", "q"]


# --- deadlines and exchanges --------------------------------------------------------------------------------


def spot_is_back(most: int) -> Policies:
    """Stand-ins go back to spot at once."""
    return rules(capacity="prefer-spot", return_to_spot_s=0.0, max_nodes=most)


@often
@given(
    slacks=st.lists(st.sampled_from([None, 0.0, 300.0, 600.0, 900.0, 3000.0]), min_size=1, max_size=4),
    starts=st.lists(st.booleans(), min_size=4, max_size=4),
    spare=st.integers(0, 2),
    free=st.integers(0, 2),
)
def test_a_node_on_demand_is_exchanged_for_spot_only_where_all_that_need_it_may_go_back(
    slacks: list[float | None], starts: list[bool], spare: int, free: int
) -> None:
    """Be it that they work there already, or that it was bought for them and has just become ready."""
    jobs = [
        job(
            f"j{at}",
            is_running=not starts[at],
            deadline_at=None if slack is None else NOW + 1000.0 + slack,
            work_left_s=1000.0,
        )
        for at, slack in enumerate(slacks)
    ]
    stand_ins = [
        node(
            f"n{at}",
            offering=ON_DEMAND.id,
            bought_for=one.id,
            ready_at=NOW - 1.0,
            jobs={} if starts[at] else {one.id: 1},
        )
        for at, one in enumerate(jobs)
    ]
    there = [*stand_ins, *(node(f"s{at}", offering=SPOT.id) for at in range(spare))]
    actions = plan(view(jobs, there), spot_is_back(len(there) + free), NOW)
    stays = {f"n{at}" for at, one in enumerate(jobs) if not may_return(one, NOW, START_UP_S)}
    gone = {one.node_id for one in actions if isinstance(one, Drain | Terminate)}
    assert not stays & gone
    if len(stays) == len(stand_ins):
        assert not [one for one in actions if isinstance(one, Launch) and "spot is back" in one.reason]


@pytest.mark.parametrize("most", [1, 2])
def test_a_node_that_was_bought_for_an_urgent_job_is_not_exchanged_before_the_job_has_begun(
    most: int,
) -> None:
    urgent = job(deadline_at=NOW + 1400, work_left_s=900)
    ready = node("n", offering=ON_DEMAND.id, bought_for="j", ready_at=NOW - 1.0)
    actions = plan(view([urgent], [ready]), spot_is_back(most), NOW)
    assert acts(actions) == []
    assert said_to(actions) == "there is capacity for it on nodes that are ready"
    (stays,) = [one.reason for one in actions if isinstance(one, Wait) and one.node_id == "n"]
    assert stays == "it stands in for spot, and stays, as what runs on it may not move to spot"
    forgotten = view([urgent], [replace(ready, ready_at=NOW - 10_000.0, bought_for="other")])
    assert acts(plan(forgotten, spot_is_back(most), NOW)), "a node that is no job's goes as before"


def test_a_node_on_which_nothing_runs_costs_nothing_to_drain_unless_something_just_starts_there() -> None:
    losses = Losses({}, {}, NOW)
    assert (losses.of(node()), losses.of(node(is_in_use=True))) == (0.0, START_S)


# --- nodes that start and nodes that are ready --------------------------------------------------------------


@often
@given(
    least=st.integers(0, 4),
    warm=st.integers(0, 3),
    working=st.integers(0, 3),
    ready=st.integers(0, 4),
    starting=st.integers(0, 4),
    is_for_a_job=st.booleans(),
)
def test_nodes_that_start_make_none_superfluous_that_is_ready(
    least: int, warm: int, working: int, ready: int, starting: int, is_for_a_job: bool
) -> None:
    """They may never come; and what works has its warm nodes beside it."""
    waits = [job("waits", workers=starting, zones=("2",))] if is_for_a_job and starting else []
    there = [node(f"w{at}", offering=SPOT.id, jobs={"j": 1}) for at in range(working)]
    there += [node(f"r{at}", offering=SPOT.id, idle_since=LONG_AGO) for at in range(ready)]
    there += [_starting(f"s{at}", "waits" if waits else None) for at in range(starting)]
    running = [job(workers=working, is_running=True)] if working else []
    limits = rules(min_nodes=least, warm_nodes=warm, max_nodes=30)
    actions = plan(view([*running, *waits], there), limits, NOW)
    gone = Counter(one.node_id[0] for one in actions if isinstance(one, Drain | Terminate))
    assert gone["r"] == max(0, min(ready, working + ready - max(least, working + warm)))
    assert gone["w"] == gone["s"] == 0


def _starting(name: str, owner: str | None) -> NodeView:
    return node(
        name, offering=SPOT_2.id, state=NodeState.LAUNCHED, created_at=NOW - 10.0, idle_since=None,
        is_member=False, bought_for=owner,
    )  # fmt: skip


# --- InfiniBand and several pools ---------------------------------------------------------------------------


@often
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 8), st.booleans())
def test_a_job_that_needs_one_domain_holds_up_others_only_where_one_pool_could_hold_it(
    sizes: list[int], workers: int, has_infiniband: bool
) -> None:
    """Nothing can be had now, so that a job that could ever start keeps the one behind it from being served."""
    sold = [replace(one, has_fabric=has_infiniband) for one in (SPOT, ON_DEMAND)]
    limits = Policies.model_validate(
        {
            "pools": {
                f"p{at}": {"sizes": ["a"], "zones": ["1"], "max_nodes": most} for at, most in enumerate(sizes)
            }
        }
    )
    first = job("first", workers, needs_fabric=True, created_at=NOW - 900.0)
    second = job("second", 1, created_at=NOW)
    # Capacity for neither: all nodes are at work.
    there = [
        node(f"n{pool}-{at}", pool=f"p{pool}", offering=SPOT.id, jobs={"runs": 1})
        for pool, most in enumerate(sizes)
        for at in range(most)
    ]
    runs = job("runs", len(there), is_running=True)
    actions = plan(view([runs, first, second], there, sold, strict_order=True), limits, NOW)
    could_ever = has_infiniband and max(sizes) >= workers
    assert ("behind first" in said_to(actions, "second")) is could_ever


# --- steps of the budget ------------------------------------------------------------------------------------


@often
@given(views(), policies, st.sampled_from(BudgetStep))
def test_from_spot_only_on_nothing_that_costs_is_bought_on_demand_and_from_pause_on_nothing_at_all(
    seen: ClusterView, limits: Policies, step: BudgetStep
) -> None:
    """For each that asks: jobs, urgent ones, pools for their minimum or their warm nodes, or an exchange."""
    assume(step is not BudgetStep.STOP_GROWING)
    seen = replace(seen, budget_step=step)
    budget = limits.budget.model_copy(update={"usd_per_day": 1e6, "usd_per_month": None, "steps": {}})
    limits = limits.model_copy(update={"budget": budget})
    sold = {one.id: one for one in seen.offerings}
    costly = [
        sold[one.offering]
        for one in plan(seen, limits, NOW)
        if isinstance(one, Launch) and sold[one.offering].price_per_hour > 0
    ]
    assert all(one.capacity is CapacityType.SPOT for one in costly)
    assert step is not BudgetStep.PAUSE or costly == []

"""The planner, one situation after the other: what it does, and what it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import Placement
from cluster.policies.policies import BudgetStep, CapacityRule, Policies
from cluster.scheduling.actions import Drain, Launch, Notice, Plan, Terminate, Wait
from cluster.scheduling.formatting import clock
from cluster.scheduling.health import CREATE_TIMEOUT_S, LEAST_ASKS
from cluster.scheduling.launch_checks import Rule
from cluster.scheduling.limits import next_at, pace_left
from cluster.scheduling.money import money_of
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView, NodeView, Refusal, Spending
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import (
    NOW,
    ON_DEMAND,
    SPOT,
    SPOT_2,
    acts,
    bought,
    done,
    job,
    node,
    offering,
    rules,
    said_to,
    view,
)


def test_of_one_size_the_zone_that_the_cloud_hardly_has_any_in_is_asked_last() -> None:
    scarce = replace(SPOT, is_scarce=True)
    asked = [job(workers=1)]
    assert bought(plan(view(asked, sold=[scarce, SPOT_2]), rules(), NOW)) == [SPOT_2.id]
    assert bought(plan(view(asked, sold=[scarce]), rules(), NOW)) == [SPOT.id]
    other = offering("b", "1")
    chosen = plan(view(asked, sold=[scarce, other]), rules(sizes=["a", "b"]), NOW)
    assert bought(chosen) == [SPOT.id], "the order of sizes is the operators' own"


def test_a_zone_whose_nodes_do_not_join_is_asked_last_until_one_joins_or_it_is_forgotten() -> None:
    failed = node("f", offering=SPOT.id, state=NodeState.FAILED, created_at=NOW - 900)
    asked = [job(workers=1)]
    assert bought(plan(view(asked, [failed]), rules(), NOW)) == [SPOT_2.id]
    assert bought(plan(view(asked, [failed], sold=[SPOT]), rules(), NOW)) == [SPOT.id]
    asked.append(job("other", is_running=True))
    before = node("b", offering=SPOT.id, created_at=NOW - 2000, jobs={"other": 1})
    since = node("s", offering=SPOT.id, created_at=NOW - 600, jobs={"other": 1})
    assert bought(plan(view(asked, [failed, before]), rules(), NOW)) == [SPOT_2.id]
    assert bought(plan(view(asked, [failed, since]), rules(), NOW)) == [SPOT.id]


def test_spot_is_preferred_and_on_demand_bought_after_patience() -> None:
    """A job for three: one zone has two, the other none; later on-demand stands in for the third."""
    demand = job(workers=(1, 3))
    refusals = (
        Refusal(offering=SPOT.id, until=NOW + 3600),
        Refusal(offering=SPOT_2.id, until=NOW + 3600),
    )
    assert bought(plan(view([demand]), rules(), NOW)) == [SPOT.id] * 3
    assert bought(plan(view([demand], refusals=refusals[:1]), rules(), NOW)) == [SPOT_2.id] * 3

    two = [node(f"n{at}", offering=SPOT_2.id, jobs={"j": 1}) for at in range(2)]
    short = plan(view([demand], two, refusals=refusals), rules(patience_s=600), NOW + 599)
    assert bought(short) == []
    assert "on-demand is bought only after 600 s without enough spot" in said_to(short)
    assert "spot a in zone 1 is refused until" in said_to(short)

    (launch,) = acts(plan(view([demand], two, refusals=refusals), rules(patience_s=600), NOW + 600))
    assert isinstance(launch, Launch)
    assert (launch.offering, launch.job_id) == (ON_DEMAND.id, "j")
    assert "after 600 s without enough spot" in launch.reason


def test_a_deadline_that_comes_near_is_not_left_to_spot() -> None:
    urgent = job(deadline_at=NOW + 1000, work_left_s=900)
    assert bought(plan(view([urgent]), rules(), NOW)) == [ON_DEMAND.id]
    assert bought(plan(view([replace(urgent, deadline_at=NOW + 9000)]), rules(), NOW)) == [SPOT.id]


def test_a_deadline_that_comes_near_is_not_left_to_spot_by_a_mixed_pool_either() -> None:
    mixed = rules(capacity="mixed", on_demand_core=0)
    urgent = job(workers=2, deadline_at=NOW + 1000, work_left_s=900)
    assert bought(plan(view([urgent]), mixed, NOW)) == [ON_DEMAND.id] * 2
    assert bought(plan(view([replace(urgent, deadline_at=NOW + 9000)]), mixed, NOW)) == [SPOT.id] * 2


def test_the_work_since_a_checkpoint_belongs_to_what_a_loss_may_cost_a_deadline() -> None:
    near = job(deadline_at=NOW + 3000, work_left_s=2000)
    assert bought(plan(view([near]), rules(), NOW)) == [SPOT.id]
    assert bought(plan(view([replace(near, repeats_s=600.0)]), rules(), NOW)) == [ON_DEMAND.id]


def test_what_machines_take_to_start_belongs_to_it_as_it_was_measured() -> None:
    near, mixed = job(deadline_at=NOW + 3000, work_left_s=2000), rules(capacity="mixed", on_demand_core=0)
    assert bought(plan(view([near]), mixed, NOW)) == [SPOT.id]
    assert bought(plan(view([near], start_up_s=400.0), mixed, NOW)) == [ON_DEMAND.id]


def test_an_urgent_job_is_given_no_spot_node_that_is_free_unless_nothing_else_is_to_be_had() -> None:
    mixed = rules(capacity="mixed", on_demand_core=0)
    free, urgent = [node("n", offering=SPOT.id)], job(deadline_at=NOW + 1400, work_left_s=900)
    assert bought(plan(view([urgent], free), mixed, NOW)) == [ON_DEMAND.id]
    assert bought(plan(view([urgent], free, sold=[SPOT]), mixed, NOW)) == []
    # Too late for spot that is to be bought, and not for spot that is there.
    assert bought(plan(view([replace(urgent, deadline_at=NOW + 1600)], free), mixed, NOW)) == []
    assert bought(plan(view([replace(urgent, deadline_at=NOW + 1600)]), mixed, NOW)) == [ON_DEMAND.id]


def test_an_urgent_job_does_not_wait_behind_one_that_waits_for_spot() -> None:
    mixed = rules(capacity="mixed", on_demand_core=0)
    first = job("first", created_at=NOW - 900)
    urgent = job("urgent", created_at=NOW - 100, deadline_at=NOW + 1400, work_left_s=900)
    sold = [ON_DEMAND]
    assert bought(plan(view([first, urgent], sold=sold, strict_order=True), mixed, NOW)) == [ON_DEMAND.id]
    late = replace(urgent, deadline_at=NOW + 800)
    assert bought(plan(view([first, late], sold=sold, strict_order=True), mixed, NOW)) == []
    important = replace(first, priority=90)
    assert bought(plan(view([important, urgent], sold=sold, strict_order=True), mixed, NOW)) == []


def test_a_running_job_that_may_not_lose_its_spot_nodes_moves_once_there_is_capacity_on_demand() -> None:
    mixed = rules(capacity="mixed", on_demand_core=0, max_nodes=9)
    spot = [node(f"s{at}", offering=SPOT.id, jobs={"j": 1}) for at in range(2)]
    urgent = job(workers=2, is_running=True, deadline_at=NOW + 1500, work_left_s=1000)
    assert acts(plan(view([replace(urgent, deadline_at=NOW + 1700)], spot), mixed, NOW)) == []
    assert bought(plan(view([urgent], spot), mixed, NOW)) == [ON_DEMAND.id] * 2
    one = [*spot, node("d0", offering=ON_DEMAND.id, bought_for="j")]
    assert bought(plan(view([urgent], one), mixed, NOW)) == [ON_DEMAND.id]
    two = [*one, node("d1", offering=ON_DEMAND.id, bought_for="j")]
    drains = acts(plan(view([urgent], two), mixed, NOW))
    assert [drain.node_id for drain in drains if isinstance(drain, Drain)] == ["s0", "s1"]
    assert len(drains) == 2
    assert all("deadline of j is near" in drain.reason for drain in drains if isinstance(drain, Drain))
    beside = job("other", is_running=True, deadline_at=NOW + 1500, work_left_s=900)
    shared = [replace(two[0], jobs={"j": 1, "other": 1}), *two[1:]]
    assert not any(isinstance(act, Drain) for act in plan(view([urgent, beside], shared), mixed, NOW))


def test_a_job_moves_only_where_it_helps() -> None:
    mixed = rules(capacity="mixed", on_demand_core=0, max_nodes=9)
    spot = [node(f"s{at}", offering=SPOT.id, jobs={"j": 1}) for at in range(2)]
    urgent = job(workers=2, is_running=True, deadline_at=NOW + 1500, work_left_s=1000)
    for why in (
        {"work_left_s": 200.0, "deadline_at": NOW + 700},  # it ends before the machines are there
        {"repeats_s": 600.0},  # to move could cost what the loss would
        {"placement": Placement(capacity=CapacityRule.SPOT)},
    ):
        assert bought(plan(view([replace(urgent, **why)], spot), mixed, NOW)) == []
    mostly = [replace(spot[0], offering=ON_DEMAND.id), spot[1]]
    elastic = job(workers=(1, 2), is_running=True, deadline_at=NOW + 1500, work_left_s=1000)
    assert bought(plan(view([elastic], mostly), mixed, NOW)) == [], "what stays carries its smallest group"
    assert bought(plan(view([urgent], spot), rules(capacity="spot", max_nodes=9), NOW)) == []


def test_a_group_is_bought_whole_or_not_at_all() -> None:
    actions = plan(view([job("large", 4), job("small", 2, created_at=NOW + 1)]), rules(max_nodes=3), NOW)
    assert bought(actions) == [SPOT.id] * 2, "the smaller one overtakes"
    assert "pool 'p' may have 3 nodes" in said_to(actions, "large")
    strict_order = view([job("large", 4), job("small", 2, created_at=NOW + 1)], strict_order=True)
    assert bought(plan(strict_order, rules(max_nodes=3), NOW)) == [SPOT.id] * 2, (
        "it could never start: there is nothing to wait for"
    )
    small_quota = replace(
        strict_order, offerings=(offering("a", "1", quota="Spot", quota_units=6),), quota_left={"spot": 18}
    )
    assert bought(plan(small_quota, rules(), NOW)) == []
    assert "behind large" in said_to(plan(small_quota, rules(), NOW), "small")


@pytest.mark.parametrize(
    ("held", "free", "bought_for_it"), [(0, 5, 4), (2, 3, 2), (2, 1, 0), (3, 1, 1), (3, 2, 1)]
)
def test_a_model_that_two_workers_hold_gets_nodes_for_whole_copies_only(
    held: int, free: int, bought_for_it: int
) -> None:
    """A group that lost one of four workers, and is still three, gets the one that it lacks."""
    there = [node(f"n{at}", jobs={"j": 1}) for at in range(held)]
    demand = job(workers=(2, 8), multiple_of=2, is_running=held > 0)
    assert len(bought(plan(view([demand], there), rules(max_nodes=held + free), NOW))) == bought_for_it


@pytest.mark.parametrize(
    ("lost", "zone"),
    [
        ({"is_member": False}, "2"),
        ({"is_member": False, "is_running": False}, "1"),
        ({"is_member": False, "provided": False}, "1"),
        ({"is_member": False, "state": NodeState.DRAINING}, "1"),
    ],
)
def test_a_zone_whose_members_are_cut_off_from_the_head_is_asked_last(
    lost: dict[str, Any], zone: str
) -> None:
    zones = [offering("a", "1"), offering("a", "2")]
    there = [replace(node("n", offering=zones[0].id, jobs={"j": 1}), **lost)]
    demand = job(workers=1, is_running=True)
    (launch,) = bought(plan(view([demand], there, sold=zones), rules(zones=["1", "2"]), NOW))
    assert launch == offering("a", zone).id
    # As long as another member answers there, it was the node and not the zone.
    there.append(node("other", offering=zones[0].id, jobs={"k": 1}))
    other = job("k", 1, is_running=True)
    (launch,) = bought(plan(view([demand, other], there, sold=zones), rules(zones=["1", "2"]), NOW))
    assert launch == zones[0].id


def test_infiniband_jobs_get_one_domain_of_one_offering() -> None:
    dry, fast = offering("a", "1"), offering("a", "2", has_fabric=True)
    launches = acts(plan(view([job(workers=(2, 3), needs_fabric=True)], sold=[dry, fast]), rules(), NOW))
    assert {(one.offering, one.fabric) for one in launches if isinstance(one, Launch)} == {(fast.id, "p-j")}
    assert len(launches) == 3
    # Two domains with one free node each are no capacity for two workers.
    apart = [node(name, offering=fast.id, fabric=name) for name in ("d1", "d2")]
    more = plan(view([job(workers=2, needs_fabric=True)], apart, sold=[fast]), rules(max_nodes=3), NOW)
    assert [(one.offering, one.fabric) for one in more if isinstance(one, Launch)] == [(fast.id, "d1")]


def test_an_attempt_grows_in_its_own_domain_and_a_lost_domain_is_no_prison() -> None:
    fast, other = offering("a", "2", has_fabric=True), offering("a", "1", has_fabric=True)
    bound = job(workers=(2, 3), needs_fabric=True, is_running=True, fabric="p-j")

    def launched(*nodes: NodeView, sold: Iterable[Offering] = (fast, other), **more: Any) -> list[Any]:
        actions = plan(view([bound], nodes, sold=sold, **more), rules(max_nodes=9), NOW)
        return [(one.offering, one.fabric) for one in actions if isinstance(one, Launch)]

    empty = [node(f"d{at}", offering=fast.id, fabric="d") for at in range(3)]
    # Its workers start, one node of two is lost: the capacity of another domain is none for it.
    own = node("n", offering=fast.id, fabric="p-j")
    assert launched(own, *empty) == [(fast.id, "p-j")] * 2
    # All are lost: any domain will do, and what is bought of the same offering is of the same domain.
    going = replace(own, state=NodeState.DRAINING, deadline_at=NOW + 30, jobs={"j": 1})
    assert launched(going, *empty) == []
    assert launched(going, sold=[fast]) == [(fast.id, "p-j")] * 3
    # Of another one it cannot be.
    assert launched(going, sold=[other]) == [(other.id, "p-j-2")] * 3


def test_the_planner_puts_jobs_into_the_domains_into_which_admission_puts_them() -> None:
    """Else it would buy another domain for the second one, which has capacity."""
    fast = offering("a", "1", has_fabric=True)
    there = [
        node(f"{name}{at}", offering=fast.id, fabric=name) for name in ("big", "tiny") for at in range(2)
    ]
    there.append(node("big2", offering=fast.id, fabric="big"))
    small, large = (job(name, workers, needs_fabric=True) for name, workers in (("a", 2), ("b", 3)))
    assert bought(plan(view([small, large], there, sold=[fast]), rules(max_nodes=9), NOW)) == []


def test_nodes_that_a_pool_keeps_for_any_job_are_in_one_domain() -> None:
    fast, dry = offering("a", "1", has_fabric=True), offering("a", "1")
    policy = rules(min_nodes=3, max_nodes=9)
    (name,) = {one.fabric for one in acts(plan(view(sold=[fast]), policy, NOW)) if isinstance(one, Launch)}
    assert name is not None
    assert {one.fabric for one in acts(plan(view(sold=[dry]), policy, NOW)) if isinstance(one, Launch)} == {
        None
    }
    # A job that needs InfiniBand has capacity there, and the nodes that it needs beyond join them.
    there = [node(f"n{at}", offering=fast.id, fabric=name) for at in range(3)]
    assert bought(plan(view([job(workers=3, needs_fabric=True)], there, sold=[fast]), policy, NOW)) == []
    more = acts(plan(view([job(workers=5, needs_fabric=True)], there, sold=[fast]), policy, NOW))
    assert [one.fabric for one in more if isinstance(one, Launch)] == [name] * 2
    # Those of another offering cannot be joined to them.
    spare = [replace(one, state=NodeState.TERMINATING) for one in there]
    others = [offering("a", "2", has_fabric=True)]
    assert name not in {
        one.fabric for one in acts(plan(view([], spare, sold=others), policy, NOW)) if isinstance(one, Launch)
    }


def test_a_domain_of_a_pool_ends_where_a_placement_group_ends() -> None:
    fast = offering("a", "1", has_fabric=True)

    def domains(there: list[NodeView], least: int) -> list[str | None]:
        launches = acts(plan(view([], there, sold=[fast]), rules(min_nodes=least, max_nodes=200), NOW))
        return [one.fabric for one in launches if isinstance(one, Launch)]

    (name,) = domains([], 1)
    there = [node(f"n{at:03}", offering=fast.id, fabric=name) for at in range(95)]
    assert domains(there, 110) == [name] * 5 + [f"{name}-2"] * 10


def test_nodes_that_leave_a_domain_are_in_it_until_they_are_gone() -> None:
    fast = offering("a", "1", has_fabric=True)
    leaving = {"state": NodeState.DRAINING, "deadline_at": NOW + 300}
    there = [node(f"n{at:03}", offering=fast.id, fabric="d", jobs={"j": 1}) for at in range(100)]
    there[:60] = [replace(one, **leaving) for one in there[:60]]
    bound = job(workers=(4, 300), needs_fabric=True, is_running=True, fabric="d")
    assert bought(plan(view([bound], there, sold=[fast]), rules(max_nodes=300), NOW)) == []
    there[:10] = []
    assert len(bought(plan(view([bound], there, sold=[fast]), rules(max_nodes=300), NOW))) == 10


def test_infiniband_follows_the_order_of_zones_and_leaves_a_zone_whose_nodes_do_not_join() -> None:
    zones = [offering("a", zone, has_fabric=True) for zone in ("1", "2")]
    asked = [job(workers=2, needs_fabric=True)]
    policy = rules(zones=["2", "1"])
    assert bought(plan(view(asked, sold=zones), policy, NOW)) == [zones[1].id] * 2
    failed = node("f", offering=zones[1].id, state=NodeState.FAILED, created_at=NOW - 900)
    assert set(bought(plan(view(asked, [failed], sold=zones), policy, NOW))) == {zones[0].id}


def test_an_urgent_job_with_infiniband_is_bought_what_the_cloud_does_not_take_back() -> None:
    both = [offering("a", "1", capacity, has_fabric=True) for capacity in CapacityType]
    urgent = job(workers=2, needs_fabric=True, deadline_at=NOW + 1000, work_left_s=900.0)
    chosen = bought(plan(view([urgent], sold=both), rules(capacity="prefer-spot"), NOW))
    assert chosen == [offering("a", "1", CapacityType.ON_DEMAND).id] * 2


def test_nodes_of_a_domain_that_start_are_no_part_of_a_group_that_needs_fewer() -> None:
    ready = [node(f"n{at}", fabric="d1") for at in range(2)]
    starts = node("s", fabric="d1", state=NodeState.LAUNCHED, is_member=False, created_at=NOW - 10.0)
    seen = view([job(workers=2, needs_fabric=True)], [*ready, starts], [replace(SPOT, has_fabric=True)])
    assert said_to(plan(seen, rules(), NOW)) == "there is capacity for it on nodes that are ready"


def test_pools_whose_names_begin_alike_have_domains_of_their_own() -> None:
    fast = offering("a", has_fabric=True)
    names = ["training-h100-production-east", "training-h100-production-west"]
    pool = {"sizes": ["a"], "min_nodes": 1, "max_nodes": 2}
    policies = Policies.model_validate({"pools": dict.fromkeys(names, pool)})
    launches = [one for one in plan(view(sold=[fast]), policies, NOW) if isinstance(one, Launch)]
    assert [one.pool for one in launches] == names
    assert len({one.fabric for one in launches}) == 2


def test_what_takes_over_from_a_stand_in_of_the_pool_is_in_a_domain_too() -> None:
    stand_in, spot = (
        offering("a", "1", capacity, has_fabric=True)
        for capacity in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    )
    policy = rules(capacity="prefer-spot", return_to_spot_s=60.0, min_nodes=1, max_nodes=3)
    there = [node("n", offering=stand_in.id, fabric="d", jobs={"j": 1}, created_at=NOW - 900)]
    actions = plan(view([job(workers=1, is_running=True)], there, sold=[stand_in, spot]), policy, NOW)
    (launch,) = [one for one in actions if isinstance(one, Launch)]
    assert launch.offering == spot.id
    assert launch.fabric is not None


def test_a_mixed_pool_that_is_sold_infiniband_as_spot_only_holds_up_no_other_job() -> None:
    never, other = job("a", 2, needs_fabric=True), job("b", 1)
    sold = [offering("a", "1", has_fabric=True), offering("a", "1", CapacityType.ON_DEMAND)]
    actions = plan(view([never, other], sold=sold, strict_order=True), rules(capacity="mixed"), NOW)
    assert {one.job_id for one in actions if isinstance(one, Launch)} == {"b"}


def test_the_name_of_a_domain_fits_into_a_label_of_ray() -> None:
    long = "p" * 63
    policies = Policies.model_validate({"pools": {long: {"sizes": ["a"]}}})
    asked = job(f"job_{'0' * 26}", 2, needs_fabric=True)
    launches = plan(view([asked], sold=[offering("a", has_fabric=True)]), policies, NOW)
    launches += plan(view(sold=[offering("a", has_fabric=True)]), _with_minimum(policies, long), NOW)
    assert {len(str(one.fabric)) <= 63 for one in launches if isinstance(one, Launch)} == {True}


def _with_minimum(policies: Policies, pool: str) -> Policies:
    return policies.model_copy(
        update={"pools": {pool: policies.pools[pool].model_copy(update={"min_nodes": 1})}}
    )


def test_a_job_for_which_there_is_no_infiniband_holds_up_no_other_job() -> None:
    never, other = job("a", 2, needs_fabric=True), job("b", 1)
    actions = plan(view([never, other], strict_order=True), rules(), NOW)
    assert [one.job_id for one in actions if isinstance(one, Launch)] == ["b"]
    assert "InfiniBand" in said_to(actions, "a")


@pytest.mark.parametrize(("slack_s", "is_exchanged"), [(900.0, False), (1300.0, True)])
def test_a_job_goes_back_to_spot_only_if_it_may_lose_a_node_there_and_still_be_in_time(
    slack_s: float, is_exchanged: bool
) -> None:
    policy = rules(capacity="prefer-spot", return_to_spot_s=60.0, max_nodes=9)
    there = [node(f"n{at}", offering=ON_DEMAND.id, jobs={"j": 1}) for at in range(2)]
    timely = job(workers=2, is_running=True, deadline_at=NOW + 1000 + slack_s, work_left_s=1000)
    assert bool(acts(plan(view([timely], there), policy, NOW))) is is_exchanged


def test_a_domain_is_not_exchanged_for_spot_node_by_node() -> None:
    stand_in, spot = (
        offering("a", "1", CapacityType.ON_DEMAND, has_fabric=True),
        offering("a", "1", has_fabric=True),
    )
    policy = rules(capacity="prefer-spot", return_to_spot_s=60.0, max_nodes=9)
    there = [node(f"n{at}", offering=stand_in.id, fabric="d", jobs={"j": 1}) for at in range(2)]
    for needs_fabric, is_exchanged in ((True, False), (False, True)):
        demand = job(workers=2, is_running=True, needs_fabric=needs_fabric)
        assert bool(acts(plan(view([demand], there, sold=[stand_in, spot]), policy, NOW))) is is_exchanged


def test_a_mixed_pool_begins_with_its_core() -> None:
    mixed = rules(capacity="mixed", on_demand_core=1)
    assert bought(plan(view([job(workers=(1, 3))]), mixed, NOW)) == [ON_DEMAND.id, SPOT.id, SPOT.id]
    refused = view([job(workers=3)], refusals=(Refusal(offering=ON_DEMAND.id, until=NOW + 60),))
    assert bought(plan(refused, mixed, NOW)) == []
    assert "its on-demand core comes before any spot node" in said_to(plan(refused, mixed, NOW))


def test_the_core_of_a_group_is_bought_once_its_spot_nodes_are_on_their_way() -> None:
    """Else each try for spot that the cloud refuses would buy a core that stands idle."""
    mixed, waits = rules(capacity="mixed", on_demand_core=1), job(workers=3)
    assert bought(plan(view([waits]), mixed, NOW)) == [SPOT.id, SPOT.id]
    coming = [node(f"n{at}", offering=SPOT.id, state=NodeState.LAUNCHED) for at in range(2)]
    assert bought(plan(view([waits], coming), mixed, NOW)) == [ON_DEMAND.id]
    refusals = [Refusal(offering=one.id, until=NOW + 60) for one in (SPOT, SPOT_2)]
    assert bought(plan(view([waits], coming[:1], refusals=refusals), mixed, NOW)) == []
    lost_one = job(workers=3, is_running=True)
    there = [node("n0", offering=SPOT.id, jobs={"j": 1})]
    assert bought(plan(view([lost_one], there), mixed, NOW)) == [ON_DEMAND.id, SPOT.id], "it works already"


def test_a_pool_keeps_its_minimum_and_its_warm_nodes() -> None:
    assert len(bought(plan(view(), rules(min_nodes=2), NOW))) == 2
    busy = [node(f"n{at}", jobs={"j": 1}) for at in range(2)]
    running = job(workers=2, is_running=True)
    assert len(bought(plan(view([running], busy), rules(warm_nodes=1), NOW))) == 1
    assert acts(plan(view([running], [*busy, node("warm", idle_since=0.0)]), rules(warm_nodes=1), NOW)) == []


def test_a_job_begins_on_a_node_that_is_ready_before_one_that_its_pool_has_just_ordered() -> None:
    actions = plan(view([job()], [node()]), rules(min_nodes=2), NOW)
    assert len(bought(actions)) == 1
    assert said_to(actions) == "there is capacity for it on nodes that are ready"


def test_what_no_job_uses_is_returned_after_its_time_at_its_pace() -> None:
    idle = [node(f"n{at}", idle_since=NOW - 300 + at) for at in range(3)]
    (end,) = acts(plan(view(nodes=idle), rules(drain_s=60), NOW))
    assert end == Drain(node_id="n0", deadline_at=NOW + 60, reason="it has been unused for 300 s")
    later = plan(view(nodes=idle), rules(shrink_per_minute=2), NOW + 60)
    assert [one.node_id for one in acts(later) if isinstance(one, Drain)] == ["n0", "n1"]
    assert any("at most 2 a minute are returned" in one.reason for one in later if isinstance(one, Wait))
    assert acts(plan(view(nodes=idle), rules(min_nodes=3), NOW + 60)) == []


def test_growth_has_a_pace() -> None:
    slowly = plan(view([job(workers=5)]), rules(grow_per_minute=2), NOW)
    why = "at most 2 a minute are launched"
    at = clock(60.0 * ceil((NOW + view().start_up_s) / 60.0))
    assert (
        said_to(slowly)
        == f"2 nodes for it are starting, ready at about {at}; nodes for it are launched later: {why}"
    )
    assert len(bought(slowly)) == 2

    assert "3 nodes more are launched later: at most 2 a minute are launched" in [
        one.reason for one in slowly if isinstance(one, Wait)
    ]
    after = done(view([job(workers=5)]), slowly, NOW)
    again = plan(after, rules(grow_per_minute=2), NOW + 5)
    assert (bought(again), said_to(again)) == ([], said_to(slowly))


@given(
    st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.5]),
    st.lists(st.integers(0, 900), max_size=8),
    st.integers(0, 900),
)
def test_when_a_pace_allows_more_is_the_first_moment_at_which_it_does(
    per_minute: float, moments: list[int], now: int
) -> None:
    at = next_at(per_minute, moments, now)
    if at is None:
        assert pace_left(per_minute, moments, now) > 0
    else:
        done_by_now = [one for one in moments if one <= now]
        assert pace_left(per_minute, done_by_now, at) > 0
        assert all(pace_left(per_minute, done_by_now, one) == 0 for one in (now, (now + at) / 2, at - 0.5))


def test_a_job_learns_when_the_last_of_its_nodes_is_ready_if_they_start_as_others_did() -> None:
    coming = {"state": NodeState.LAUNCHED, "is_member": False, "bought_for": "j"}
    nodes = [node("first", created_at=NOW - 150.0, **coming), node("last", created_at=NOW - 61.0, **coming)]
    for later in (0.0, 20.0):
        seen = replace(view([job(workers=2)], nodes), start_up_s=180.0)
        at = clock(60.0 * ceil((NOW + 119.0) / 60.0))
        assert (
            said_to(plan(seen, rules(), NOW + later)) == f"2 nodes for it are starting, ready at about {at}"
        )
    assert said_to(plan(seen, rules(), NOW + 130.0)) == "2 nodes for it are starting", "they are late"


def test_a_working_node_above_the_limit_is_drained_the_one_that_costs_least() -> None:
    cheap = job("cheap", is_running=True, saved_at=NOW - 10)
    dear = job("dear", is_running=True, saved_at=NOW - 500)
    nodes = [node("n1", jobs={"dear": 1}), node("n2", jobs={"cheap": 1})]
    (drain,) = acts(plan(view([cheap, dear], nodes), rules(max_nodes=1, drain_s=90), NOW))
    assert drain == Drain(
        node_id="n2",
        deadline_at=NOW + 90,
        reason="pool 'p' has 2 nodes, 1 is allowed by max_nodes of the policies",
    )


def test_each_pool_goes_back_to_its_own_limit_at_its_own_pace() -> None:
    pools = {
        name: {"sizes": ["a"], "max_nodes": limit, "shrink_per_minute": 2, "idle_s": 9999}
        for name, limit in (("full", 3), ("over", 1), ("further", 0))
    }
    there = [
        node(f"{pool} {at}", pool=pool, jobs={f"{pool} {at}": 1})
        for pool, limit in pools.items()
        for at in range(4)
    ][1:]
    running = [job(name, is_running=True) for one in there for name in one.jobs]
    plans = plan(view(running, there, strict_order=True), Policies.model_validate({"pools": pools}), NOW)
    drained = [one.node_id.split()[0] for one in acts(plans) if isinstance(one, Drain)]
    assert drained == ["over"] * 2 + ["further"] * 2, "the first of them has as many nodes as it may have"
    later = "more go later: at most 2 a minute are returned"
    reasons = [
        (one.pool, one.reason) for one in plans if isinstance(one, Wait) and one.reason.endswith(later)
    ]
    assert reasons == [("over", f"1 node {later}"), ("further", f"2 nodes {later}")]


def test_a_schedule_changes_the_limits_and_maintenance_keeps_everything_as_it_is() -> None:
    night = datetime(2026, 11, 22, 2, 30, tzinfo=UTC).timestamp()
    window = {"begins": "0 2 * * *", "lasts_s": 3600}
    scheduled = rules(schedules=[{"window": window, "min_nodes": 3}])
    assert len(bought(plan(view(), scheduled, night))) == 3
    assert bought(plan(view(), scheduled, night + 3600)) == []
    resting = plan(view(), rules(min_nodes=3, maintenance=[window]), night)
    assert [type(action) for action in resting] == [Wait]
    assert "before the maintenance ends at 2026-11-22 03:00:00 UTC" in resting[0].reason  # type: ignore[union-attr]
    waits = plan(view([job(workers=3)]), rules(maintenance=[window]), night)
    why = "nothing is launched before the maintenance ends at 2026-11-22 03:00:00 UTC"
    assert said_to(waits) == f"nodes for it are launched later: {why}"


@pytest.mark.parametrize(
    ("spent", "step", "nodes_left"),
    [
        (7.9, None, {"spot", "demand", "extra"}),
        (8.0, BudgetStep.STOP_GROWING, {"spot", "demand", "extra"}),
        (8.5, BudgetStep.SPOT_ONLY, {"spot", "extra"}),
        (9.0, BudgetStep.SHRINK, {"spot"}),
        (9.9, BudgetStep.PAUSE, set()),
    ],
)
def test_a_budget_degrades_in_steps_and_reports_them_to_owners(
    spent: float, step: BudgetStep | None, nodes_left: set[str]
) -> None:
    steps = {"stop-growing": 0.8, "spot-only": 0.85, "shrink": 0.9}
    policies = rules(budget={"usd_per_day": 10, "steps": steps})
    nodes = [
        node("spot", offering=SPOT.id, jobs={"j": 1}),
        node("demand", offering=ON_DEMAND.id, jobs={"j": 1}),
        node("extra", offering=SPOT_2.id, jobs={"j": 1}, created_at=NOW),
    ]
    running = job(workers=(1, 4), is_running=True)
    actions = plan(view([running], nodes, spent=Spending(today=spent)), policies, NOW)
    drained = {action.node_id for action in actions if isinstance(action, Drain)}
    assert {"spot", "demand", "extra"} - drained == nodes_left
    assert bought(actions) == ([SPOT.id] if step is None else [])
    notices = [action for action in actions if isinstance(action, Notice)]
    assert [notice.step for notice in notices] == ([] if step is None else [step])
    if step is not None:
        assert f"{spent:.2f} of 10.00 USD of the day are spent" in notices[0].message
        reported = replace(running, noticed_step=step)
        assert not any(
            isinstance(action, Notice)
            for action in plan(view([reported], nodes, spent=Spending(today=spent)), policies, NOW)
        )


@pytest.mark.parametrize(
    ("spent", "gone"),
    [
        (0.0, set()),
        (8.0, set()),
        (8.5, {"demand"}),
        (9.0, {"demand", "unused"}),
        (9.9, {"demand", "spot", "unused"}),
    ],
)
def test_in_maintenance_what_is_too_much_or_unused_stays_and_what_a_budget_step_demands_goes(
    spent: float, gone: set[str]
) -> None:
    steps = {"stop-growing": 0.8, "spot-only": 0.85, "shrink": 0.9}
    limits: dict[str, Any] = {"max_nodes": 2, "budget": {"usd_per_day": 10, "steps": steps}}
    window = {"begins": "0 13 * * *", "lasts_s": 3600}
    seen = view(
        [job(workers=(1, 2), is_running=True, saved_at=NOW - 60)],
        [
            node("demand", offering=ON_DEMAND.id, jobs={"j": 1}),
            node("spot", offering=SPOT.id, jobs={"j": 1}),
            node("unused", offering=SPOT_2.id, idle_since=NOW - 1000),
        ],
        spent=Spending(today=spent),
    )
    resting = plan(seen, rules(maintenance=[window], **limits), NOW)
    returned = [action for action in acts(resting) if isinstance(action, Drain | Terminate)]
    assert {action.node_id for action in returned} == gone
    assert all("the budget has reached" in action.reason for action in returned)
    assert bought(resting) == []
    if not gone:
        waits = [one for one in resting if isinstance(one, Wait) and one.job_id is None]
        waits = [one for one in waits if "the budget has reached" not in one.reason]
        assert [(one.pool, one.node_id) for one in waits] == [("p", None), (None, "unused")]
        assert all("until the maintenance ends at 1970-01-12 14:00:00 UTC" in one.reason for one in waits)
        (end,) = acts(plan(seen, rules(**limits), NOW))
        assert isinstance(end, Drain), "without maintenance it goes"
        assert end.node_id == "unused"


def said_of(actions: Plan) -> list[tuple[str | None, str]]:
    """What is said of pools and nodes."""
    reported = [one for one in actions if isinstance(one, Wait) and one.job_id is None]
    return [(one.pool or one.node_id, one.reason) for one in reported]


def test_a_pool_says_why_it_has_not_all_its_nodes_of_its_own() -> None:
    refused = Refusal(offering=SPOT.id, until=NOW + 60)
    why = "spot a in zone 1 is refused until 1970-01-12 13:47:40 UTC (`remora pools reopen p` asks at once)"
    warm = plan(view(sold=[SPOT, ON_DEMAND], refusals=[refused]), rules(warm_nodes=2), NOW)
    assert said_of(warm) == [("p", f"2 nodes of its own cannot be had: {why}")]
    least = view([], [node("n", jobs={"j": 1})], sold=[SPOT], refusals=[refused])
    (said,) = said_of(plan(least, rules(min_nodes=2), NOW))
    assert said[1].startswith(f"1 node of its own cannot be had: {why}; ")
    assert said_of(plan(view(sold=[SPOT]), rules(warm_nodes=2), NOW)) == []


def test_a_pool_says_what_the_budget_does_to_it_and_which_nodes_stay_all_the_same() -> None:
    budget = {"usd_per_day": 10, "steps": {"shrink": 0.9}}
    seen = view(
        [job(workers=(1, 2), is_running=True)],
        [node(f"n{at}", offering=SPOT.id, jobs={"j": 1}) for at in range(2)],
        [replace(SPOT, price_per_hour=0.01)],
        spent=Spending(today=9.0),
    )
    actions = plan(seen, rules(budget=budget), NOW)
    assert len(acts(actions)) == 1
    assert said_of(actions) == [
        (
            "p",
            "the budget has reached shrink (until 1970-01-02 00:00:00 UTC, when the next day begins, or until an"
            " operator raises the budget by `remora policy apply`): 9.00 of 10.00 USD of the day are spent; jobs go on"
            " with their smallest number of workers",
        ),
        (
            "p",
            "1 node more would go, and stays: without it jobs would have fewer workers than their smallest group",
        ),
    ]
    assert said_of(plan(replace(seen, spent=Spending(today=5.0)), rules(budget=budget), NOW)) == []
    free = replace(seen, offerings=(replace(SPOT, price_per_hour=0.0),))
    assert said_of(plan(free, rules(budget=budget), NOW)) == [], "what costs nothing is spared"


def test_a_stand_in_says_why_it_is_not_exchanged_yet() -> None:
    policies = rules(return_to_spot_s=900)
    since = [Refusal(offering=one.id, until=NOW - 600) for one in (SPOT, SPOT_2)]

    def said(refusals: Iterable[Refusal] = (), created_at: float = NOW - 1000.0, **demand: Any) -> str:
        there = [node("n", offering=ON_DEMAND.id, jobs={"j": 1}, created_at=created_at)]
        running = job(is_running=True, **demand)
        (reported,) = said_of(plan(view([running], there, refusals=refusals), policies, NOW))
        assert reported[0] == "n"
        return reported[1].removeprefix("it stands in for spot, and ")

    assert said(since) == "is exchanged from 1970-01-12 13:51:40 UTC on if spot is to be had"
    assert said(created_at=NOW - 600) == said(since), "it stands in for as long at least"
    assert (
        said(since, created_at=NOW - 100)
        == "is exchanged from 1970-01-12 14:00:00 UTC on if spot is to be had"
    )
    assert said(capacity=CapacityRule.ON_DEMAND) == "stays, as what runs on it may not move to spot"
    assert said() == "waits: nodes are exchanged one at a time"


@pytest.mark.parametrize("zones", [(), ("1",)])
def test_a_stand_in_says_that_no_spot_may_be_asked_for_where_all_is_closed_or_has_no_quota(
    zones: tuple[str, ...],
) -> None:
    stand_in, running = node("n", offering=ON_DEMAND.id, jobs={"j": 1}), job(is_running=True, zones=zones)
    stays = ("n", "it stands in for spot, and stays while no spot may be asked for")
    policies = rules(return_to_spot_s=900, join_timeout_s=60)
    spot = replace(SPOT, quota="lowPriorityCores", quota_units=4)
    full = view([running], [stand_in], [spot, ON_DEMAND], quota_left={"lowprioritycores": 3})
    assert said_of(plan(full, policies, NOW)) == [stays]
    gone = {"state": NodeState.FAILED, "leaving_since": NOW - 300.0, "provided": False, "is_member": False}
    failed = [node(f"f{at}", offering=SPOT.id, **gone) for at in range(3)]
    closed = view([running], [stand_in, *failed], [SPOT, ON_DEMAND])
    assert stays in said_of(plan(closed, policies, NOW))
    assert stays not in said_of(plan(view([running], [stand_in], [SPOT, ON_DEMAND]), policies, NOW))


def test_on_demand_that_stood_in_for_spot_is_exchanged_one_at_a_time() -> None:
    policies = rules(return_to_spot_s=900)
    stand_ins = [node(f"n{at}", offering=ON_DEMAND.id, jobs={"j": 1}) for at in range(2)]
    running = job(workers=2, is_running=True)
    since = (Refusal(offering=SPOT.id, until=NOW - 900), Refusal(offering=SPOT_2.id, until=NOW - 10))
    assert acts(plan(view([running], stand_ins, refusals=since), policies, NOW - 1)) == []
    (launch,) = acts(plan(view([running], stand_ins, refusals=since), policies, NOW))
    assert isinstance(launch, Launch)
    assert launch.offering == SPOT.id
    ready = view([running], [*stand_ins, node("new", offering=SPOT.id)], refusals=since)
    (drain,) = acts(plan(ready, policies, NOW))
    assert isinstance(drain, Drain)
    assert acts(plan(done(ready, (drain,), NOW), policies, NOW)) == []
    # Where the pool may have no more nodes, the stand-in goes first and its work is bought spot.
    full = acts(
        plan(view([running], stand_ins, refusals=since), rules(return_to_spot_s=900, max_nodes=2), NOW)
    )
    assert [type(action) for action in full] == [Drain, Launch]


@pytest.mark.parametrize("offering", [SPOT.id, ON_DEMAND.id])
@pytest.mark.parametrize(
    "state", [one for one in NodeState if one not in (NodeState.JOINED, NodeState.READY)]
)
def test_no_exchange_begins_while_a_node_starts_or_a_stand_in_leaves(state: NodeState, offering: str) -> None:
    has_ended = state in (NodeState.GONE, NodeState.FAILED)
    is_member = state is NodeState.DRAINING
    other = node(
        "other",
        state=state,
        created_at=NOW - 10.0,
        offering=offering,
        is_in_use=is_member,
        provided=not has_ended,
        is_running=not has_ended,
        is_member=is_member,
        leaving_since=NOW - 10.0 if has_ended else None,
        deadline_at=NOW + 60.0,
    )
    seen = view([job(is_running=True)], [node("n", offering=ON_DEMAND.id, jobs={"j": 1}), other])
    planned = plan(seen, rules(return_to_spot_s=900), NOW)
    exchanges = [one for one in acts(planned) if isinstance(one, Launch) and "spot is back" in one.reason]
    starts, leaves = (
        state in (NodeState.REQUESTED, NodeState.LAUNCHED),
        state in (NodeState.DRAINING, NodeState.TERMINATING),
    )
    assert bool(exchanges) is not (starts or (leaves and offering == ON_DEMAND.id))


def test_each_exchange_takes_one_node_of_what_the_cloud_allows() -> None:
    pools = {name: {"sizes": ["a"], "zones": ["1"], "return_to_spot_s": 900} for name in ("p", "q")}
    stand_ins = [node(name, pool=name, offering=ON_DEMAND.id, jobs={name: 1}) for name in pools]
    running = [job(name, is_running=True) for name in pools]
    spot = replace(SPOT, quota="lowPriorityCores", quota_units=4)
    seen = view(running, stand_ins, [spot, ON_DEMAND], quota_left={"lowprioritycores": 8})
    launches = acts(plan(seen, Policies.model_validate({"pools": pools}), NOW))
    assert [one.pool for one in launches if isinstance(one, Launch)] == ["p", "q"]


def test_a_pool_that_cannot_exchange_a_node_yet_keeps_no_other_pool_from_it() -> None:
    pools = {name: {"sizes": ["a"], "zones": ["1"], "return_to_spot_s": 900} for name in ("p", "q")}
    there = [node(name, pool=name, offering=ON_DEMAND.id, jobs={name: 1}) for name in pools]
    spare = node("spare", pool="q", offering=SPOT.id)
    seen = view([job(name, is_running=True) for name in pools], [*there, spare], [SPOT, ON_DEMAND])
    planned = acts(plan(seen, Policies.model_validate({"pools": pools}), NOW))
    assert [one.node_id for one in planned if isinstance(one, Drain)] == ["q"]
    assert [one.pool for one in planned if isinstance(one, Launch)] == ["p"]


def test_no_stand_in_goes_for_spot_that_the_quota_of_the_cloud_does_not_permit() -> None:
    sold = [replace(SPOT, quota="lowPriorityCores", quota_units=4), ON_DEMAND]
    running, stand_in = job(is_running=True), node("n", offering=ON_DEMAND.id, jobs={"j": 1})
    for most in (1, 2):
        policies = rules(return_to_spot_s=900, max_nodes=most)
        full = view([running], [stand_in], sold, quota_left={"lowprioritycores": 3})
        assert acts(plan(full, policies, NOW)) == []
        assert acts(plan(replace(full, quota_left={"lowprioritycores": 4}), policies, NOW)) != []


def test_a_stand_in_is_exchanged_for_spot_where_its_job_may_be_and_stays_where_there_is_none() -> None:
    policies = rules(return_to_spot_s=900)
    stand_ins = [node("n", offering=ON_DEMAND.id, jobs={"j": 1})]
    running = job(is_running=True, zones=("2",))
    (launch,) = acts(plan(view([running], stand_ins), policies, NOW))
    assert isinstance(launch, Launch)
    assert launch.offering == SPOT_2.id, "zone 1 comes first, and the job is not in it"
    elsewhere = node("new", offering=SPOT.id)
    (launch,) = acts(plan(view([running], [*stand_ins, elsewhere]), policies, NOW))
    assert isinstance(launch, Launch)
    assert launch.offering == SPOT_2.id, "what stands free in zone 1 is of no use to the job"
    spot_1 = view([running], stand_ins, sold=[SPOT, ON_DEMAND])
    for most in (1, 2):
        assert acts(plan(spot_1, rules(return_to_spot_s=900, max_nodes=most), NOW)) == []


def test_a_rule_of_the_site_refuses_launches_and_one_that_fails_is_left_out() -> None:
    def quiet(_: ClusterView, launch: Launch) -> str | None:
        return "not on Sundays" if launch.offering == SPOT.id else None

    def broken(_: ClusterView, __: Launch) -> str | None:
        raise ZeroDivisionError

    asked: list[tuple[str, Rule]] = [("broken", broken), ("quiet", quiet)]
    actions = plan(view([job()]), rules(), NOW, asked)
    assert acts(actions) == []
    assert [one.reason for one in actions if isinstance(one, Wait) and one.pool] == [
        "the rule quiet lets no node of pool p be launched: not on Sundays",
    ]
    refusal = "the rule quiet lets no node of pool p be launched: not on Sundays"
    assert said_to(actions) == f"nodes for it are launched later: {refusal}"


LOST = {"provided": False, "is_running": False, "is_member": False}
#: Asked for often and long enough.
IN_VAIN = {"unanswered_since": NOW - CREATE_TIMEOUT_S - 0.1, "unanswered": LEAST_ASKS}


@pytest.mark.parametrize(
    ("changes", "is_failure"),
    [
        ({"is_member": False}, False),
        ({"is_running": False}, False),
        ({"provided": False, "is_running": False}, False),
        ({"state": NodeState.JOINED, "is_member": False}, False),
        ({"state": NodeState.DRAINING, "deadline_at": NOW, "idle_since": None}, False),
        ({"state": NodeState.DRAINING, "deadline_at": NOW + 60, "idle_since": NOW}, False),
        ({"state": NodeState.TERMINATING}, False),
        ({"state": NodeState.GONE}, False),
        ({"state": NodeState.LAUNCHED, "is_running": False, "is_member": False}, True),
        ({"state": NodeState.LAUNCHED, "is_member": False, "created_at": NOW - 900.1}, True),
        ({"state": NodeState.REQUESTED, **LOST, **IN_VAIN}, True),
    ],
)
def test_what_is_of_no_use_goes(changes: dict[str, Any], is_failure: bool) -> None:
    there = [node("a"), node("b", **changes)]
    ends = [one for one in acts(plan(view(nodes=there), rules(), NOW)) if isinstance(one, Terminate)]
    assert [(end.node_id, end.is_failure) for end in ends] == [("b", is_failure)]


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        (
            "spot",
            "its machine is gone: the cloud took it back (evicted it), or it was deleted outside Remora",
        ),
        ("on-demand", "its machine is gone: it was deleted outside Remora, or the cloud lost it"),
        ("", "its machine is gone"),
    ],
)
def test_a_node_whose_machine_vanished_is_said_to_have_been_taken_back(capacity: str, said: str) -> None:
    (end,) = acts(plan(view(nodes=[node("b", **LOST, offering=f"a/1/{capacity}")]), rules(), NOW))
    assert isinstance(end, Terminate)
    assert end.reason == said


@pytest.mark.parametrize(("paused_until", "ends"), [(NOW + 30, 0), (NOW - 9, 0), (NOW - 11, 1)])
def test_a_node_that_the_cloud_is_not_to_be_asked_for_yet_is_not_given_up(
    paused_until: float, ends: int
) -> None:
    requested = node("b", state=NodeState.REQUESTED, **LOST, unanswered_since=NOW - 3600, unanswered=9)
    actions = plan(view(nodes=[requested], paused_until=paused_until), rules(), NOW)
    assert [type(one) for one in acts(actions)] == [Terminate] * ends


@pytest.mark.parametrize(
    "asked",
    [
        {"unanswered_since": None, "unanswered": 0},
        {"unanswered_since": NOW - 3600.0, "unanswered": LEAST_ASKS - 1},
        {"unanswered_since": NOW - CREATE_TIMEOUT_S, "unanswered": 40},
    ],
)
def test_a_node_that_was_asked_for_too_seldom_or_too_shortly_is_not_given_up(asked: dict[str, Any]) -> None:
    requested = node("b", state=NodeState.REQUESTED, **LOST, created_at=NOW - 3600, **asked)
    assert acts(plan(view(nodes=[requested]), rules(), NOW)) == []


def test_a_machine_that_never_joins_gains_no_time_by_a_pause_of_the_cloud() -> None:
    starting = node("b", state=NodeState.LAUNCHED, is_member=False, created_at=NOW - 3600)
    (end,) = acts(plan(view(nodes=[starting], paused_until=NOW + 30), rules(), NOW))
    assert isinstance(end, Terminate)
    assert end.is_failure


def test_a_draining_node_stays_until_its_deadline_while_its_replacement_starts() -> None:
    nodes = [node("a"), node("b", state=NodeState.DRAINING, deadline_at=NOW + 20, jobs={"j": 1})]
    (launch,) = acts(plan(view(nodes=nodes), rules(min_nodes=2, max_nodes=2), NOW))
    assert isinstance(launch, Launch)


def failed(name: str, age_s: float) -> NodeView:
    return node(name, state=NodeState.FAILED, created_at=NOW - age_s, **LOST)


def test_failed_starts_slow_a_pool_down_and_one_success_ends_that() -> None:
    def launches(*nodes: NodeView) -> int:
        return len(bought(plan(view(nodes=nodes), rules(min_nodes=2), NOW)))

    three = [failed("x", 9.0), failed("y", 5.0), failed("z", 3.9)]
    assert launches(*three) == 0
    assert launches(*three[:2], failed("z", 4.0)) == 1, "one try at a time"
    new = node("t", state=NodeState.LAUNCHED, is_member=False, created_at=NOW)
    assert launches(*three, new) == 0, "that try is on its way"
    assert launches(*three, node("a", created_at=NOW - 1)) == 1, "one joined since: full speed"


@pytest.mark.parametrize(
    ("today", "month", "period", "until"),
    [
        (9.0, 9.0, "day", "2026-12-11 00:00:00 UTC"),
        (1.0, 99.0, "month", "2027-01-01 00:00:00 UTC"),
        (11.0, 99.0, "month", "2027-01-01 00:00:00 UTC"),
        (11.0, 20.0, "day", "2026-12-11 00:00:00 UTC"),
    ],
)
def test_a_step_of_the_budget_says_when_it_ends(today: float, month: float, period: str, until: str) -> None:
    at = datetime(2026, 12, 10, 23, 30, tzinfo=UTC).timestamp()
    budget = {"usd_per_day": 10, "usd_per_month": 90}
    spent = Spending(today=today, this_month=month)
    money = money_of(replace(view([], spent=spent), now=at), rules(budget=budget), {})
    assert (money.period, money.ends[6 : 6 + len(until)]) == (period, until)

"""What Ray programs ask for and hold, as demand: one situation after the other, and drawn ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.documents import read_stored
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import Placement
from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling.actions import Launch, Plan, Wait
from cluster.scheduling.planner import plan
from cluster.scheduling.pool_sizes import complete_pools
from cluster.scheduling.queue_order import in_order
from cluster.scheduling.ray_programs import (
    SETTLED_S,
    Bundle,
    Gang,
    Kind,
    LabelTerm,
    Programs,
    RayDemand,
    Sighting,
    Strategy,
    programs_of,
    request_of,
    requests_of,
    settled,
    sighted,
)
from cluster.scheduling.shares import shares_of
from cluster.scheduling.view import ClusterView, JobDemand, NodeView, Spending
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState

NOW = 1_000_000.0
CPU = Bundle({"CPU": 1.0})
FOUR = Bundle({"CPU": 4.0})
SOLD = (
    Offering(
        size="small",
        zone="1",
        capacity=CapacityType.SPOT,
        resources={"CPU": 4.0},
        price_per_hour=1.0,
        labels={"kind": "cpu"},
    ),
    Offering(
        size="big",
        zone="2",
        capacity=CapacityType.ON_DEMAND,
        resources={"CPU": 8.0, "GPU": 2.0},
        price_per_hour=9.0,
    ),
)
DOCUMENT = """
pools:
  cpu: {sizes: [small], zones: [1], capacity: spot, max_nodes: 4, idle_s: 10}
  gpu: {sizes: [big], zones: [2], capacity: on-demand, max_nodes: 2, idle_s: 10}
projects:
  ray: {gpus: 3, usd_per_day: 5}
ray_programs: {}
"""
POLICIES = read_stored(DOCUMENT)


def ready(name: str = "n", **changes: Any) -> NodeView:
    fields: dict[str, Any] = {
        "id": name,
        "pool": "cpu",
        "state": NodeState.READY,
        "created_at": NOW - 1000.0,
        "ready_at": NOW - 900.0,
        "resources": {"CPU": 4.0},
        "offering": SOLD[0].id,
        "idle_since": NOW,
        **changes,
    }
    return NodeView(**fields)


def programs(seen: RayDemand, nodes: tuple[NodeView, ...] = (), policies: Policies = POLICIES) -> Programs:
    """What the programs have asked for long enough."""
    pools = complete_pools(policies, SOLD, lambda pool: pool.max_nodes)
    return programs_of(policies, requests_of(seen), seen, nodes, pools, SOLD)


def planned(
    seen: RayDemand,
    nodes: tuple[NodeView, ...] = (),
    policies: Policies = POLICIES,
    jobs: tuple[JobDemand, ...] = (),
    **view: Any,
) -> Plan:
    """The plan for what the programs ask for and hold, beside jobs."""
    found = programs(seen, nodes, policies)
    shown = ClusterView(
        now=NOW,
        jobs=(*jobs, *found.waiting, *found.held.values()),
        nodes=tuple(found.on(nodes)),
        offerings=SOLD,
        strict_order=True,
        **view,
    )
    return plan(shown, policies, NOW)


def launched(actions: Plan) -> list[str]:
    return [one.pool for one in actions if isinstance(one, Launch)]


def reasons(actions: Plan) -> Mapping[str, str]:
    return {one.job_id: one.reason for one in actions if isinstance(one, Wait) and one.job_id}


def gang(strategy: Strategy, *bundles: Bundle) -> RayDemand:
    return RayDemand(gangs=(Gang("ab" * 18, strategy, bundles),))


@pytest.mark.parametrize(
    ("strategy", "bundles", "nodes"),
    [
        (Strategy.STRICT_SPREAD, (CPU, CPU), 2),
        (Strategy.STRICT_SPREAD, (CPU, FOUR, CPU), 3),
        (Strategy.STRICT_PACK, (CPU, CPU, CPU), 1),
        (Strategy.PACK, (CPU, CPU, CPU), 1),
        (Strategy.PACK, (FOUR, CPU), 2),
        (Strategy.SPREAD, (FOUR, FOUR), 2),
    ],
)
def test_a_placement_group_gets_as_many_nodes_as_its_strategy_needs(
    strategy: Strategy, bundles: tuple[Bundle, ...], nodes: int
) -> None:
    assert launched(planned(gang(strategy, *bundles))) == ["cpu"] * nodes


def test_bundles_of_a_spread_group_do_not_share_the_node_on_which_one_of_them_is_placed() -> None:
    """One bundle has a node, the other lost its own: there is capacity beside the first, and it may not go there."""
    one = ready()
    seen = RayDemand(
        gangs=(Gang("ab" * 18, Strategy.STRICT_SPREAD, (CPU,)),),
        held={"n": {"CPU": 1.0}},
        gangs_on={"n": frozenset({"ab" * 18})},
    )
    assert launched(planned(seen, (one,))) == ["cpu"]
    assert launched(planned(RayDemand(tasks=((CPU, 1),), held=seen.held), (one,))) == []


def test_tasks_are_placed_beside_what_programs_and_jobs_hold() -> None:
    job = JobDemand(
        id="job_a", sizes=WorkerSizes(1, 1), worker_resources={"CPU": 2.0}, is_running=True, created_at=NOW
    )
    node = ready(jobs={"job_a": 1}, idle_since=None)
    held = {"n": {"CPU": 1.0}}
    assert launched(planned(RayDemand(tasks=((CPU, 1),), held=held), (node,), jobs=(job,))) == []
    assert launched(planned(RayDemand(tasks=((CPU, 2),), held=held), (node,), jobs=(job,))) == ["cpu"]


def test_a_node_in_use_by_a_program_stays_and_goes_once_it_is_unused() -> None:
    unused = ready(idle_since=NOW - 60.0)
    assert [one.node_id for one in planned(RayDemand(), (unused,)) if not isinstance(one, Wait)] == ["n"]  # type: ignore[union-attr]
    for held in ({"CPU": 1.0}, {}):
        assert planned(RayDemand(held={"n": held}), (unused,)) == ()


def test_what_no_pool_can_hold_is_refused_with_the_reason_and_nothing_is_bought_for_its_group() -> None:
    cases = [
        (RayDemand(tasks=((Bundle({"TPU": 1.0}), 1),)), "no node of the pools (cpu, gpu) has 1 TPU"),
        (
            gang(Strategy.STRICT_SPREAD, *[Bundle({"GPU": 1.0})] * 3),
            "it needs 3 times 1 GPU, at most 1 on a node, and the complete pools (cpu, gpu) have capacity for 2",
        ),
        (
            RayDemand(tasks=((Bundle({"CPU": 1.0}, ((LabelTerm("kind", ("tpu",)),),)), 1),)),
            "no pool of cpu, gpu has only nodes with label kind in (tpu)",
        ),
        (
            gang(Strategy.PACK, *[Bundle({"GPU": 1.0})] * 4),
            "its smallest worker group needs 4 GPUs, and project 'ray' may use 3 at a time",
        ),
    ]
    for seen, why in cases:
        found = programs(seen)
        assert (list(found.refused.values()), found.waiting) == ([why], ())
    both = programs(gang(Strategy.PACK, CPU, Bundle({"TPU": 1.0})))
    assert both.waiting == ()
    assert len(both.refused) == 2


def test_labels_choose_pools_zones_and_capacity() -> None:
    def place(*terms: LabelTerm) -> Placement:
        (found,) = programs(RayDemand(tasks=((Bundle({"CPU": 1.0}, (terms,)), 1),))).waiting
        return found.placement

    assert place().pools == ("cpu", "gpu")
    assert place(LabelTerm("remora-pool", ("gpu",))).pools == ("gpu",)
    assert place(LabelTerm("remora-pool", ("gpu",), is_in=False)).pools == ("cpu",)
    assert place(LabelTerm("kind", ("cpu",))).pools == ("cpu",)
    assert place(LabelTerm("remora-zone", ("2",))).zones == ("2",)
    assert place(LabelTerm("remora-capacity", ("spot",), is_in=False)).capacity is CapacityRule.ON_DEMAND


def test_only_its_pools_are_bought_in_and_its_budget_ends_that_with_a_reason() -> None:
    only = read_stored(DOCUMENT.replace("ray_programs: {}", "ray_programs: {pools: [gpu]}"))
    seen = RayDemand(tasks=((CPU, 1),))
    assert launched(planned(seen, policies=only)) == ["gpu"]
    actions = planned(seen, spent_by_project={"ray": Spending(today=5.5, this_month=5.5)})
    assert launched(actions) == []
    (why,) = reasons(actions).values()
    assert why.startswith("project 'ray' has spent 5.50 of 5.00 USD of the day")


def test_gpus_that_programs_hold_count_for_the_quota_of_their_project() -> None:
    two = ready("g", pool="gpu", resources={"CPU": 8.0, "GPU": 2.0}, offering=SOLD[1].id, idle_since=None)
    seen = RayDemand(tasks=((Bundle({"GPU": 1.0}), 2),), held={"g": {"GPU": 2.0}})
    actions = planned(seen, (two,))
    assert launched(actions) == ["gpu"]
    assert list(reasons(actions).values()) == ["project 'ray' may use 3 GPUs at a time"]


def test_a_minimum_counts_what_programs_have_and_wait_for() -> None:
    minimum = ((CPU, 6),)
    assert launched(planned(RayDemand(minimum=minimum))) == ["cpu", "cpu"]
    assert launched(planned(RayDemand(minimum=minimum, tasks=((FOUR, 1),)))) == ["cpu", "cpu"]
    held = RayDemand(minimum=minimum, held={"n": {"CPU": 4.0}})
    assert launched(planned(held, (ready(),))) == ["cpu"]
    # An unused node is kept for it.
    assert launched(planned(RayDemand(minimum=((CPU, 4),)), (ready(idle_since=NOW - 60),))) == []


def test_without_the_key_in_the_policies_nothing_is_asked_for() -> None:
    off = read_stored(DOCUMENT.replace("ray_programs: {}", ""))
    assert programs(RayDemand(tasks=((CPU, 9),)), policies=off) == Programs()


def test_a_request_counts_once_it_has_lasted_and_with_the_fewest_of_the_last_seconds() -> None:
    def looked(
        before: Mapping[str, Sighting], count: int, at: float
    ) -> tuple[dict[str, Sighting], list[int]]:
        requests = requests_of(RayDemand(tasks=((CPU, count),)) if count else RayDemand())
        seen = sighted(before, requests, NOW + at)
        return seen, [one.count for one in settled(requests, seen, NOW + at)]

    seen, counts = looked({}, 3, 0.0)
    assert counts == []
    seen, counts = looked(seen, 3, SETTLED_S)
    assert counts == [3]
    # Two of them have just begun; one more is asked for.
    seen, counts = looked(seen, 1, SETTLED_S + 0.5)
    assert counts == [1]
    seen, counts = looked(seen, 2, SETTLED_S + 1.0)
    assert counts == [1]
    seen, counts = looked(seen, 2, 3 * SETTLED_S)
    assert counts == [2]
    seen, counts = looked(seen, 0, 3 * SETTLED_S + 0.5)
    assert seen == {}


class Looked(tuple[Bundle, ...]):
    """Bundles of a group that count how many of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Bundle]:
        for one in super().__iter__():
            Looked.looks += 1
            yield one


@pytest.mark.parametrize("minimum", [(), ((CPU, 6),)])
def test_a_look_at_very_many_groups_is_bounded_and_the_small_ones_come_first(
    minimum: tuple[tuple[Bundle, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped: list[object] = []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda what: dumped.append(what) or dumps(what))
    Looked.looks = 0
    alike = Looked([CPU] * 10_000)
    large = [Gang(f"{at:036x}", Strategy.PACK, alike) for at in range(1000)]
    small = Gang("f" * 36, Strategy.PACK, (FOUR, CPU))
    found = requests_of(RayDemand(gangs=(*large, small), minimum=minimum))
    assert {one.gang for one in found if one.gang} == {small.id}
    assert Looked.looks <= (2000 if minimum else 0)
    assert [one.gang for one in requests_of(RayDemand(gangs=tuple(large)))] == [large[0].id]
    assert Looked.looks <= 10_000 + (2000 if minimum else 0)
    assert len(dumped) < 20, "text is made of shapes, not of bundles"


def test_very_many_shapes_of_tasks_are_not_all_looked_at() -> None:
    shapes = tuple((Bundle({"CPU": 1.0 + at}), 1) for at in range(3000))
    assert len(requests_of(RayDemand(tasks=shapes))) == 1000


def test_of_a_placement_group_all_shapes_are_decided_about_or_none() -> None:
    def many(group: str, count: int) -> Gang:
        return Gang(group * 36, Strategy.PACK, tuple(Bundle({"CPU": 1.0 + at}) for at in range(count)))

    requests = requests_of(RayDemand(gangs=(many("a", 150), many("b", 120), many("c", 30), many("d", 250))))
    seen = sighted({}, requests, NOW - SETTLED_S)
    counted = Counter(one.gang[0] for one in settled(requests, seen, NOW))
    assert counted in ({"a": 150, "c": 30}, {"b": 120, "c": 30})


amounts = st.sampled_from([1.0, 2.0, 4.0, 9.0])
bundles = st.builds(
    lambda name, amount: Bundle({name: amount}), st.sampled_from(["CPU", "GPU", "TPU"]), amounts
)
demands = st.builds(
    lambda tasks, gangs, minimum: RayDemand(
        tasks=tuple(tasks),
        gangs=tuple(Gang(f"{at:036x}", strategy, tuple(some)) for at, (strategy, some) in enumerate(gangs)),
        minimum=tuple(minimum),
    ),
    st.lists(st.tuples(bundles, st.integers(1, 5)), max_size=3),
    st.lists(
        st.tuples(st.sampled_from(list(Strategy)), st.lists(bundles, min_size=1, max_size=4)), max_size=3
    ),
    st.lists(st.tuples(bundles, st.integers(1, 5)), max_size=2),
)


@given(demands)
def test_every_request_waits_or_is_refused_and_what_is_bought_is_not_bought_again(seen: RayDemand) -> None:
    found = programs(seen)
    waiting = {one.id for one in found.waiting}
    assert waiting | found.refused.keys() == {one.id for one in found.requests}
    assert waiting.isdisjoint(found.refused)
    for one in found.requests:
        if one.kind is Kind.PLACEMENT_GROUP and one.id in found.refused:
            assert not any(other.gang == one.gang and other.id in waiting for other in found.requests)
    launches = [one for one in planned(seen) if isinstance(one, Launch)]
    nodes = tuple(
        ready(
            f"n{at}",
            pool=one.pool,
            offering=one.offering,
            resources=dict(one.resources),
            bought_for=one.job_id,
        )
        for at, one in enumerate(launches)
    )
    assert not launched(planned(seen, nodes)), "nothing is bought twice"
    assert {one.job_id for one in launches} <= waiting


def launched_by_share(ray: int, team: int, tasks: int, jobs: int) -> dict[str, int]:
    """Nodes that are bought for each project where four may be, as the queue and the planner do it."""
    pools, _, _ = DOCUMENT.partition("  gpu:")
    projects = f"projects:\n  ray: {{share: {ray}}}\n  team: {{share: {team}}}\n"
    shares = read_stored(f"{pools}{projects}ray_programs: {{}}\n")
    found = programs(RayDemand(tasks=((FOUR, tasks),)), (), shares)
    waiting = [
        JobDemand(
            id=f"job_{number}",
            project="team",
            sizes=WorkerSizes(1, 1),
            worker_resources={"CPU": 4.0},
            created_at=NOW - 60.0 + number,
        )
        for number in range(jobs)
    ]
    entitled = shares_of(shares, complete_pools(shares, SOLD, lambda pool: pool.max_nodes), [])
    assert entitled is not None
    order = entitled.order(in_order([*waiting, *found.waiting]))
    demands = tuple(replace(one, place=place) for place, one in enumerate(order))
    actions = plan(
        ClusterView(now=NOW, jobs=demands, nodes=(), offerings=SOLD, strict_order=True), shares, NOW
    )
    whose = {one.id: one.project for one in demands}
    return dict(Counter(whose[str(one.job_id)] for one in actions if isinstance(one, Launch)))


@pytest.mark.parametrize(
    ("ray", "team", "tasks", "jobs", "bought"),
    [
        (1, 3, 20, 20, {"ray": 1, "team": 3}),
        (3, 1, 20, 20, {"ray": 3, "team": 1}),
        (1, 1, 20, 20, {"ray": 2, "team": 2}),
        (3, 1, 1, 20, {"ray": 1, "team": 3}),
        (1, 3, 20, 1, {"ray": 3, "team": 1}),
        (1, 3, 20, 0, {"ray": 4}),
    ],
)
def test_tasks_of_one_shape_are_ordered_by_the_share_of_their_project(
    ray: int, team: int, tasks: int, jobs: int, bought: dict[str, int]
) -> None:
    # What the other project does not use is borrowed.
    assert launched_by_share(ray, team, tasks, jobs) == bought


def test_parts_are_of_one_request_and_few() -> None:
    shared = read_stored(DOCUMENT.replace("gpus: 3", "gpus: 3, share: 2"))
    found = programs(RayDemand(tasks=((CPU, 100),)), (), shared)
    assert [(one.min_workers, one.max_workers) for one in found.waiting] == [(1, 1)] * 31 + [(1, 69)]
    assert len({one.id for one in found.waiting}) == 32
    (request,) = found.requests
    assert {request_of(one.id) for one in found.waiting} == {request.id}
    assert all(len(one.id) <= 40 for one in found.waiting)
    # Many shapes together are not more than can be decided about, and a placement group is whole.
    shapes = tuple((Bundle({"CPU": 1.0 + number / 1000}), 9) for number in range(100))
    assert len(programs(RayDemand(tasks=shapes), (), shared).waiting) <= 200
    whole = programs(gang(Strategy.PACK, CPU, CPU), (), shared)
    assert [(one.min_workers, one.max_workers) for one in whole.waiting] == [(2, 2)]
    # Without shares nothing has to be distinguished.
    assert len(programs(RayDemand(tasks=((CPU, 100),))).waiting) == 1


def test_a_node_of_a_part_that_vanishes_is_for_another_part_of_the_same_request() -> None:
    shared = read_stored(DOCUMENT.replace("gpus: 3", "gpus: 3, share: 2"))
    before = programs(RayDemand(tasks=((CPU, 3), (FOUR, 2))), (), shared)
    bought = [ready(f"n{at}", bought_for=one.id) for at, one in enumerate(before.waiting)]
    assert before.kept_in_use(bought) == bought
    # The node of the first part has got its task, and one task of the other shape is over.
    first = before.waiting[0].id
    after = programs(RayDemand(tasks=((CPU, 2), (FOUR, 1)), held={"n0": {"CPU": 1.0}}), bought, shared)
    parts = [one.id for one in after.waiting]
    owners = [one.bought_for for one in after.kept_in_use(bought)]
    assert set(owners) == set(parts)
    assert [request_of(str(one)) for one in owners] == [request_of(str(one.bought_for)) for one in bought]
    assert owners[:3] == [first, parts[1], first], "the part that had no node left has one"
    # What is not asked for any more is no one's, as before.
    gone = programs(RayDemand(tasks=((FOUR, 1),)), bought, shared).kept_in_use(bought)
    assert [one.bought_for for one in gone[:3]] == [one.bought_for for one in bought[:3]]


@pytest.mark.parametrize("held", [{"CPU": 1.0}, {}], ids=["counted", "without-resources"])
def test_what_programs_have_on_a_node_that_leaves_keeps_it_in_use_and_is_not_replaced(
    held: dict[str, float],
) -> None:
    leaving = ready(state=NodeState.DRAINING, deadline_at=NOW + 40.0, idle_since=None)
    found = programs(RayDemand(held={"n": held}), (leaving,))
    assert not found.held
    assert found.leaving == {"n"}
    assert [one.is_in_use for one in found.on((leaving, ready("m")))] == [True, False]
    assert not planned(RayDemand(held={"n": held}), (leaving,))

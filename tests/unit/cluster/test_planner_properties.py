"""What holds for every plan, whatever the cluster, the jobs and the policies are."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType
from cluster.policies.placement import Placement
from cluster.policies.policies import BudgetPolicy, CapacityRule, Policies, Schedule
from cluster.scheduling.actions import Drain, Launch, Plan, Terminate, Wait
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.domains import Domains
from cluster.scheduling.drains import Losses, cheapest, workers_on
from cluster.scheduling.free_capacity import Space
from cluster.scheduling.health import end_of
from cluster.scheduling.limits import limits_of
from cluster.scheduling.money import LOOK_S, leaving_time_s
from cluster.scheduling.packing import Packed, Packing
from cluster.scheduling.planner import plan
from cluster.scheduling.purchases import Purchases
from cluster.scheduling.view import ENDED, ClusterView, Spending
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import BY_ID, LATER, NOW, OPEN, done, job, node, policies, views

always = settings(max_examples=40, deadline=None)
#: For what few worlds come near to.
often = settings(max_examples=150, deadline=None)


def of(actions: Plan, kind: type) -> list:
    return [action for action in actions if isinstance(action, kind)]


def changes(view: ClusterView, actions: Plan) -> list:
    """What the actions begin; a node that is ending says so until it is gone, which changes nothing."""
    ending = {one.id for one in view.nodes if one.state is NodeState.TERMINATING or one.state in ENDED}
    return [
        action
        for action in actions
        if isinstance(action, Launch | Drain)
        or (isinstance(action, Terminate) and action.node_id not in ending)
    ]


@always
@given(views(), policies)
def test_it_settles(view: ClusterView, rules: Policies) -> None:
    """What was planned and done soon leaves nothing to do at the same time, but for what pace or failures held up.

    Jobs whose nodes were held up may take others that are there, which a pool then has to buy again.  A machine that
    was bought because it was all that is sold may have capacity for more than was requested, so that another one goes;
    and a job may find a warm node in a pool that it prefers.
    """
    actions = plan(view, rules, NOW)
    after = done(view, actions, NOW)
    held_up = any(isinstance(action, Wait) and "launched later" in action.reason for action in actions)
    for _ in range(10 if held_up else 2):
        after = done(after, plan(after, rules, NOW), NOW)
    assert changes(after, plan(after, rules, NOW)) == []


def stands_in(wait: Wait) -> bool:
    """It says why an on-demand node is not exchanged for spot yet."""
    return wait.reason.startswith("it stands in for spot")


@always
@given(views(), policies)
def test_a_plan_that_leaves_out_why_jobs_wait_is_the_same_otherwise(
    view: ClusterView, rules: Policies
) -> None:
    reported = plan(view, rules, NOW)
    without_waits = tuple(
        one for one in reported if not isinstance(one, Wait) or not (one.job_id or stands_in(one))
    )
    assert plan(view, rules, NOW, explains_waits=False) == without_waits


@always
@given(views(), policies)
def test_a_pool_never_gets_more_nodes_than_its_maximum(view: ClusterView, rules: Policies) -> None:
    after = done(view, plan(view, rules, NOW), NOW)
    for name, policy in rules.pools.items():
        before = sum(1 for one in view.nodes if one.pool == name and one.is_usable)
        have = sum(1 for one in after.nodes if one.pool == name and one.is_usable)
        assert have <= max(before, limits_of(policy, NOW).max_nodes)


@always
@given(views(), policies, st.integers(2, 8))
def test_a_launch_never_passes_the_maximum_of_a_schedule_in_force(
    view: ClusterView, rules: Policies, most: int
) -> None:
    """Whatever the pool may have at other times, and whatever a schedule says that begins later."""
    schedules = (Schedule(window=LATER, max_nodes=100), Schedule(window=OPEN, max_nodes=most))
    rules = _all_pools(rules, schedules=schedules, max_nodes=50, grow_per_minute=1000.0)
    actions = plan(view, rules, NOW)
    after = done(view, actions, NOW)
    for name in {launch.pool for launch in of(actions, Launch)}:
        assert sum(1 for one in after.nodes if one.pool == name and one.is_usable) <= most


@always
@given(views(), policies)
def test_in_a_maintenance_window_nothing_is_launched(view: ClusterView, rules: Policies) -> None:
    rules = _all_pools(rules, maintenance=(OPEN, LATER))
    assert of(plan(view, rules, NOW), Launch) == []


@always
@given(views(), policies, st.integers(1, 4))
def test_in_a_maintenance_window_nothing_goes_that_does_not_fail_while_there_is_money(
    view: ClusterView, rules: Policies, most: int
) -> None:
    """Not for a limit, not to return to spot, and not when it has been unused for long."""
    limits = {"min_nodes": 0, "max_nodes": most, "schedules": ()}
    to_spot = {"capacity": CapacityRule.PREFER_SPOT, "return_to_spot_s": 0.0}
    rules = _all_pools(rules, maintenance=(OPEN, LATER), **limits, **to_spot)
    rules = rules.model_copy(update={"budget": BudgetPolicy()})
    failed = [end for one in view.nodes if (end := end_of(one, view, rules.pools, NOW)) is not None]
    assert [one for one in plan(view, rules, NOW) if isinstance(one, Drain | Terminate)] == failed


def _all_pools(rules: Policies, **policy: object) -> Policies:
    """The same policies with these keys in every pool."""
    pools = {name: pool.model_copy(update=policy) for name, pool in rules.pools.items()}
    return rules.model_copy(update={"pools": pools})


@always
@given(views(), policies)
def test_the_quota_is_kept(view: ClusterView, rules: Policies) -> None:
    used: Counter[str] = Counter()
    for launch in of(plan(view, rules, NOW), Launch):
        used[BY_ID[launch.offering].quota.lower()] += BY_ID[launch.offering].quota_units
    for name, left in view.quota_left.items():
        assert used[name] <= left


@always
@given(views(), policies)
def test_nothing_is_bought_that_was_just_refused(view: ClusterView, rules: Policies) -> None:
    refused = {refusal.offering for refusal in view.refusals if refusal.until > NOW}
    assert not refused & {launch.offering for launch in of(plan(view, rules, NOW), Launch)}


@always
@given(views(), policies)
def test_a_node_that_works_or_may_be_given_work_is_drained_and_never_ended(
    view: ClusterView, rules: Policies
) -> None:
    by_id = {one.id: one for one in view.nodes}
    for action in plan(view, rules, NOW):
        if isinstance(action, Terminate) and by_id[action.node_id].may_work:
            one = by_id[action.node_id]
            is_empty = one.is_noticed and not one.jobs and not one.is_in_use
            assert one.deadline_at is not None, "it was drained"
            assert is_empty or one.deadline_at <= NOW, "only when it is empty, or at its deadline"
        if isinstance(action, Drain):
            assert by_id[action.node_id].may_work
            assert action.deadline_at > NOW


@always
@given(views(), policies)
def test_groups_get_capacity_whole_or_not_at_all_and_no_node_is_overfilled(
    view: ClusterView, rules: Policies
) -> None:
    space = space_of(view, rules)
    before = Counter(space.held)
    full = {id(one) for one in space.everything if any(amount < 0 for amount in one.free.values())}
    packed = packed_into(space, view, rules)
    for one in view.jobs:
        had, has = before[one.id], space.held[one.id]
        assert had <= has <= max(had, one.max_workers)
        assert has in (had, one.min_workers) or has > one.min_workers
        assert has >= one.min_workers or one.id not in {launch.job_id for launch in packed.launches}
    for bin_ in space.everything:
        assert id(bin_) in full or all(amount >= 0 for amount in bin_.free.values())


def space_of(view: ClusterView, rules: Policies) -> Space:
    """The nodes that jobs may use, as they are."""
    there = [one for one in view.nodes if one.is_usable and one.pool in rules.pools]
    return Space(PlanningContext(view, rules, NOW), there, workers_on(there))


def packed_into(space: Space, view: ClusterView, rules: Policies) -> Packed:
    """Where jobs find capacity."""
    context = PlanningContext(view, rules, NOW)
    there = [one for one in view.nodes if one.is_usable]
    usable = {name: [one for one in there if one.pool == name] for name in rules.pools}
    return Packing(context, space, Purchases(context, usable), Domains(view.nodes)).pack()


def in_plenty(view: ClusterView, rules: Policies) -> tuple[ClusterView, Policies]:
    """The same where the cloud has all there is, and only quotas, budgets of jobs and their sizes set limits."""
    jobs = [replace(one, placement=Placement(needs_fabric=one.placement.needs_fabric)) for one in view.jobs]
    more = {"max_nodes": 50, "capacity": CapacityRule.ON_DEMAND, "grow_per_minute": 1000.0}
    rules = _all_pools(rules, **more, schedules=(), maintenance=())
    return (
        replace(view, jobs=tuple(jobs), refusals=(), quota_left={}),
        rules.model_copy(update={"budget": BudgetPolicy()}),
    )


@often
@given(views(), policies)
def test_no_project_is_given_more_gpus_than_it_may_use(view: ClusterView, rules: Policies) -> None:
    """What runs counts with its smallest group, or with all that it may use before it has said how many it has."""
    view, rules = in_plenty(view, rules)
    space = space_of(view, rules)
    before = Counter(space.held)
    packed_into(space, view, rules)
    for name, project in rules.projects.items():
        mine = [one for one in view.jobs if one.project == name]
        used = grown = 0.0
        for one in mine:
            had, has = before[one.id], space.held[one.id]
            counted = (max(had, one.min_workers) if had else one.max_workers) if one.is_running else had
            used += counted * one.worker_resources["GPU"]
            grown += max(counted, has) * one.worker_resources["GPU"]
        assert project.gpus is None or grown <= max(used, project.gpus)


@often
@given(views(), policies)
def test_nothing_is_bought_for_a_project_that_has_spent_its_money(view: ClusterView, rules: Policies) -> None:
    view, rules = in_plenty(view, rules)
    of_project = {one.id: one.project for one in view.jobs}
    for launch in of(plan(view, rules, NOW), Launch):
        name = of_project.get(launch.job_id, "")
        if name in rules.projects:
            project, spent = rules.projects[name], view.spent_by_project.get(name, Spending())
            assert project.usd_per_day is None or spent.today < project.usd_per_day
            assert project.usd_per_month is None or spent.this_month < project.usd_per_month


@often
@given(views(), policies)
def test_a_job_without_money_starts_and_grows_nowhere(view: ClusterView, rules: Policies) -> None:
    view, rules = in_plenty(view, rules)
    space = space_of(view, rules)
    before = Counter(space.held)
    packed_into(space, view, rules)
    broke = {one.id for one in view.jobs if one.budget_left is not None and one.budget_left <= 0}
    assert {name: space.held[name] for name in broke} == {name: before[name] for name in broke}
    assert not broke & {launch.job_id for launch in of(plan(view, rules, NOW), Launch)}


@often
@given(views(), policies, st.integers(2, 3))
def test_a_job_is_given_whole_copies_of_its_model(view: ClusterView, rules: Policies, most: int) -> None:
    view, rules = in_plenty(view, rules)
    rules = _all_pools(rules, max_nodes=most)
    space = space_of(view, rules)
    before = Counter(space.held)
    packed_into(space, view, rules)
    for one in view.jobs:
        assert space.held[one.id] == before[one.id] or one.sizes.allows(space.held[one.id])


@always
@given(views(), policies)
def test_a_job_that_needs_infiniband_is_bought_one_domain(view: ClusterView, rules: Policies) -> None:
    by_id = {one.id: one for one in view.jobs}
    domains: dict[str, set[str | None]] = defaultdict(set)
    made_of: dict[str, set[str]] = defaultdict(set)
    for one in view.nodes:
        if one.fabric is not None:
            made_of[one.fabric].add(one.offering)
    before = {name: set(made) for name, made in made_of.items()}
    actions = plan(view, rules, NOW)
    gone = {action.node_id for action in actions if isinstance(action, Drain | Terminate)}
    for launch in of(actions, Launch):
        if launch.job_id is not None and by_id[launch.job_id].placement.needs_fabric:
            assert launch.fabric is not None
            assert BY_ID[launch.offering].has_fabric
            domains[launch.job_id].add(launch.fabric)
            made_of[launch.fabric].add(launch.offering)
    assert all(len(names) == 1 for names in domains.values())
    for one in view.jobs:
        # Its last node may be one too many for the pool's limits, as any other.
        still_there = any(
            n.fabric == one.placement.fabric and n.is_usable and n.pool in rules.pools and n.id not in gone
            for n in view.nodes
        )
        if one.placement.fabric is not None and still_there:
            assert domains[one.id] <= {one.placement.fabric}, (
                "an attempt stays in the domain that it is bound to"
            )
    for name, made in made_of.items():
        assert made == before[name] if name in before else len(made) == 1


@always
@given(views(), policies)
def test_only_what_pool_and_job_agree_on_is_bought(view: ClusterView, rules: Policies) -> None:
    by_id = {one.id: one for one in view.jobs}
    for launch in of(plan(view, rules, NOW), Launch):
        policy, bought = rules.pools[launch.pool], BY_ID[launch.offering]
        assert bought.size in policy.sizes
        assert bought.zone in policy.zones
        spot = bought.capacity is CapacityType.SPOT
        assert policy.capacity is not (CapacityRule.ON_DEMAND if spot else CapacityRule.SPOT)
        if launch.job_id is not None:
            job = by_id[launch.job_id]
            assert job.placement.capacity is not (CapacityRule.ON_DEMAND if spot else CapacityRule.SPOT)
            assert not job.placement.zones or bought.zone in job.placement.zones
            assert not job.placement.pools or launch.pool in job.placement.pools


@always
@given(views(), policies)
def test_on_demand_is_bought_for_a_preferred_spot_only_in_need(view: ClusterView, rules: Policies) -> None:
    context = PlanningContext(view, rules, NOW)
    for launch in of(plan(view, rules, NOW), Launch):
        policy = rules.pools[launch.pool]
        job = context.jobs.get(launch.job_id or "")
        if BY_ID[launch.offering].capacity is CapacityType.SPOT or job is None:
            continue
        if policy.capacity is CapacityRule.PREFER_SPOT and job.placement.capacity in (
            None,
            CapacityRule.PREFER_SPOT,
        ):
            assert context.is_urgent(job) or context.waited_s(job) >= policy.patience_s


@always
@given(views(), policies)
def test_the_minimum_is_never_returned(view: ClusterView, rules: Policies) -> None:
    rules = rules.model_copy(update={"budget": BudgetPolicy()})
    actions = plan(view, rules, NOW)
    by_id = {one.id: one for one in view.nodes}
    unused = Counter(
        by_id[action.node_id].pool for action in of(actions, Drain) if "has been unused for" in action.reason
    )
    after = done(view, actions, NOW)
    for name, policy in rules.pools.items():
        have = sum(1 for one in after.nodes if one.pool == name and one.is_usable)
        assert not unused[name] or have >= limits_of(policy, NOW).min_nodes


@always
@given(views(), policies)
def test_everything_has_a_reason(view: ClusterView, rules: Policies) -> None:
    actions = plan(view, rules, NOW)
    for action in actions:
        said = getattr(action, "reason", None) or getattr(action, "message", "")
        assert len(said) > 10
    reported = {action.job_id for action in of(actions, Wait)}
    bought = {launch.job_id for launch in of(actions, Launch)}
    running = {one.id for one in view.jobs if one.is_running}
    assert {one.id for one in view.jobs} <= reported | bought | running
    starting = sum(one.is_usable and not one.is_member for one in view.nodes)
    for wait in of(actions, Wait):
        if (said := re.match(r"(\d+) nodes? for it (is|are) starting", wait.reason)) is not None:
            assert int(said[1]) <= len(of(actions, Launch)) + starting, (
                "no event says that nodes do not start"
            )
    reported_nodes = {action.node_id for action in actions if hasattr(action, "node_id")}
    wanted = [one for one in view.nodes if one.is_usable and not one.jobs and one.idle_since is not None]
    assert all(one.id in reported_nodes or view.jobs for one in wanted)


@always
@given(views(), policies)
def test_the_order_of_rows_is_no_matter(view: ClusterView, rules: Policies) -> None:
    turned = replace(view, jobs=view.jobs[::-1], nodes=view.nodes[::-1], refusals=view.refusals[::-1])
    assert Counter(map(repr, plan(view, rules, NOW))) == Counter(map(repr, plan(turned, rules, NOW)))


@always
@given(views(), policies, st.integers(1, 40))
def test_a_budget_is_never_exceeded(view: ClusterView, rules: Policies, limit: int) -> None:
    """However much is running and requested, and however late within its time the planner looks."""
    budget = rules.budget.model_copy(update={"usd_per_day": view.spent.today + limit, "steps": {}})
    rules = rules.model_copy(update={"budget": budget})
    burning = sum(BY_ID[one.offering].price_per_hour for one in view.nodes if one.is_paid)
    leaving_s = leaving_time_s(rules)
    assume(view.spent.today + burning * leaving_s / 3600.0 <= view.spent.today + limit)
    spent, now = view.spent.today, NOW
    for _ in range(120):
        view = done(view, plan(view, rules, now), now)
        rate = sum(BY_ID[one.offering].price_per_hour for one in view.nodes if one.is_paid)
        now += LOOK_S
        spent += rate * LOOK_S / 3600.0
        view = _a_look_later(view, spent)
        assert spent <= (budget.usd_per_day or 0.0) + 1e-6


def _a_look_later(view: ClusterView, spent: float) -> ClusterView:
    """Requested nodes have become members on which no job runs yet, and what was ended is gone."""
    left = [one for one in view.nodes if one.state is not NodeState.TERMINATING]
    nodes = tuple(
        replace(one, state=NodeState.READY, provided=True, is_running=True, is_member=True)
        if one.is_usable and not one.is_member
        else one
        for one in left
    )
    return replace(view, nodes=nodes, spent=replace(view.spent, today=spent))


@always
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 900), st.integers(0, 60)), min_size=4, max_size=4),
    st.integers(1, 3),
)
def test_the_nodes_drained_are_those_that_cost_least(
    places: list[tuple[int, int]], kinds: list[tuple[int, int, int]], number: int
) -> None:
    """One node: no other costs less.  Several: each is the cheapest after those before it."""
    demands = {
        f"j{at}": job(f"j{at}", (least, 20), saved_at=NOW - since, resume_s=resume)
        for at, (least, since, resume) in enumerate(kinds)
    }
    there = [node(f"n{at}", jobs={f"j{which}": workers}) for at, (which, workers) in enumerate(places)]
    chosen = cheapest(there, Losses(demands, workers_on(there), NOW), number)
    assert len(chosen) == min(number, len(there))
    losses = Losses(demands, workers_on(there), NOW)
    left = list(there)
    for one in chosen:
        assert losses.of(one) == min(losses.of(other) for other in left)
        losses.drain(one)
        left.remove(one)


@always
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=7))
def test_a_shrink_leaves_every_job_its_smallest_group(places: list[tuple[int, int]]) -> None:
    demands = {f"j{at}": job(f"j{at}", (2, 20)) for at in range(3)}
    there = [node(f"n{at}", jobs={f"j{which}": workers}) for at, (which, workers) in enumerate(places)]
    gone = {one.id for one in cheapest(there, Losses(demands, workers_on(there), NOW), 99, keep_minimum=True)}
    before, after = Counter[str](), Counter[str]()
    for one in there:
        before.update(one.jobs)
        if one.id not in gone:
            after.update(one.jobs)
    for name, workers in before.items():
        assert after[name] >= min(workers, 2)
    # Nothing more could go.
    for one in there:
        name = next(iter(one.jobs))
        assert one.id in gone or after[name] - one.jobs[name] < 2


def test_pairs_of_pools_share_one_budget_of_nodes() -> None:
    """The combinations of rules that exclude each other are refused with both named."""
    for pool_rule, capacity in combinations([CapacityRule.SPOT, CapacityRule.ON_DEMAND], 2):
        view = ClusterView(jobs=(job(capacity=capacity, pools=("p",)),), offerings=tuple(BY_ID.values()))
        rules = Policies.model_validate(
            {"pools": {"p": {"sizes": ["small"], "zones": ["1"], "capacity": pool_rule}}}
        )
        (wait,) = plan(view, rules, NOW)
        assert isinstance(wait, Wait)
        assert f"buys {pool_rule} only" in wait.reason

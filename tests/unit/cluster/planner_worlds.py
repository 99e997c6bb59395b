"""Clusters and policies of every kind for the tests of the planner, and what becomes of a cluster that does a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import Placement
from cluster.policies.policies import (
    BudgetPolicy,
    BudgetStep,
    CapacityRule,
    Policies,
    PoolPolicy,
    ProjectPolicy,
    Schedule,
    Window,
)
from cluster.scheduling.actions import Action, Drain, Launch, Plan, Terminate, Wait
from cluster.scheduling.view import ENDED, ClusterView, JobDemand, NodeView, Refusal, Spending
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState

#: A Monday at 13:46:40 UTC.
NOW = 1_000_000.0
#: Fields of a placement, which `job` takes beside those of a demand.
PLACEMENT = ("pools", "zones", "capacity", "needs_fabric", "fabric")
#: A window that holds now, and the next one, which begins when it ends.
OPEN = Window(begins="0 13 * * *", lasts_s=3600.0)
LATER = Window(begins="0 14 * * *", lasts_s=3600.0)


def offering(
    size: str = "a", zone: str | None = None, capacity: CapacityType = CapacityType.SPOT, **more: object
) -> Offering:
    """A machine of one GPU: 1 USD an hour on spot, 4 on demand."""
    price = 1.0 if capacity is CapacityType.SPOT else 4.0
    fields = {"resources": {"GPU": 1.0}, "price_per_hour": price, **more}
    return Offering(size=size, zone=zone, capacity=capacity, **fields)  # type: ignore[arg-type]


def catalogue() -> tuple[Offering, ...]:
    """Three sizes in two zones, spot and on demand; the large ones have InfiniBand, the smallest cost nothing."""
    return tuple(
        offering(
            size,
            zone,
            capacity,
            resources={"GPU": gpus},
            price_per_hour=price * (1.0 if capacity is CapacityType.SPOT else 4.0),
            quota="Spot" if capacity is CapacityType.SPOT else f"{size}Family",
            quota_units=int(gpus) * 6,
            has_fabric=size == "large",
        )
        for size, gpus, price in (("free", 1.0, 0.0), ("small", 2.0, 2.0), ("large", 4.0, 4.0))
        for zone in ("1", "2")
        for capacity in CapacityType
    )


CATALOGUE = catalogue()
BY_ID = {one.id: one for one in CATALOGUE}


def node(name: str = "n", **changes: object) -> NodeView:
    """A ready node of the pool `p` on which nothing runs."""
    fields = {
        "id": name,
        "pool": "p",
        "state": NodeState.READY,
        "created_at": NOW - 1000.0,
        "resources": {"GPU": 1.0},
        "offering": offering().id,
        "idle_since": None if changes.get("jobs") else NOW,
        **changes,
    }
    return NodeView(**fields)  # type: ignore[arg-type]


def job(name: str = "j", workers: int | tuple[int, int] = 1, **changes: object) -> JobDemand:
    """A job of workers with one GPU each."""
    least, most = (workers, workers) if isinstance(workers, int) else workers
    multiple_of, divided = changes.pop("multiple_of", 1), changes.pop("divided", None)
    asked = {name: changes.pop(name) for name in PLACEMENT if name in changes}
    fields = {
        "id": name,
        "sizes": WorkerSizes(least, most, multiple_of, divided),  # type: ignore[arg-type]
        "worker_resources": {"GPU": 1.0},
        "created_at": NOW,
        "placement": Placement(**asked),  # type: ignore[arg-type]
        **changes,
    }
    return JobDemand(**fields)  # type: ignore[arg-type]


#: What a small cluster is sold.
SPOT, ON_DEMAND = offering("a", "1"), offering("a", "1", CapacityType.ON_DEMAND)
SPOT_2 = offering("a", "2")


def rules(**pool: Any) -> Policies:
    """Policies with the one pool `p`."""
    budget = pool.pop("budget", {})
    return Policies.model_validate(
        {"pools": {"p": {"sizes": ["a"], "zones": ["1", "2"], **pool}}, "budget": budget}
    )


def view(
    jobs: Iterable[JobDemand] = (),
    nodes: Iterable[NodeView] = (),
    sold: Iterable[Offering] = (SPOT, SPOT_2, ON_DEMAND),
    **more: Any,
) -> ClusterView:
    """A cluster that is sold spot in two zones and on-demand in one."""
    return ClusterView(jobs=tuple(jobs), nodes=tuple(nodes), offerings=tuple(sold), **more)


def acts(actions: Plan) -> list[Action]:
    """What changes the cluster."""
    return [action for action in actions if isinstance(action, Launch | Drain | Terminate)]


def bought(actions: Plan) -> list[str]:
    """What is launched, as offerings."""
    return [action.offering for action in actions if isinstance(action, Launch)]


def said_to(actions: Plan, job_id: str = "j") -> str:
    """Why a job waits."""
    return next(action.reason for action in actions if isinstance(action, Wait) and action.job_id == job_id)


def done(view: ClusterView, plan: Plan, now: float) -> ClusterView:
    """The cluster right after a plan was carried out: requests are rows, drains and ends have begun."""
    by_id = {action.node_id: action for action in plan if isinstance(action, Drain | Terminate)}
    nodes: list[NodeView] = []
    for one in view.nodes:
        action = by_id.get(one.id)
        if isinstance(action, Terminate):
            nodes.append(_ending(one, action, now))
        elif isinstance(action, Drain):
            leaving = {"deadline_at": action.deadline_at, "leaving_since": now}
            nodes.append(replace(one, state=NodeState.DRAINING, **leaving))  # type: ignore[arg-type]
        else:
            nodes.append(one)
    launches = [action for action in plan if isinstance(action, Launch)]
    left = dict(view.quota_left)
    offerings = {one.id: one for one in view.offerings}
    for launch in launches:
        bought = offerings[launch.offering]
        if bought.quota.lower() in left:
            left[bought.quota.lower()] -= bought.quota_units
        nodes.append(requested(launch, f"new{len(nodes)}", now))
    return replace(view, nodes=tuple(nodes), quota_left=left)


def _ending(one: NodeView, action: Terminate, now: float) -> NodeView:
    if one.state in ENDED:
        return one
    since = now if one.leaving_since is None else one.leaving_since
    is_failure = one.is_failure or action.is_failure
    return replace(one, state=NodeState.TERMINATING, leaving_since=since, is_failure=is_failure)


def requested(launch: Launch, name: str, now: float) -> NodeView:
    """The row of a node before its machine exists."""
    return NodeView(
        id=name,
        pool=launch.pool,
        state=NodeState.REQUESTED,
        created_at=now,
        offering=launch.offering,
        resources=launch.resources,
        fabric=launch.fabric,
        bought_for=launch.job_id,
        provided=False,
        is_running=False,
        is_member=False,
    )


counts = st.integers(0, 6)
schedules = st.builds(
    Schedule,
    window=st.sampled_from([OPEN, LATER]),
    min_nodes=st.none() | st.integers(0, 2),
    max_nodes=st.none() | st.integers(2, 8),
    warm_nodes=st.none() | st.integers(0, 2),
)
pools = st.builds(
    PoolPolicy,
    sizes=st.permutations(["free", "small", "large"]).map(tuple),
    zones=st.sampled_from([("1",), ("2", "1")]),
    capacity=st.sampled_from(CapacityRule),
    min_nodes=st.integers(0, 2),
    max_nodes=st.integers(2, 8),
    warm_nodes=st.integers(0, 2),
    idle_s=st.sampled_from([0.0, 300.0]),
    grow_per_minute=st.sampled_from([0.5, 3.0, 1000.0]),
    shrink_per_minute=st.sampled_from([0.5, 3.0, 1000.0]),
    patience_s=st.sampled_from([0.0, 600.0]),
    on_demand_core=st.integers(0, 2),
    return_to_spot_s=st.sampled_from([None, 0.0, 900.0]),
    schedules=st.lists(schedules, max_size=2, unique_by=lambda one: one.window.begins).map(tuple),
    maintenance=st.sampled_from([(), (), (), (LATER,), (OPEN,), (LATER, OPEN)]),
)
budgets = st.builds(
    BudgetPolicy,
    usd_per_day=st.sampled_from([None, 10.0, 100.0]),
    usd_per_month=st.sampled_from([None, 1000.0]),
    steps=st.sampled_from(
        [
            {},
            {BudgetStep.STOP_GROWING: 0.5, BudgetStep.SPOT_ONLY: 0.7, BudgetStep.SHRINK: 0.8},
        ]
    ),
)
policies = st.builds(
    Policies,
    pools=st.fixed_dictionaries({"p": pools}, optional={"q": pools}),
    projects=st.sampled_from(
        [
            {},
            {"small": ProjectPolicy(gpus=3, usd_per_day=5.0)},
            {"small": ProjectPolicy(usd_per_month=9.0), "any": ProjectPolicy(gpus=6)},
        ]
    ),
    budget=budgets,
)


@st.composite
def jobs(draw: st.DrawFn, name: str) -> JobDemand:
    """One job."""
    multiple = draw(st.sampled_from([1, 1, 2]))
    needs_fabric, is_running = draw(st.sampled_from([False, False, True])), draw(st.booleans())
    least = draw(st.integers(1, 4)) * multiple
    return job(
        name,
        (least, least + draw(st.integers(0, 3)) * multiple),
        multiple_of=multiple,
        project=draw(st.sampled_from(["any", "small"])),
        worker_resources={"GPU": draw(st.sampled_from([1.0, 1.0, 2.0]))},
        pools=draw(st.sampled_from([(), ("p",), ("q", "p"), ("none",)])),
        zones=draw(st.sampled_from([(), ("1",)])),
        capacity=draw(st.sampled_from([None, None, *CapacityRule])),
        needs_fabric=needs_fabric,
        fabric=draw(st.sampled_from([None, "d1", "d2"])) if needs_fabric and is_running else None,
        priority=draw(st.integers(0, 2)),
        created_at=NOW - draw(st.sampled_from([0.0, 60.0, 700.0])),
        is_running=is_running,
        deadline_at=draw(st.sampled_from([None, NOW + 1000.0])),
        work_left_s=draw(st.sampled_from([None, 100.0, 900.0])),
        saved_at=NOW - draw(st.integers(0, 1000)),
        resume_s=draw(st.integers(0, 60)),
        budget_left=draw(st.sampled_from([None, None, None, 0.01, 0.0, -1.0])),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str, demands: list[JobDemand]) -> NodeView:
    """One node in any state."""
    bought = draw(st.sampled_from(CATALOGUE))
    pool = draw(st.sampled_from(["p", "p", "q"]))
    # Labels keep workers on nodes of the pools that their job accepts, and nodes are bought in no others for it.
    demands = [one for one in demands if not one.placement.pools or pool in one.placement.pools]
    state = draw(st.sampled_from([*NodeState, NodeState.READY, NodeState.READY, NodeState.READY]))
    is_ended = state in (NodeState.GONE, NodeState.FAILED)
    is_member = state in (NodeState.JOINED, NodeState.READY, NodeState.DRAINING)
    on_it: dict[str, int] = {}
    if is_member and demands and draw(st.booleans()):
        one = draw(st.sampled_from(demands))
        on_it = {one.id: 1} if bought.resources["GPU"] >= one.worker_resources["GPU"] else {}
    is_in_use = bool(on_it) or (is_member and draw(st.sampled_from([False, False, True])))
    is_leaving = state in (NodeState.DRAINING, NodeState.TERMINATING)
    ages = st.sampled_from([5.0, 30.0, 100.0, 2000.0])
    return node(
        name,
        pool=pool,
        state=state,
        created_at=NOW - draw(ages),
        offering=bought.id,
        resources=bought.resources,
        fabric=draw(st.sampled_from([None, "d1", "d2"])) if bought.has_fabric else None,
        jobs=on_it,
        bought_for=draw(st.sampled_from([None, *(one.id for one in demands)])),
        is_in_use=is_in_use,
        is_noticed=draw(st.booleans()) if state is NodeState.DRAINING else True,
        idle_since=NOW - draw(ages) if is_member and not is_in_use else None,
        provided=not is_ended and state is not NodeState.REQUESTED,
        is_running=not is_ended and state is not NodeState.REQUESTED,
        is_member=is_member,
        deadline_at=NOW + draw(st.sampled_from([-1.0, 30.0])) if state is NodeState.DRAINING else None,
        leaving_since=NOW - 10.0 if is_leaving or is_ended else None,
    )


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    """A cluster at any moment."""
    demands = [draw(jobs(f"j{at}")) for at in range(draw(st.integers(0, 6)))]
    have = tuple(draw(nodes(f"n{at}", demands)) for at in range(draw(st.integers(0, 8))))
    refused = draw(st.lists(st.sampled_from(CATALOGUE), max_size=8))
    untils = st.sampled_from([NOW - 1000.0, NOW - 1.0, NOW + 1.0, NOW + 3600.0])
    quotas = st.fixed_dictionaries({}, optional=dict.fromkeys(["spot", "smallfamily", "largefamily"], counts))
    return ClusterView(
        jobs=tuple(demands),
        nodes=have,
        offerings=CATALOGUE,
        refusals=tuple(Refusal(offering=one.id, until=draw(untils)) for one in refused),
        quota_left={name: units * 12 for name, units in draw(quotas).items()},
        spent=Spending(today=draw(st.sampled_from([0.0, 6.0, 9.0, 50.0, 99.5])), this_month=100.0),
        spent_by_project={
            "small": Spending(
                today=draw(st.sampled_from([0.0, 5.0])), this_month=draw(st.sampled_from([5.0, 9.0]))
            )
        },
        strict_order=draw(st.booleans()),
    )

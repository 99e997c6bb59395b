"""The planner's view of a replay: the same values that the service builds from its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.policies.offerings import Offering
from cluster.policies.policies import BudgetStep
from cluster.scheduling.view import ENDED, ClusterView, JobDemand, NodeView, Refusal, Spending
from cluster.simulator.jobs import SimJob
from cluster.simulator.nodes import SimNode
from remora.states import NodeState

_JOINED = frozenset({NodeState.READY, NodeState.DRAINING})


def view_of(
    now: float,
    begins_at: float,
    *,
    waiting: Iterable[SimJob],
    cut_at: frozenset[str],
    running: Iterable[SimJob],
    nodes: Iterable[SimNode],
    offerings: tuple[Offering, ...],
    refusals: Iterable[Refusal],
    quota_left: Mapping[str, int],
    spent: tuple[float, float],
    budget_step: BudgetStep | None,
    spent_by_project: Mapping[str, Spending],
    start_up_s: float,
) -> ClusterView:
    """The frozen view at a time; nodes that ended are among `nodes` as long as they are remembered.

    Jobs and nodes that have not changed are reused from the view before: few of them change from plan to plan.
    """
    return ClusterView(
        now=begins_at + now,
        jobs=tuple([sim.seen or demand_of(sim, now, begins_at) for sim in (*waiting, *running)]),
        nodes=tuple([node_view(node, begins_at) for node in nodes]),
        offerings=offerings,
        refusals=tuple(refusals),
        quota_left=quota_left,
        spent=Spending(today=spent[0], this_month=spent[1]),
        spent_by_project=spent_by_project,
        budget_step=budget_step,
        in_turns=True,
        cut_at=cut_at,
        start_up_s=start_up_s,
    )


def demand_of(sim: SimJob, now: float, begins_at: float) -> JobDemand:
    """What the job would use, as the planner sees it."""
    job = sim.job
    demand = JobDemand(
        id=job.id,
        project=job.project,
        sizes=job.sizes,
        worker_resources=job.resources,
        placement=sim.placement,
        priority=job.priority,
        created_at=begins_at + job.at_s,
        place=sim.place,
        is_running=bool(sim.workers),
        waiting_since=begins_at + sim.short_since,
        deadline_at=None if job.deadline_s is None else begins_at + job.deadline_s,
        work_left_s=None if job.deadline_s is None else (job.work_s - sim.done_at(now)) / job.max_workers,
        saved_at=begins_at + sim.checkpoint_at if sim.workers else None,
        saves_every_s=job.checkpoint_s,
        resume_s=job.resize_s if job.is_elastic else job.resume_s,
        repeats_s=job.checkpoint_s,
        told=sim.told,
        budget_left=None if job.budget is None else job.budget - sim.spent_at(now),
    )
    # The work that is left, and the money, become less while it runs.
    if not sim.workers or (job.deadline_s is None and job.budget is None):
        sim.seen = demand
    return demand


def node_view(node: SimNode, begins_at: float) -> NodeView:
    """The node as the planner sees it."""
    if node.seen is None:
        node.seen = _seen_node(node, begins_at)
    return node.seen


def _seen_node(node: SimNode, begins_at: float) -> NodeView:
    ended = node.state in ENDED
    joined = node.state in _JOINED
    return NodeView(
        id=node.id,
        pool=node.pool,
        state=node.state,
        created_at=begins_at + node.created_s,
        offering=node.stock.offering.id,
        resources=node.stock.offering.resources,
        fabric=node.fabric,
        jobs=dict(node.jobs),
        free=dict(node.free),
        bought_for=node.bought_for,
        idle_since=None if node.idle_since is None or ended else begins_at + node.idle_since,
        provided=not ended,
        is_running=not ended,
        is_member=joined,
        is_failure=node.state is NodeState.FAILED,
        ready_at=None if node.ready_s is None else begins_at + node.ready_s,
        deadline_at=None if node.deadline_s is None else begins_at + node.deadline_s,
        leaving_since=None if node.leaving_since is None else begins_at + node.leaving_since,
    )

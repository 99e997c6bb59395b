"""Converts jobs and nodes of a replay into what the planner works with, as the service converts its rows."""

from __future__ import annotations

from cluster.scheduling.view import ENDED, JOINED, JobDemand, NodeView
from cluster.simulator.jobs import SimJob
from cluster.simulator.nodes import SimNode
from remora.states import NodeState


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
        noticed_step=sim.noticed_step,
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
    joined = node.state in JOINED
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

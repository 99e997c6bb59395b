"""The planner's view of a replay: the same values that the service makes of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cluster.offerings import Offering
from cluster.policies import BudgetStep
from cluster.simulator.jobs import SimJob
from cluster.simulator.nodes import SimNode
from cluster.view import ENDED, ClusterView, JobDemand, NodeView, Refusal, Spending
from remora.states import NodeState

_JOINED = frozenset({NodeState.READY, NodeState.DRAINING})


def view_of(
    now: float,
    begins_at: float,
    *,
    waiting: Sequence[SimJob],
    running: Iterable[SimJob],
    nodes: Iterable[SimNode],
    offerings: tuple[Offering, ...],
    refusals: Iterable[Refusal],
    spent: tuple[float, float],
    told: Mapping[str, BudgetStep],
    budget_step: BudgetStep | None,
) -> ClusterView:
    """The frozen view at a time; nodes that ended are among `nodes` as long as they are remembered."""
    demands = [_demand(job, now, begins_at, told.get(job.job.id)) for job in waiting]
    demands.extend(_demand(job, now, begins_at, told.get(job.job.id)) for job in running)
    return ClusterView(
        jobs=tuple(demands),
        nodes=tuple(_node(node, begins_at) for node in nodes),
        offerings=offerings,
        refusals=tuple(refusals),
        spent=Spending(today=spent[0], this_month=spent[1]),
        budget_step=budget_step,
        in_turns=True,
    )


def _demand(sim: SimJob, now: float, begins_at: float, told: BudgetStep | None) -> JobDemand:
    """What changes from look to look is put into a copy: making a demand anew for every job takes most of a look."""
    waits_as = sim.waits_as
    if waits_as is not None and waits_as.told is told:
        return waits_as
    if sim.seen is None:
        sim.seen = _whole_demand(sim, begins_at)
    demand = object.__new__(JobDemand)
    demand.__dict__.update(
        sim.seen.__dict__,
        waiting_since=begins_at + sim.short_since,
        work_left_s=(sim.job.work_s - sim.done_at(now)) / sim.job.max_workers,
        since_checkpoint_s=sim.unsaved_s(now),
        is_running=bool(sim.workers),
        told=told,
    )
    if not sim.workers:
        sim.waits_as = demand  # nothing of it changes before it starts
    return demand


def _whole_demand(sim: SimJob, begins_at: float) -> JobDemand:
    job = sim.job
    return JobDemand(
        id=job.id,
        project=job.project,
        min_workers=job.min_workers,
        max_workers=job.max_workers,
        worker_resources=job.resources,
        priority=job.priority,
        created_at=begins_at + job.at_s,
        deadline_at=None if job.deadline_s is None else begins_at + job.deadline_s,
        resume_s=job.resize_s if job.is_elastic else job.resume_s,
    )


def _node(node: SimNode, begins_at: float) -> NodeView:
    if node.seen is None:
        node.seen = _whole_node(node, begins_at)
    return node.seen


def _whole_node(node: SimNode, begins_at: float) -> NodeView:
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
        deadline_at=None if node.deadline_s is None else begins_at + node.deadline_s,
        leaving_since=None if node.leaving_since is None else begins_at + node.leaving_since,
    )

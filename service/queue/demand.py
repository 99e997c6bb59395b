"""Converts rows of jobs and nodes into what the planner works with: `JobDemand` and `NodeView` (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cluster.policies.placement import Placement
from cluster.scheduling.slack import measured_start_up_s
from cluster.scheduling.view import JOINED, LEAVING, JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes
from remora.states import NodeState
from service.queue.rows import AttemptRow, JobRow, NodeRow, RayRequestRow

#: Seconds without progress when the workers of a group change; a start from a checkpoint takes about as long.
RESUME_S = 10.0
#: Seconds of training, and times as long as these that may be left, for the mean pace to say when a job ends.
LEAST_SEEN_S, MOST_FORESEEN = 30.0, 200.0


def demand_of(
    job: JobRow, attempt: AttemptRow | None, checkpoint_at: float | None, now: float, spent: float = 0.0
) -> JobDemand:
    """What a job would use; `attempt` is the one that runs, `checkpoint_at` the time of its newest checkpoint.

    `spent` is what it has cost so far, in USD.

    A job that waits again after a loss has waited since the loss.
    """
    placement = job.facts.placement if attempt is None else placement_in(job, attempt)
    demand = JobDemand(
        id=job.id,
        project=job.project,
        sizes=job.facts.sizes,
        placement=placement,
        worker_resources=job.facts.placed_resources,
        priority=job.priority,
        created_at=job.created_at,
        waiting_since=job.waits_from if job.lost_since is None else job.lost_since,
        resume_s=RESUME_S,
        repeats_s=job.facts.repeats_s,
        noticed_step=job.budget_step,
        deadline_at=job.facts.deadline_at,
        work_left_s=work_left_s(job, attempt, now),
        budget_left=None if job.facts.budget is None else job.facts.budget - spent,
    )
    if attempt is None:
        return demand
    return replace(
        demand,
        is_running=True,
        waiting_since=_short_since(attempt, now),
        saved_at=max(attempt.started_at or attempt.created_at, checkpoint_at or 0.0),
    )


def demand_of_held(row: RayRequestRow) -> JobDemand:
    """What Ray programs hold of one node, as the running job with one worker that the planner counted it as."""
    return JobDemand(
        id=row.id,
        project=row.project,
        sizes=WorkerSizes(1, 1),
        worker_resources=row.resources,
        created_at=row.since,
        is_running=True,
        is_program=True,
    )


def placement_in(job: JobRow, attempt: AttemptRow) -> Placement:
    """Which nodes an attempt of the job accepts: those of its fabric domain, or on demand, where it was bound so."""
    placement = replace(job.facts.placement, fabric=attempt.fabric)
    return placement.on_demand if attempt.on_demand else placement


def work_left_s(job: JobRow, attempt: AttemptRow | None, now: float) -> float | None:
    """Seconds that the job still trains if it goes on as it did; None while that cannot be known."""
    if job.total_steps is None or not job.step:
        return None
    running_s = 0.0 if attempt is None or attempt.started_at is None else max(0.0, now - attempt.started_at)
    trained_s = job.trained_s + running_s
    return max(0, job.total_steps - job.step) * trained_s / job.step


def ends_at(job: JobRow, attempt: AttemptRow, now: float) -> float | None:
    """When a running job ends at its mean pace, or at its time limit if that is earlier; None while that is not known.

    The time after its last step is known of no job.
    """
    if attempt.started_at is None:
        return None
    trained_s = job.trained_s + max(0.0, now - attempt.started_at)
    left_s = work_left_s(job, attempt, now)
    is_foreseen = left_s and trained_s >= LEAST_SEEN_S and left_s <= MOST_FORESEEN * trained_s
    ends = [now + left_s] if left_s is not None and is_foreseen else []
    if job.run_time_s is not None and job.run_time_s > trained_s:
        ends.append(now + job.run_time_s - trained_s)
    return min(ends, default=None)


def start_up_s(nodes: Iterable[NodeRow]) -> float:
    """Seconds that machines took from their order to their readiness."""
    return measured_start_up_s((node.created_at, node.ready_at) for node in nodes)


def is_domain_lost(attempt: AttemptRow, nodes: Iterable[NodeRow]) -> bool:
    """The attempt is bound to a fabric domain in which it cannot have workers any more.

    No node of it stays or is starting, and none of the attempt's workers is on one that is draining.
    """
    if attempt.fabric is None:
        return False
    return not any(
        node.state not in LEAVING or (node.state is NodeState.DRAINING and node.address in attempt.workers)
        for node in nodes
        if node.fabric == attempt.fabric and node.ended_at is None
    )


def _short_since(attempt: AttemptRow, now: float) -> float:
    if attempt.short_since is not None:
        return attempt.short_since
    return attempt.created_at if attempt.started_at is None else now


def workers_by_node(nodes: Iterable[NodeRow], attempts: Iterable[AttemptRow]) -> dict[str, dict[str, int]]:
    """Workers of each node, by node id and by job id; nodes without any are missing."""
    at = {node.address: node.id for node in nodes if node.address is not None and node.ended_at is None}
    found: dict[str, dict[str, int]] = {}
    for attempt in attempts:
        for address, count in attempt.workers.items():
            if (node_id := at.get(address)) is not None and count > 0:
                found.setdefault(node_id, {})[attempt.job_id] = count
    return found


def idle_since(node: NodeRow, is_in_use: bool, now: float) -> float | None:
    """Since when nothing has run on the node; None while it is in use, and before it is ready."""
    if is_in_use or node.state not in (NodeState.READY, NodeState.DRAINING):
        return None
    return now if node.idle_since is None else node.idle_since


def node_view(node: NodeRow, jobs: Mapping[str, int]) -> NodeView:
    """What the row says of a node; the caller adds what the provider and Ray say."""
    return NodeView(
        id=node.id,
        pool=node.pool,
        state=node.state,
        created_at=node.created_at,
        offering=node.offering,
        resources=node.resources,
        fabric=node.fabric,
        jobs=dict(jobs) if node.state in JOINED else {},
        bought_for=node.bought_for,
        idle_since=node.idle_since,
        deadline_at=node.deadline_at,
        is_failure=node.is_failure,
        is_cut_off=node.is_cut_off,
        unanswered_since=node.unanswered_since,
        unanswered=node.unanswered,
        had_machine=node.launched_at is not None,
        ready_at=node.ready_at,
        sick_since=node.sick_since,
        leaving_since=node.leaving_since,
    )

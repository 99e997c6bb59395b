"""Where a job's worker group fits beside what runs, what may grow and what nodes are kept for (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cluster.policies.placement import Placement
from cluster.scheduling.fitting import Resources, shares_in
from cluster.scheduling.placing import Allocation, beside, count_of, place_group, place_in_domain, without
from cluster.scheduling.view import JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes


def free_beside(
    running: Iterable[JobDemand], nodes: Sequence[NodeView], kept: Mapping[str, str]
) -> list[Resources]:
    """What is free on each node: beside the workers that are there, and beside what their groups may grow to."""
    jobs = {job.id: job for job in running}
    held = dict.fromkeys(jobs, 0)
    free: list[Resources] = []
    # Workers where they are, before what the groups may grow to.
    for node in nodes:
        left = node.resources if node.free is None else node.free
        for job_id, count in node.jobs.items():
            if (job := jobs.get(job_id)) is not None:
                held[job_id] += count
                worker = job.worker_resources
                left = without(left, count, worker if node.free is None else shares_in(worker))
        free.append(left)
    for job in jobs.values():
        has, allowed = min(held[job.id], job.max_workers), allowed_nodes(nodes, job.placement)
        others = _available_to(kept, job.id, nodes, allowed)
        places = place_group(free, job.sizes, job.worker_resources, others, has)
        if has + count_of(places) < job.min_workers and others is not allowed:
            # It starts, and takes what it finds.
            places = place_group(free, job.sizes, job.worker_resources, allowed, has)
        free = beside(free, places, job.worker_resources)
    return free


def _available_to(
    kept: Mapping[str, str], job_id: str, nodes: Sequence[NodeView], allowed: Sequence[bool] | None
) -> Sequence[bool] | None:
    """The allowed nodes without those that are kept for other jobs."""
    if not kept:
        return allowed
    mine = [kept.get(node.id, job_id) == job_id for node in nodes]
    return mine if allowed is None else [one and other for one, other in zip(mine, allowed, strict=True)]


def allocate_beside_kept(
    kept: Mapping[str, str],
    job: JobDemand,
    nodes: Sequence[NodeView],
    free: list[Resources],
    allowed: Sequence[bool] | None,
) -> Allocation:
    """Place a worker group of the job; on nodes that are kept for others only where it does not fit elsewhere.

    Else two jobs that wait for nodes that are kept for each other would never start.
    """
    others = _available_to(kept, job.id, nodes, allowed)
    allocation = allocate(job, job.sizes, nodes, free, others)
    if allocation.workers >= job.min_workers or others is allowed:
        return allocation
    return allocate(job, job.sizes, nodes, free, allowed)


def allowed_nodes(nodes: Sequence[NodeView], placement: Placement) -> list[bool] | None:
    """Which nodes the placement allows; None where it allows all."""
    if placement.is_anywhere:
        return None
    return [placement.allows(*node.place) and placement.reaches(node.fabric) for node in nodes]


def allocate(
    job: JobDemand,
    sizes: WorkerSizes,
    nodes: Sequence[NodeView],
    free: list[Resources],
    allowed: Sequence[bool] | None,
) -> Allocation:
    """Place a worker group of the job of one of these sizes."""
    if allowed is None or not job.placement.needs_fabric:
        return Allocation(place_group(free, sizes, job.worker_resources, allowed))
    return place_in_domain(
        job, sizes, nodes, free, [at for at, is_allowed in enumerate(allowed) if is_allowed]
    )

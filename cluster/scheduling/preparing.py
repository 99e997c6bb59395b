"""Decides on which nodes the environments of waiting jobs are built before they are next (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.scheduling.fitting import slots
from cluster.scheduling.view import JobDemand, NodeView

#: Jobs whose environments are built ahead, at most: a node keeps only a few, and must not drop those in use for these.
MOST_JOBS = 3
#: Nodes on which one job is prepared, for each worker that it may have: it can start on any of them.
NODES_PER_WORKER = 2


def nodes_to_prepare(
    waiting: Iterable[JobDemand], nodes: Sequence[NodeView]
) -> tuple[tuple[JobDemand, tuple[str, ...]], ...]:
    """The jobs that are prepared, next one first, each with the ids of nodes on which a worker of it could run.

    `waiting` are jobs with an environment of their own, in queue order.  A node counts that may have other work now,
    and is to stay.  Those without work come first: they are likely the next ones that are used.
    """
    usable = sorted((node for node in nodes if node.is_well), key=lambda node: (bool(node.jobs), node.id))
    found: list[tuple[JobDemand, tuple[str, ...]]] = []
    for job in waiting:
        if len(found) == MOST_JOBS:
            break
        fitting = [
            node.id
            for node in usable
            if job.placement.allows(*node.place)
            and job.placement.reaches(node.fabric)
            and slots(node.resources, job.worker_resources)
        ]
        if fitting:
            found.append((job, tuple(fitting[: NODES_PER_WORKER * job.max_workers])))
    return tuple(found)

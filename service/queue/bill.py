"""Charges what the cloud bills: every paid second of a node goes to a job, a project or the cluster (pure).

A node is paid for from when its machine was first there until it has ended.  What workers hold of it is their job's
cost.  Until it is ready, the job that it was bought for pays, and afterwards that job's project pays for idle
parts; what a pool has by itself, and a machine that never became a node, is the cluster's cost.  The project of Ray
programs pays for what was bought for them, but for parts that jobs hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.queue.ledger import UseRow
from service.queue.rows import NodeRow


class Payer(StrEnum):
    """Who pays."""

    JOB = "job"
    PROJECT = "project"
    CLUSTER = "cluster"


class Purpose(StrEnum):
    """What for."""

    #: Workers hold it.
    WORK = "work"
    #: Its machine boots and joins.
    START_UP = "start_up"
    #: It is ready, and no job holds it or a part of it.
    IDLE = "idle"
    #: Its machine never became a node.
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one payer pays of one node for one purpose."""

    payer: Payer
    #: Id of the job, name of the project; empty for the cluster.
    name: str
    purpose: Purpose
    node_id: str
    #: Seconds of a whole node: half a node for an hour is 1800.
    node_s: float
    #: USD.
    cost: float


def paid_s(node: NodeRow, begins_at: float, ends_at: float) -> float:
    """Seconds between the two times, in seconds since 1970, for which the cloud bills the node."""
    if node.launched_at is None:
        return 0.0
    ended_at = ends_at if node.ended_at is None else min(node.ended_at, ends_at)
    return max(0.0, ended_at - max(node.launched_at, begins_at))


def charges(
    nodes: Iterable[NodeRow],
    uses: Iterable[UseRow],
    projects: Mapping[str, str],
    begins_at: float,
    ends_at: float,
) -> list[Charge]:
    """What is paid for these nodes between the two times; the sum is what the cloud bills for them.

    `uses` are those of these nodes, `projects` is the project of each job that is named.  Linear in nodes and uses.
    """
    by_node: dict[str, list[UseRow]] = {}
    for use in uses:
        by_node.setdefault(use.node_id, []).append(use)
    found: list[Charge] = []
    for node in nodes:
        if paid_s(node, begins_at, ends_at) > 0:
            found += _of_node(node, by_node.get(node.id, ()), projects, begins_at, ends_at)
    return found


def _of_node(
    node: NodeRow, uses: Sequence[UseRow], projects: Mapping[str, str], begins_at: float, ends_at: float
) -> list[Charge]:
    def charge(payer: Payer, name: str, purpose: Purpose, node_s: float) -> Charge:
        cost = node_s * node.price_per_hour / 3600.0
        return Charge(payer=payer, name=name, purpose=purpose, node_id=node.id, node_s=node_s, cost=cost)

    whole_s = paid_s(node, begins_at, ends_at)
    if node.ready_at is None and node.ended_at is not None and node.ended_at <= ends_at:
        return [charge(Payer.CLUSTER, "", Purpose.FAILED, whole_s)]
    ready_at = ends_at if node.ready_at is None else min(node.ready_at, ends_at)
    start_up_s = min(whole_s, max(0.0, ready_at - max(node.launched_at or 0.0, begins_at)))
    left_s = whole_s - start_up_s
    found: list[Charge] = []
    held: dict[str, float] = {}
    for use in uses:
        until = ends_at if use.ended_at is None else min(use.ended_at, ends_at)
        held_s = min(left_s, use.part * max(0.0, until - max(use.began_at, begins_at)))
        held[use.job_id] = held.get(use.job_id, 0.0) + held_s
        left_s -= held_s
    found += [
        charge(Payer.JOB, job_id, Purpose.WORK, node_s) for job_id, node_s in held.items() if node_s > 0
    ]
    owner = node.bought_for
    if node.project is not None:
        # What Ray programs hold of it is not recorded: all that no job holds is theirs.
        for purpose, spent_s in ((Purpose.START_UP, start_up_s), (Purpose.WORK, left_s)):
            if spent_s > 0:
                found.append(charge(Payer.PROJECT, node.project, purpose, spent_s))
        return found
    if start_up_s > 0:
        payer, name = (Payer.CLUSTER, "") if owner is None else (Payer.JOB, owner)
        found.append(charge(payer, name, Purpose.START_UP, start_up_s))
    if left_s > 0:
        project = projects.get(owner or "")
        payer, name = (Payer.CLUSTER, "") if project is None else (Payer.PROJECT, project)
        found.append(charge(payer, name, Purpose.IDLE, left_s))
    return found

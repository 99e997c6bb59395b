"""Builds the planner's `ClusterView` from rows and from an observation of the provider and Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from cluster.policies.policies import Policies
from cluster.provider import ProvidedNode
from cluster.scheduling.fitting import as_shown
from cluster.scheduling.health import remembered_s
from cluster.scheduling.quotas import counts_money
from cluster.scheduling.view import START_UP_S, ClusterView, JobDemand, NodeView
from remora.states import NodeState
from service.loops.ports import Member, Supply
from service.loops.queue_order import jobs_in_order, pool_sizes
from service.loops.tick import Tick
from service.queue.demand import demand_of, node_view
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.queue.urgency import start_up_s
from service.store import jobs as job_store
from service.store import ledger, spending
from service.store import nodes as node_store
from service.store.telemetry import newest_checkpoints

#: Seconds that refusals stay in the view after their end; they tell since when spot has been available again.
REFUSALS_S = 86_400.0

#: Seconds that ended nodes stay in the planner's view for the paces of pools; those that failed stay for longer.
MEMORY_S = 900.0

Machines = Mapping[str, ProvidedNode]
Members = Mapping[str, Member]


@dataclass(frozen=True)
class Workload:
    """The jobs that wait and may start, and the jobs that run."""

    #: In queue order.
    queue: Sequence[JobRow] = ()
    running: Sequence[tuple[JobRow, AttemptRow]] = ()
    #: When the newest checkpoint of running jobs was committed, by job id; seconds since 1970.
    checkpoint_at: Mapping[str, float] | None = None
    #: USD that jobs with a budget have spent, by job id.
    spent: Mapping[str, float] = field(default_factory=dict)
    #: Seconds that machines take to start, as measured lately.
    start_up_s: float = START_UP_S

    def demands(self, now: float) -> tuple[JobDemand, ...]:
        """What the jobs would use, as the planner counts it."""
        saved = self.checkpoint_at or {}
        spent = self.spent
        waiting = [
            replace(demand_of(job, None, None, now, spent.get(job.id, 0.0)), place=place)
            for place, job in enumerate(self.queue)
        ]
        running = [
            demand_of(job, one, saved.get(job.id), now, spent.get(job.id, 0.0)) for job, one in self.running
        ]
        return (*waiting, *running)


def load_workload(
    connection: sa.Connection, policies: Policies, supply: Supply, nodes: Sequence[NodeRow], now: float
) -> Workload:
    """The jobs that wait and may start, and those that run, beside the nodes that are remembered."""
    running = job_store.live_attempts(connection)
    # The same pools as in `dispatch`: with others, projects with shares would have another order there.
    pools = pool_sizes(policies, as_shown(supply.offerings(), nodes), now)
    takes_s = start_up_s(nodes)
    queue = jobs_in_order(connection, policies, pools, running, now, takes_s)
    return replace(_load(connection, queue, running, now), start_up_s=takes_s)


def load_running_workload(connection: sa.Connection, now: float) -> Workload:
    """The jobs that run, without those that wait."""
    return _load(connection, (), job_store.live_attempts(connection), now)


def _load(
    connection: sa.Connection,
    queue: Sequence[JobRow],
    running: Sequence[tuple[JobRow, AttemptRow]],
    now: float,
) -> Workload:
    limited = [job.id for job in (*queue, *(job for job, _ in running)) if job.budget is not None]
    return Workload(
        queue=queue,
        running=running,
        spent=ledger.spent(connection, limited, now),
        checkpoint_at=newest_checkpoints(connection, [job.id for job, _ in running]),
    )


def remembered_nodes(connection: sa.Connection, policies: Policies, now: float) -> list[NodeRow]:
    """Nodes that have not ended, and those whose end, failure or memory still counts for queue and planner."""
    return node_store.current_nodes(connection, now - MEMORY_S, now - remembered_s(policies))


def observed_node(row: NodeRow, jobs: Mapping[str, int], machines: Machines, members: Members) -> NodeView:
    """A node's row together with what the provider and Ray say about it."""
    machine, member = machines.get(row.id), members.get(row.id)
    noticed_until = member.deadline_at if member is not None else None
    return replace(
        node_view(row, jobs),
        provided=machine is not None,
        is_running=machine is not None and machine.is_running,
        is_member=member is not None and member.is_alive,
        is_in_use=member is not None and member.is_in_use,
        is_told=member is not None and member.is_draining,
        deadline_at=row.deadline_at if noticed_until is None else noticed_until,
    )


def unpriced_view(supply: Supply, jobs: Workload, nodes: Sequence[NodeView], now: float) -> ClusterView:
    """The view of a cluster whose nodes cost nothing."""
    return ClusterView(now=now, jobs=jobs.demands(now), nodes=tuple(nodes), offerings=supply.offerings())


def priced_view(
    tick: Tick,
    policies: Policies,
    supply: Supply,
    jobs: Workload,
    nodes: Sequence[NodeView],
    paused_until: float,
) -> ClusterView:
    """The view of a cluster whose nodes cost money."""
    view = ClusterView(
        now=tick.now,
        jobs=jobs.demands(tick.now),
        nodes=tuple(nodes),
        offerings=as_shown(supply.offerings(), nodes),
        refusals=tick.load(lambda connection: spending.known_refusals(connection, tick.now - REFUSALS_S)),
        reopened=tick.load(spending.reopenings),
        quota_left=_left_beyond(nodes, supply),
        paused_until=paused_until,
        in_turns=True,
        start_up_s=jobs.start_up_s,
    )
    if not _counts_money(policies):
        return view
    whole, projects = tick.load(lambda connection: spending.spent(connection, tick.now))
    step = tick.load(lambda connection: spending.budget_step(connection, policies.budget.figures, tick.now))
    return replace(view, spent=whole, spent_by_project=projects, budget_step=step)


def _left_beyond(nodes: Sequence[NodeView], supply: Supply) -> Mapping[str, int]:
    """Units that are left of each quota once the nodes are made that the cloud has not taken an order for yet."""
    left = dict(supply.quota_left())
    waiting = [node for node in nodes if node.state is NodeState.REQUESTED and not node.provided]
    if waiting:
        offerings = {offering.id: offering for offering in supply.offerings()}
        for node in waiting:
            offering = offerings.get(node.offering)
            if offering is not None and (quota := offering.quota.lower()) in left:
                left[quota] -= offering.quota_units
    return left


def _counts_money(policies: Policies) -> bool:
    budget = policies.budget
    return budget.usd_per_day is not None or budget.usd_per_month is not None or counts_money(policies)

"""The jobs of a replay: which ones wait, which ones run on which nodes, and what a lost node does to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cluster.policies.offerings import CapacityType
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import Policies
from cluster.scheduling.actions import StartJob, Wait
from cluster.scheduling.fitting import dominant_part
from cluster.scheduling.keeping import kept_nodes, kept_s
from cluster.scheduling.limits import limits_of
from cluster.scheduling.placing import place_group
from cluster.scheduling.pool_sizes import complete_pools
from cluster.scheduling.queue_order import in_order, queue_key
from cluster.scheduling.quotas import Counting, has_quotas
from cluster.scheduling.shares import has_shares, shares_of
from cluster.scheduling.slack import changes_at, is_urgent, should_move
from cluster.scheduling.starts import blocked_owners, jobs_off_spot, starts
from cluster.scheduling.view import ENDED, JobDemand
from cluster.simulator.assumptions import Backoff
from cluster.simulator.event_queue import EventQueue
from cluster.simulator.fleet import BLUR_S, Fleet
from cluster.simulator.jobs import SimJob
from cluster.simulator.jobs_in_order import JobsByProject, JobsInOrder
from cluster.simulator.nodes import SimNode
from cluster.simulator.planner_view import demand_of, node_view
from cluster.traces.trace import Trace, TraceJob
from remora.states import NodeState

#: Jobs that the queue is asked about at first; as long as all of them start, twice as many.
FIRST_LOOK = 4


class Work:
    """All jobs that were submitted and have not ended."""

    def __init__(
        self,
        fleet: Callable[[], Fleet],
        trace: Trace,
        policies: Policies,
        backoff: Backoff,
        event_queue: EventQueue,
    ) -> None:
        self._policies = policies
        self._has_quotas = has_quotas(policies)
        #: Projects have shares or quotas, so that the order and the starts depend on what runs.
        self.counts_projects = self._has_quotas or has_shares(policies)
        self._offerings = trace.offerings
        #: What each pool has when it is complete, by its limits of this time, and by the highest of all times.
        self._pools = self._most = complete_pools(policies, trace.offerings, lambda pool: pool.most_nodes)
        self._has_schedules = any(pool.schedules for pool in policies.pools.values())
        self._limits: tuple[int, ...] = ()
        #: Whether jobs of a kind can ever start.
        self._possible: dict[tuple[object, ...], bool] = {}
        self._backoff = backoff
        self.waiting = JobsByProject(self._by_shares) if self.counts_projects else JobsInOrder()
        self.running: dict[str, SimJob] = {}
        #: All jobs that were submitted, by id.
        self.sims: dict[str, SimJob] = {}
        #: Those of them that have neither ended nor been given up.
        self.unended: dict[str, SimJob] = {}
        #: Running jobs that have fewer workers than they can use.
        self.short = JobsInOrder()
        #: How many jobs wait for the end of their backoff after a loss.
        self.backing_off = 0
        self.ended: list[SimJob] = []
        self.given_up: list[SimJob] = []
        self.impossible = 0
        self.losses = 0
        self.shrinks = 0
        #: When a job last started or ended.
        self.moved_s = 0.0
        #: True when jobs began to wait, started, grew, or ended, so that others may need other nodes.
        self.has_moved = False
        self._fleet = fleet
        self._event_queue = event_queue
        self._begins_at = trace.begins_at
        self._start_up_s = trace.provisioning_s
        #: The first waiting job when all had started or grown that could: no other job does before more is free, or
        #: another job is the first.  None: not known.
        self._settled: list[SimJob] | None = None
        self._settled_day = -1
        #: Jobs have begun to wait since.
        self._is_any_newly_waiting = False
        #: Some job has a deadline.
        self._has_deadlines = False
        #: Ids of waiting jobs whose deadline is near.
        self._urgent: set[str] = set()
        #: Some job was not allowed to start on spot in the last `dispatch`.
        self._is_any_off_spot = False
        #: Ids of nodes for which the end of their reservation is in the event queue.
        self._scheduled_releases: set[str] = set()

    @property
    def is_done(self) -> bool:
        """No job waits or runs."""
        return not (self.waiting or self.running or self.backing_off)

    def unfinished(self) -> list[SimJob]:
        """Jobs that run or wait."""
        return [*self.running.values(), *self.waiting.all()]

    def arrive(self, now: float, job: TraceJob) -> None:
        """A job is submitted; one that can never start is left out, as in the service it blocks no other job."""
        sim = SimJob(job, at_s=now, short_since=now)
        if not self._can_ever_start(now, sim):
            self.impossible += 1
            return
        sim.order_key = queue_key(self._demand(now, sim))
        self.sims[job.id] = self.unended[job.id] = sim
        self._has_deadlines = self._has_deadlines or job.deadline_s is not None
        self._wait(now, sim)

    def _can_ever_start(self, now: float, sim: SimJob) -> bool:
        """False when its smallest worker group would not fit even if all pools were complete and empty."""
        demand = self._demand(now, sim)
        key = (demand.shape, demand.sizes, demand.project)
        if key not in self._possible:
            counting = Counting(self._policies, (), {}, {}, now) if self._has_quotas else None
            (wait,) = starts([demand], (), (), self._most, counting=counting)
            self._possible[key] = not (isinstance(wait, Wait) and wait.is_hopeless)
        return self._possible[key]

    def _demand(self, now: float, sim: SimJob) -> JobDemand:
        return sim.seen or demand_of(sim, now, self._begins_at)

    def _counting(self, now: float) -> Counting | None:
        """What running jobs use of their projects' quotas; None where projects have none."""
        if not self._has_quotas:
            return None
        held = {sim.job.id: sim.workers for sim in self.running.values()}
        running = [self._demand(now, sim) for sim in self.running.values()]
        spent = self._fleet().spent_by_project(now)
        return Counting(self._policies, running, held, spent, self._begins_at + now)

    def _wait(self, now: float, sim: SimJob) -> None:
        """Put a job among those that wait; its place changes once its deadline is near."""
        if sim.job.deadline_s is not None:
            demand = demand_of(sim, now, self._begins_at)
            self._set_order_key(now, sim)
            for at in changes_at(demand, self._begins_at + now, self._start_up_s):
                if (at_s := at - self._begins_at + BLUR_S) > now:
                    self._event_queue.add(at_s, self._update_order_key, (sim, sim.version))
        self.waiting.add(sim.order_key, sim)
        self.has_moved = self._is_any_newly_waiting = True

    def _set_order_key(self, now: float, sim: SimJob) -> None:
        """Set its place among those that wait, by how near its deadline is now."""
        demand = demand_of(sim, now, self._begins_at)
        self._urgent.discard(sim.job.id)
        if is_urgent(demand, self._begins_at + now, self._start_up_s):
            self._urgent.add(sim.job.id)
        sim.order_key = queue_key(demand, is_urgent=sim.job.id in self._urgent)

    def _update_order_key(self, now: float, waiting: tuple[SimJob, int]) -> None:
        """The job's deadline has become near, or can no longer be met: its place may change."""
        sim, version = waiting
        if sim.version != version:
            return
        self.waiting.remove(sim.order_key)
        self._set_order_key(now, sim)
        self.waiting.add(sim.order_key, sim)
        self._settled = None  # it may start on other nodes than before
        self.has_moved = self._is_any_newly_waiting = True

    def is_any_to_move(self, now: float) -> bool:
        """Some job on spot may have to move to nodes that the cloud does not take back."""
        if not self._has_deadlines:
            return False
        at, every = self._begins_at + now, self._fleet().every
        return any(
            sim.job.deadline_s is not None
            and any(every[number - 1].stock.offering.capacity is CapacityType.SPOT for number in sim.placed)
            and should_move(demand_of(sim, now, self._begins_at), at, self._start_up_s)
            for sim in self.running.values()
        )

    def _off_spot(self, now: float, waiting: list[SimJob]) -> frozenset[str]:
        """Those of them that do not start on spot nodes."""
        if not self._has_deadlines:
            return frozenset()
        with_deadline = [self._demand(now, sim) for sim in waiting if sim.job.deadline_s is not None]
        coming = [node_view(node, self._begins_at) for node in self._fleet().changing.values()]
        return jobs_off_spot(with_deadline, coming, self._pools, self._begins_at + now, self._start_up_s)

    def dispatch(self, now: float) -> None:
        """Let elastic jobs grow into what is free, then start waiting jobs in their order, as the service does."""
        fleet = self._fleet()
        if not (self.waiting or self.short) or not fleet.partly_free:
            return
        self._follow_schedules(now)
        if self._is_settled(now):
            return
        self._settled, fleet.has_freed_capacity = None, False
        self._is_any_off_spot = False
        free_nodes = sorted(fleet.with_capacity.values(), key=_preference)
        by_id = {node.id: node for node in free_nodes}
        kept = self._grow_all(now, free_nodes, None)
        # Where projects count, all are asked about before anything starts, as the service does.
        look = len(self.waiting) if self.counts_projects else FIRST_LOOK
        while waiting := self.waiting.first(look):
            off_spot = self._off_spot(now, waiting)
            self._is_any_off_spot = self._is_any_off_spot or bool(off_spot)
            decided = starts(
                [self._demand(now, sim) for sim in waiting],
                (),
                [node_view(node, self._begins_at) for node in free_nodes],
                self._pools,
                counting=self._counting(now),
                off_spot=off_spot,
                kept=kept,
                explains_waits=False,
            )
            chosen = [one for one in decided if isinstance(one, StartJob)]
            for one in chosen:
                self._start(now, one, by_id)
            if len(chosen) < len(waiting):
                break
            look *= 2
        if kept:
            # What was kept for jobs that have started is free for others.
            self._grow_all(now, free_nodes, kept)
        self._settled, self._settled_day = self.waiting.first(1), fleet.day_of(now)
        self._is_any_newly_waiting = False

    def _follow_schedules(self, now: float) -> None:
        """What pools may have changes with their schedules: who is too large for them now holds up no other job."""
        if not self._has_schedules:
            return
        at = self._begins_at + now
        limits = tuple(limits_of(pool, at).max_nodes for pool in self._policies.pools.values())
        if limits != self._limits:
            self._limits, self._settled = limits, None
            self._pools = complete_pools(
                self._policies, self._offerings, lambda pool: limits_of(pool, at).max_nodes
            )

    def _grow_all(
        self, now: float, free_nodes: list[SimNode], before: Mapping[str, str] | None
    ) -> Mapping[str, str]:
        """Let elastic jobs grow, unless the same is kept as `before`; what is kept for which job, by node id."""
        kept = self._kept(now)
        if kept != before:
            for sim in self.short.first(len(self.short)):
                self._grow(now, sim, _not_kept(free_nodes, kept, sim))
        return kept

    def _kept(self, now: float) -> Mapping[str, str]:
        """The job that each ready node is kept for, by node id."""
        fleet = self._fleet()
        own = [
            node
            for node in fleet.idle.values()
            if node.bought_for is not None
            and node.bought_for in self.unended
            and now - (node.ready_s or 0.0) < kept_s(self._start_up_s)
        ]
        for node in own:
            self._schedule_release(node)
        if not own:
            return {}
        owners = {node.bought_for: self.unended[node.bought_for] for node in own if node.bought_for}
        if self._has_quotas:
            waiting = [self._demand(now, sim) for sim in self.waiting.first(len(self.waiting))]
            held_up = blocked_owners(waiting, owners, self._pools, self._counting(now))
            owners = {job_id: sim for job_id, sim in owners.items() if job_id not in held_up}
        theirs = {number for sim in owners.values() for number in sim.placed}
        nodes = [*own, *(fleet.every[number - 1] for number in theirs)]
        return kept_nodes(
            [node_view(node, self._begins_at) for node in nodes],
            {job_id: self._demand(now, sim) for job_id, sim in owners.items()},
            self._begins_at + now,
            self._start_up_s,
        )

    def _schedule_release(self, node: SimNode) -> None:
        """Schedule when the node's reservation for one job ends: other jobs may grow onto it then."""
        if node.id not in self._scheduled_releases:
            self._scheduled_releases.add(node.id)
            self._event_queue.add((node.ready_s or 0.0) + kept_s(self._start_up_s), self._release, node)

    def _release(self, now: float, node: SimNode) -> None:
        del now
        if node.state is NodeState.READY and not node.jobs:
            self._settled = None
            self._fleet().has_changed = True

    def _is_settled(self, now: float) -> bool:
        """No job can start or grow: nothing has become free, and the first waiting job was too large for what there is.

        Where projects have quotas, others than the first may start, and all are checked again when a day begins.
        """
        fleet = self._fleet()
        if fleet.has_freed_capacity or self._is_any_off_spot or self.waiting.first(1) != self._settled:
            return False
        return not (
            self._has_quotas and (self._is_any_newly_waiting or fleet.day_of(now) != self._settled_day)
        )

    def _by_shares(self, waiting: list[SimJob]) -> list[SimJob]:
        """The same jobs in the order that the queue gives them, beside those that run."""
        order = in_order([self._demand(sim.at_s, sim) for sim in waiting], self._urgent)
        running = [(self._demand(sim.at_s, sim), sim.workers) for sim in self.running.values()]
        shares = shares_of(self._policies, self._pools, running)
        return [self.sims[one.id] for one in (order if shares is None else shares.order(order))]

    def _grow(self, now: float, sim: SimJob, free_nodes: list[SimNode]) -> None:
        job = sim.job
        allowed_nodes = free_nodes if sim.placement is ANYWHERE else _allowed(free_nodes, sim.placement)
        free = [node.free for node in allowed_nodes]
        places = place_group(free, job.sizes, job.resources, held=sim.workers)
        if not places:
            return
        found = [(allowed_nodes[at], workers) for at, workers in places]
        self._put(job, found)
        placed = dict(sim.placed)
        for node, workers in found:
            placed[node.number] = placed.get(node.number, 0) + workers
        sim.resize(now, placed)
        self.has_moved = True
        self.waiting.held_resources_changed()
        if sim.workers == job.max_workers:
            self.short.remove(sim.order_key)
        self._schedule_end(sim)

    def _start(self, now: float, start: StartJob, nodes: Mapping[str, SimNode]) -> None:
        """Start the job where its workers fit; `nodes` has these nodes by their id."""
        sim = self.sims[start.job_id]
        job, placement = sim.job, sim.job.placement
        if start.fabric is not None:
            placement = replace(placement, fabric=start.fabric)
        if start.on_demand:
            placement = placement.on_demand
        found = [(nodes[node_id], workers) for node_id, workers in start.workers]
        self.waiting.remove(sim.order_key)
        self._put(job, found)
        sim.start(now, {node.number: workers for node, workers in found}, placement)
        self.running[job.id] = sim
        self.waiting.held_resources_changed()
        if sim.workers < job.max_workers:
            self.short.add(sim.order_key, sim)
        self._schedule_end(sim)
        self.moved_s = now
        self.has_moved = True

    def _put(self, job: TraceJob, found: list[tuple[SimNode, int]]) -> None:
        for node, workers in found:
            self._fleet().take(node, job.id, workers, job.resources)

    def _schedule_end(self, sim: SimJob) -> None:
        if sim.job.budget is not None:
            sim.usd_per_s = sum(
                _part(node, sim.job, workers) * node.price_per_hour / 3600
                for number, workers in sim.placed.items()
                for node in (self._fleet().every[number - 1],)
            )
            if sim.broke_s < sim.ends_s:
                self._event_queue.add(sim.broke_s, self._stop, (sim, sim.version))
                return
        self._event_queue.add(sim.ends_s, self._end, (sim, sim.version))

    def _stop(self, now: float, scheduled: tuple[SimJob, int]) -> None:
        """Its budget is spent: it ends at a checkpoint, for good."""
        sim, version = scheduled
        if sim.version != version:
            return
        self._leave(now, sim)
        sim.stop(now, is_noticed=True)
        self._give_up(sim)

    def _give_up(self, sim: SimJob) -> None:
        self.given_up.append(sim)
        self._forget(sim)

    def _forget(self, sim: SimJob) -> None:
        """Nothing is kept for it any more."""
        del self.unended[sim.job.id]
        self._settled = None if self._scheduled_releases else self._settled

    def _end(self, now: float, scheduled: tuple[SimJob, int]) -> None:
        sim, version = scheduled
        if sim.version != version:
            return
        self._leave(now, sim)
        sim.finish(now)
        self.ended.append(sim)
        self._forget(sim)

    def _leave(self, now: float, sim: SimJob) -> None:
        """Free all that a running job holds."""
        job = sim.job
        del self.running[job.id]
        self.waiting.held_resources_changed()
        self.short.remove(sim.order_key)
        for number in sim.placed:
            node = self._fleet().every[number - 1]
            if node.state not in ENDED:
                self._fleet().give_back(now, node, job.id, job.resources)
        self.moved_s = now
        self.has_moved = True
        if self._has_quotas:
            self._settled = None  # its project may have another job started, on whatever node

    def vacate(self, now: float, node: SimNode, *, only_elastic: bool = False) -> None:
        """The jobs on a node have to leave it: elastic ones go on with the others, or end at a checkpoint."""
        for job_id in list(node.jobs):
            sim = self.running[job_id]
            if only_elastic and not sim.job.is_elastic:
                continue
            left = {number: count for number, count in sim.placed.items() if number != node.number}
            if sim.job.is_elastic and sum(left.values()) >= sim.job.min_workers:
                self._shrink(now, sim, node, left)
            else:
                self._lose(now, sim)

    def _shrink(self, now: float, sim: SimJob, node: SimNode, left: dict[int, int]) -> None:
        self._fleet().give_back(now, node, sim.job.id, sim.job.resources)
        has = sum(left.values())
        over = has - sim.job.sizes.fit(has)
        for number in reversed(list(left)) if over else ():  # workers beyond the next size that is possible
            rest = self._fleet().every[number - 1]
            if over and (fewer := min(over, left[number])):
                self._fleet().give_back(now, rest, sim.job.id, sim.job.resources, fewer)
                over -= fewer
                left[number] -= fewer
        left = {number: count for number, count in left.items() if count}
        self.short.remove(sim.order_key)
        sim.resize(now, left)
        self.waiting.held_resources_changed()
        self.short.add(sim.order_key, sim)
        self.shrinks += 1
        self._settled = None  # it may grow again elsewhere
        self._schedule_end(sim)

    def _lose(self, now: float, sim: SimJob) -> None:
        """Its attempt ends; another follows when the queue says so, from the newest checkpoint."""
        self._leave(now, sim)
        sim.stop(now, is_noticed=sim.job.is_elastic)
        sim.losses += 1
        self.losses += 1
        sim.short_since = now
        delay_s = self._backoff(sim.losses)
        if delay_s is None:
            self._give_up(sim)
            return
        self.backing_off += 1
        self._event_queue.add(now + delay_s, self._wait_again, sim)

    def _wait_again(self, now: float, sim: SimJob) -> None:
        self.backing_off -= 1
        self._wait(now, sim)


def _preference(node: SimNode) -> tuple[bool, float, bool, int]:
    """Nodes in use first, the fullest before the others, on-demand before spot."""
    is_spot = node.stock.offering.capacity is CapacityType.SPOT
    free = sum(amount for name, amount in node.free.items() if name != "memory")  # bytes would drown the rest
    return not node.jobs, free, is_spot, node.number


def _allowed(free_nodes: list[SimNode], placement: Placement) -> list[SimNode]:
    """Those of the nodes that the placement allows, in their order."""
    return [
        node
        for node in free_nodes
        if placement.reaches(node.fabric)
        and placement.allows(node.pool, node.stock.offering.zone, node.stock.offering.capacity)
    ]


def _not_kept(free_nodes: list[SimNode], kept: Mapping[str, str], sim: SimJob) -> list[SimNode]:
    """Those of the nodes that are reserved for no other job."""
    return (
        [node for node in free_nodes if kept.get(node.id, sim.job.id) == sim.job.id] if kept else free_nodes
    )


def _part(node: SimNode, job: TraceJob, workers: int) -> float:
    """The fraction of the node that these workers of the job hold; all of a node of which nothing is known."""
    part = dominant_part(node.stock.offering.resources, job.resources, workers)
    return 1.0 if part is None else part

"""When a replay plans although no event has happened: the times at which time alone may change a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.scheduling.health import closed_offerings, join_limit_s, launch_not_before
from cluster.scheduling.limits import next_at, window_of
from cluster.scheduling.slack import changes_at
from cluster.scheduling.view import ClusterView
from cluster.simulator.fleet import BLUR_S, Fleet
from cluster.simulator.jobs import SimJob
from cluster.simulator.nodes import SimNode
from cluster.simulator.planner_view import demand_of
from cluster.traces.trace import Trace
from remora.states import NodeState


class Times:
    """Called after every event, so it looks at few things; at some of its times no plan changes."""

    def __init__(self, trace: Trace, policies: Policies, fleet: Fleet) -> None:
        self._pools = policies.pools
        self._fleet = fleet
        self._begins_at = trace.begins_at
        self._start_up_s = trace.provisioning_s
        #: When pools may buy again what they do not buy now, as nodes of theirs failed.
        self._held_until: list[float] = []
        #: Seconds after which nodes that are late are given up, by their ids.
        self._join_limits: dict[str, float] = {}
        self._has_deadlines = any(job.deadline_s is not None for job in trace.jobs)
        self._patiences = {pool.patience_s for pool in policies.pools.values()}
        #: Pools whose on-demand nodes are exchanged for spot, and after how long.
        self._returning = {
            name: pool.return_to_spot_s
            for name, pool in policies.pools.items()
            if pool.return_to_spot_s is not None and pool.capacity is CapacityRule.PREFER_SPOT
        }

    def see(self, view: ClusterView) -> None:
        """Learn from what the planner sees until when failures keep pools from buying."""
        self._held_until = [
            until - self._begins_at
            for name, pool in self._pools.items()
            for until in (
                launch_not_before(view, name, view.now),
                *closed_offerings(view, name, pool.join_timeout_s, view.now).values(),
            )
            if until > view.now
        ]

    def see_late(self, view: ClusterView) -> None:
        """Learn how long nodes may still take that have not joined in the time of their pool."""
        self._join_limits = {}
        for node in view.unwell:
            pool = self._pools.get(node.pool)
            if node.state is NodeState.LAUNCHED and pool is not None:
                timeout_s = pool.join_timeout_s
                if view.now - node.created_at >= timeout_s - BLUR_S:
                    self._join_limits[node.id] = join_limit_s(view, node, timeout_s, view.now)

    def next(self, now: float, wanting: Sequence[Sequence[SimJob]]) -> float:
        """The first of these times, infinity for none; `wanting` are lists of jobs that may use more nodes."""
        return _first_of(list(self._times(now, wanting)), now)

    def _times(self, now: float, wanting: Sequence[Sequence[SimJob]]) -> Iterator[float]:
        """A node was idle, a job waited, or spot was there, for long enough; times that have passed are among them."""
        fleet, pools = self._fleet, self._pools
        is_wanting = any(wanting)
        for node in fleet.idle.values():
            if node.idle_since is not None:
                yield max(now, node.idle_since + pools[node.pool].idle_s)
        for node in fleet.changing.values():
            if node.state is NodeState.LAUNCHED:
                yield node.created_s + self._join_limits.get(node.id, pools[node.pool].join_timeout_s)
        if fleet.has_failures:
            # A failure that leaves the view may end a pause sooner, so that it is computed again then.
            yield _first_of([*self._held_until, *fleet.failures_end()], now)
        if is_wanting or any(fleet.have[name] < pool.min_nodes for name, pool in pools.items()):
            yield _first_of(fleet.refusals_end(), now)
        stood_in = self._stood_in()
        for name, nodes in stood_in.items():
            yield from self._exchanges(name, nodes, now)
        for name, pool in pools.items():
            is_short = is_wanting or fleet.have[name] < pool.min_nodes or name in stood_in
            if is_short and fleet.have[name] < pool.max_nodes:
                yield from self._launches(name, pool, now)
        for jobs in wanting:
            yield from self._patience(jobs, now)

    def _patience(self, jobs: Sequence[SimJob], now: float) -> Iterator[float]:
        """When jobs have waited for spot for long enough, and when their deadlines come so near that they need not."""
        for patience_s in self._patiences:
            # These lists are long, and most of their jobs have waited for longer: each is looked at once.
            passed_s = now - patience_s - BLUR_S
            yield (
                min([s.short_since for s in jobs if s.short_since > passed_s], default=math.inf) + patience_s
            )
        if self._has_deadlines:
            yield _first_of([at_s for sim in jobs for at_s in self._urgent_s(sim, now)], now)

    def _urgent_s(self, sim: SimJob, now: float) -> list[float]:
        """When the planner may decide otherwise about the job, as its deadline comes nearer."""
        if sim.job.deadline_s is None:
            return []
        demand = sim.seen or demand_of(sim, now, self._begins_at)
        changes = changes_at(demand, self._begins_at + now, self._start_up_s)
        return [at - self._begins_at for at in changes]

    def _stood_in(self) -> Mapping[str, list[SimNode]]:
        """On-demand nodes by pool that are exchanged for spot."""
        found: dict[str, list[SimNode]] = {}
        if self._returning:
            for node in self._fleet.on_demand.values():
                if node.leaving_since is None and node.pool in self._returning:
                    found.setdefault(node.pool, []).append(node)
        return found

    def _exchanges(self, name: str, stood_in: list[SimNode], now: float) -> Iterator[float]:
        """When spot and its stand-in have been there for long enough, and when the pace of returns lets one go."""
        after_s, pace = self._returning[name], self._pools[name].shrink_per_minute
        yield _first_of([node.created_s + after_s for node in stood_in], now)
        yield _first_of([end_s + after_s for end_s in self._fleet.refusals_end()], now)
        left = list(self._fleet.left(name, now, window_of(pace)))
        yield from self._paced(pace, left, [node.leaving_since or 0.0 for node in left], now)

    def _launches(self, name: str, pool: PoolPolicy, now: float) -> Iterator[float]:
        """When the pace of a pool allows the next launch, where it allows none now.

        Nothing is named for returns of idle nodes: as long as one is idle for too long, every look counts.
        """
        pace = pool.grow_per_minute
        bought = list(self._fleet.bought(name, now, window_of(pace)))
        yield from self._paced(pace, bought, [node.created_s for node in bought], now)

    def _paced(self, pace: float, nodes: list[SimNode], times: list[float], now: float) -> Iterator[float]:
        at = next_at(pace, [self._begins_at + at_s for at_s in times], self._begins_at + now)
        if at is not None:
            yield max(now, at - self._begins_at)
            # What a view has forgotten does not count any more.
            yield from (
                node.ended_s + self._fleet.memory_s(node) for node in nodes if node.ended_s is not None
            )


def _first_of(times: list[float], now: float) -> float:
    """The first that has not passed; infinity when all have."""
    passed_s = now - BLUR_S
    return min([at_s for at_s in times if at_s > passed_s], default=math.inf)

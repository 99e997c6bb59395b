"""A trace under policies, from the first job to the end of the last one.

Jobs, nodes and the market move at their own times.  The planner looks at them at most every `look_s`, and only after
something has happened that it may decide on, or when a time has come that the policies name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from cluster.actions import Drain, Launch, Notice, Terminate, Wait
from cluster.planning.limits import next_at, window_of
from cluster.planning.quotas import counts_money, has_quotas
from cluster.policies import BudgetStep, Policies
from cluster.simulator.agenda import Agenda
from cluster.simulator.doors import Assumptions, Planner, Queue
from cluster.simulator.fleet import MEMORY_S, Fleet
from cluster.simulator.jobs import SimJob
from cluster.simulator.ledger import DAY_S, Ledger
from cluster.simulator.rest import is_at_rest
from cluster.simulator.seeing import view_of
from cluster.simulator.work import Work
from cluster.traces.trace import MarketChange, Trace, TraceJob
from cluster.view import ClusterView

#: Seconds after which the planner looks again although nothing has happened, while jobs wait for nodes.
GLANCE_S = 300.0
#: Events between two calls of `progress`.
PROGRESS_EVERY = 2_000

Progress = Callable[[float], None]


class Replay:
    """One run; `run` may be called once."""

    def __init__(
        self, trace: Trace, policies: Policies, planner: Planner, queue: Queue, assumptions: Assumptions
    ) -> None:
        self.trace = trace
        self.policies = policies
        self.ledger = Ledger(trace.begins_at)
        self.looks = 0
        self.now = 0.0
        self._planner = planner
        self._assumptions = assumptions
        self._agenda = Agenda()
        self.work = Work(lambda: self.fleet, queue, self._agenda)
        self.fleet = Fleet(
            trace,
            self._agenda,
            self.ledger,
            seed=assumptions.seed,
            refused_s=assumptions.refused_s,
            remembered_s=max((pool.return_to_spot_s or 0.0 for pool in policies.pools.values()), default=0.0),
            vacate=self.work.vacate,
            projects={job.id: job.project for job in trace.jobs} if counts_money(policies) else None,
        )
        self._arrivals = iter(trace.jobs)
        self._changes = iter(trace.changes)
        self._arrived = 0
        #: When the planner looks next.
        self._look: float | None = None
        self._step: BudgetStep | None = None
        self._step_day = -1
        self._most = sum(pool.max_nodes for pool in policies.pools.values())
        self._returns_to_spot = any(pool.return_to_spot_s is not None for pool in policies.pools.values())
        #: The first of those that wait holds up all others; a project's quota would hold up its own jobs only.
        self._is_strict = not has_quotas(policies)
        self._runs_by_the_clock = assumptions.asks_always or _runs_by_the_clock(policies)

    def run(self, progress: Progress | None = None) -> None:
        """Replay it; `progress` is told the part of the jobs that have ended."""
        self._next_arrival(0.0)
        self._next_change(0.0)
        self._look_at(0.0)
        events = 0
        while not self._is_over() and (at_s := self._agenda.next_s) is not None:
            self.now = at_s
            self._agenda.act(at_s)
            self.work.dispatch(at_s)
            self._look_if_needed(at_s)
            events += 1
            if progress is not None and events % PROGRESS_EVERY == 0:
                progress(len(self.work.ended) / max(1, len(self.trace.jobs)))
        self.fleet.pay_all(self.now)

    def _is_over(self) -> bool:
        if self._arrived < len(self.trace.jobs):
            return False
        is_stuck = not self.work.running and self.now - self.work.moved_s > self._assumptions.stuck_s
        return self.work.is_done or is_stuck

    def _next_arrival(self, now: float) -> None:
        job = next(self._arrivals, None)
        if job is not None:
            self._agenda.add(max(now, job.at_s), self._arrive, job)

    def _arrive(self, now: float, job: TraceJob) -> None:
        self._arrived += 1
        self.work.moved_s = now
        self.work.arrive(now, job)
        self._next_arrival(now)

    def _next_change(self, now: float) -> None:
        change = next(self._changes, None)
        if change is not None:
            self._agenda.add(max(now, change.at_s), self._change, change)

    def _change(self, now: float, change: MarketChange) -> None:
        self.fleet.change(now, change)
        self._next_change(now)

    # when the planner looks

    def _look_if_needed(self, now: float) -> None:
        """Look soon when something has changed that a plan depends on, else when a time of the policies comes."""
        if self._look is not None and self._look <= now + self._assumptions.look_s:
            return
        is_wanting = bool(self.work.waiting or self.work.short)
        has_news = self.fleet.has_changed or (is_wanting and self.work.has_moved and not self._is_full())
        if self._runs_by_the_clock or has_news:
            self._look_at(now)
        else:
            soonest = math.inf
            for at_s in self._times(now, is_wanting):
                if at_s < soonest:
                    soonest = at_s
                    self._look_at(at_s)

    def _is_full(self) -> bool:
        """Every pool has all the nodes that it may have, and all of them work: more wishes change nothing."""
        nodes = self.fleet.nodes
        return len(nodes) >= self._most and not self._returns_to_spot and all(n.jobs for n in nodes.values())

    def _times(self, now: float, is_wanting: bool) -> Iterator[float]:
        """When time alone may change a plan: a node was idle, a job waited, or spot was there, for long enough."""
        pools = self.policies.pools
        for node in self.fleet.loose.values():
            if node.idle_since is not None:
                yield max(now, node.idle_since + pools[node.pool].idle_s)
        if is_wanting or any(self.fleet.have[name] < pool.min_nodes for name, pool in pools.items()):
            yield from (at_s for at_s in self.fleet.refusals_end() if at_s > now)
        yield from self._paced_times(now, is_wanting)
        if is_wanting:
            yield now + GLANCE_S
            waits = {pool.patience_s for pool in pools.values()}
            for line in (self._in_view(), self.work.short.everybody()):
                since = [sim.short_since for sim in line]
                for patience_s in waits:
                    yield from [at_s for since_s in since if (at_s := since_s + patience_s) > now]
        elif self._returns_to_spot:
            yield now + GLANCE_S

    def _paced_times(self, now: float, is_wanting: bool) -> Iterator[float]:
        """When the pace of a pool allows the next launch, where it allows none now and one may be wished for.

        Nothing is named for returns: as long as a node is idle for too long, every look counts.
        """
        begins_at = self.trace.begins_at
        for name, pool in self.policies.pools.items():
            have = self.fleet.have[name]
            if have >= pool.max_nodes or not (is_wanting or have < pool.min_nodes):
                continue
            bought = list(self.fleet.bought(name, now, window_of(pool.grow_per_minute)))
            launches = [begins_at + node.created_s for node in bought]
            at = next_at(pool.grow_per_minute, launches, begins_at + now)
            if at is not None:
                yield max(now, at - begins_at)
                # What a view has forgotten does not count any more.
                yield from (node.ended_s + MEMORY_S for node in bought if node.ended_s is not None)

    def _look_at(self, at_s: float) -> None:
        """Look at the next round time that is not before `at_s` and not now again."""
        pace = self._assumptions.look_s
        due = math.ceil(at_s / pace) * pace
        if due <= self.now and self.looks:
            due = (math.floor(self.now / pace) + 1) * pace
        if self._look is None or due < self._look:
            self._look = due
            self._agenda.add(due, self._plan, due)

    def _plan(self, now: float, due: float) -> None:
        if self._look != due:
            return
        self._look = None
        self.fleet.has_changed = self.work.has_moved = False
        # A cloud refuses within seconds, and the service looks again at once: so does the replay, at each offering.
        for _ in range(1 + len(self.trace.offerings)):
            refused = self.fleet.refused
            self._ask(now)
            if self.fleet.refused == refused:
                break

    def _ask(self, now: float) -> None:
        self.looks += 1
        if not self._runs_by_the_clock and self._is_at_rest(now):
            return
        at = self.trace.begins_at + now
        has_acted = False
        for action in self._planner(self._view(now), self.policies, at):
            if not isinstance(action, Wait):  # most of a plan in a crowded cluster
                has_acted |= self._do(now, action)
        if has_acted or self._runs_by_the_clock:
            self.fleet.has_changed = True

    def _is_at_rest(self, now: float) -> bool:
        return is_at_rest(
            self.fleet,
            self.policies,
            now,
            short=self.work.short.everybody(),
            waiting=self._in_view(),
            is_strict=self._is_strict,
        )

    def _in_view(self) -> list[SimJob]:
        """Jobs that wait and that the planner is shown, next one first.

        With quotas the first ones of every project, as in the service: those of one do not hide another's.
        """
        waiting = self.work.waiting
        return waiting.first(self._assumptions.window if self._is_strict else len(waiting))

    def _view(self, now: float) -> ClusterView:
        spent = (0.0, 0.0)
        if self.policies.budget.usd_per_day is not None or self.policies.budget.usd_per_month is not None:
            self.fleet.pay_all(now)
            spent = self.ledger.spent(now)
        day = int((self.trace.begins_at + now) // DAY_S)
        if day != self._step_day:
            self._step_day, self._step = day, None
        return view_of(
            now,
            self.trace.begins_at,
            waiting=self._in_view(),
            running=self.work.running.values(),
            nodes=self.fleet.seen(now),
            offerings=self.fleet.market.offered,
            refusals=self.fleet.refusals(now),
            quota_left=self.fleet.market.quota_left,
            spent=spent,
            budget_step=self._step,
            spent_by_project=self.fleet.spent_by_project(now),
        )

    def _do(self, now: float, action: object) -> bool:
        """Apply an action; False when it changes nothing."""
        match action:
            case Launch():
                self.fleet.launch(now, action)
            case Drain():
                return self._drain(now, action)
            case Terminate():
                if (node := self.fleet.nodes.get(action.node_id)) is None:
                    return False
                self.fleet.end(now, node)
            case Notice():
                self._tell(action)
                return False
            case _:
                return False
        return True

    def _drain(self, now: float, action: Drain) -> bool:
        node = self.fleet.nodes.get(action.node_id)
        if node is None or node.deadline_s is not None:
            return False
        self.fleet.drain(now, node, max(now, action.deadline_at - self.trace.begins_at))
        self.work.vacate(now, node, only_elastic=True)
        if not node.jobs:
            self.fleet.end(now, node)
        return True

    def _tell(self, notice: Notice) -> None:
        self.work.sims[notice.job_id].tell(notice.step)
        if notice.step is None:
            return
        order = list(BudgetStep)
        if self._step is None or order.index(notice.step) > order.index(self._step):
            self._step = notice.step


def _runs_by_the_clock(policies: Policies) -> bool:
    """True when plans depend on the time or on money, so that every look counts."""
    has_budget = policies.budget.usd_per_day is not None or policies.budget.usd_per_month is not None
    return (
        has_budget
        or counts_money(policies)
        or bool(policies.rules)
        or any(pool.schedules or pool.maintenance or pool.warm_nodes for pool in policies.pools.values())
    )

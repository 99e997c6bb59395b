"""A trace under policies, from the first job to the end of the last one.

Jobs, nodes and the market move at their own times.  The planner looks at them at most every `look_s`, and only after
something has happened that it may decide on, or when a time has come that the policies name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cluster.policies.policies import BudgetStep, Policies
from cluster.scheduling.actions import Drain, Launch, Notice, ShowMore, Terminate, Wait
from cluster.scheduling.health import remembered_s
from cluster.scheduling.money import step_reached
from cluster.scheduling.queue_order import WIDTHS, WINDOW
from cluster.scheduling.quotas import counts_money, has_quotas
from cluster.scheduling.view import ClusterView, Spending
from cluster.simulator.assumptions import Assumptions, Backoff, Planner
from cluster.simulator.empty_plans import is_plan_empty
from cluster.simulator.event_queue import EventQueue
from cluster.simulator.fleet import BLUR_S, Fleet
from cluster.simulator.jobs import SimJob
from cluster.simulator.ledger import Ledger
from cluster.simulator.planner_view import demand_of, node_view
from cluster.simulator.times import Times
from cluster.simulator.work import Work
from cluster.traces.trace import MarketChange, Trace, TraceJob

#: Events between two calls of `progress`.
PROGRESS_EVERY = 2_000

Progress = Callable[[float], None]


class Replay:
    """One run; `run` may be called once."""

    def __init__(
        self, trace: Trace, policies: Policies, planner: Planner, backoff: Backoff, assumptions: Assumptions
    ) -> None:
        self.trace = trace
        self.policies = policies
        self.ledger = Ledger(trace.begins_at)
        self.looks = 0
        self.now = 0.0
        self._planner = planner
        self._assumptions = assumptions
        self._event_queue = EventQueue()
        self.work = Work(lambda: self.fleet, trace, policies, backoff, self._event_queue)
        self.fleet = Fleet(
            trace,
            self._event_queue,
            self.ledger,
            seed=assumptions.seed,
            refused_s=assumptions.refused_s,
            remembered_s=max((pool.return_to_spot_s or 0.0 for pool in policies.pools.values()), default=0.0),
            failures_s=remembered_s(policies),
            vacate=self.work.vacate,
            projects={job.id: job.project for job in trace.jobs} if counts_money(policies) else None,
        )
        self._times = Times(trace, policies, self.fleet)
        self._arrivals = iter(trace.jobs)
        self._changes = iter(trace.changes)
        self._arrived = 0
        #: When the planner looks next.
        self._look: float | None = None
        #: When it did last.
        self._looked_s = -math.inf
        self._step: BudgetStep | None = None
        self._step_day = -1
        self._width = 1
        #: The first of those that wait holds up all others; a project's quota would hold up its own jobs only.
        self._is_strict = not has_quotas(policies)
        self._runs_by_the_clock = assumptions.asks_always or _runs_by_the_clock(policies)

    def run(self, progress: Progress | None = None) -> None:
        """Replay it; `progress` is called with the fraction of the jobs that have ended."""
        self._next_arrival(0.0)
        self._next_change(0.0)
        self._look_at(0.0)
        events = 0
        while (at_s := self._next_s()) is not None:
            self.now = at_s
            self._event_queue.act(at_s)
            if self._looks_now(at_s):
                self._plan(at_s)
                self._event_queue.act(at_s)
            self.work.dispatch(at_s)
            self._look_if_needed(at_s)
            events += 1
            if progress is not None and events % PROGRESS_EVERY == 0:
                progress(len(self.work.ended) / max(1, len(self.trace.jobs)))
        if not self._is_done:
            self.now = max(self.now, self._given_up_s)
        self.fleet.pay_all(self.now)

    def _next_s(self) -> float | None:
        """When something happens next; None: it is over.

        Jobs are given up at a time of their own: not at the next event after it, of which there are more or fewer.
        """
        at_s = self._event_queue.next_s
        if at_s is None or self._is_done:
            return None
        may_move = self._arrived < len(self.trace.jobs) or bool(self.work.running)
        return at_s if may_move or at_s <= self._given_up_s else None

    @property
    def _is_done(self) -> bool:
        return self._arrived == len(self.trace.jobs) and self.work.is_done

    @property
    def _given_up_s(self) -> float:
        """When the waiting jobs are given up if no job starts, ends or arrives before."""
        return self.work.moved_s + self._assumptions.stuck_s

    def _next_arrival(self, now: float) -> None:
        job = next(self._arrivals, None)
        if job is not None:
            self._event_queue.add(max(now, job.at_s), self._arrive, job)

    def _arrive(self, now: float, job: TraceJob) -> None:
        self._arrived += 1
        self.work.moved_s = now
        self.work.arrive(now, job)
        self._next_arrival(now)

    def _next_change(self, now: float) -> None:
        change = next(self._changes, None)
        if change is not None:
            self._event_queue.add(max(now, change.at_s), self._change, change)

    def _change(self, now: float, change: MarketChange) -> None:
        self.fleet.change(now, change)
        self._next_change(now)

    # when the planner looks

    def _look_if_needed(self, now: float) -> None:
        """Schedule the next plan: soon when its input has changed, else at the next time that the policies name."""
        if self._look is not None and self._look <= now + self._assumptions.look_s:
            return
        if self._runs_by_the_clock or self._has_news:
            self._look_at(now)
        elif (at_s := self._times.next(now, self._wanting())) < math.inf:
            self._look_at(at_s)

    def _looks_now(self, now: float) -> bool:
        """A plan is due, or its input has just changed at a time at which there may be one: a plan sees all of it."""
        if self._look == now:
            return True
        return now % self._assumptions.look_s == 0 and self._looked_s < now and self._has_news

    def _wanting(self) -> list[list[SimJob]]:
        return [self._in_view(), self.work.short.all()]

    @property
    def _has_news(self) -> bool:
        """Something has happened since the last look that a plan may depend on."""
        return self.fleet.has_changed or self.work.has_moved

    def _look_at(self, at_s: float) -> None:
        """Look at the next round time that is not before `at_s` or now, and not twice at one time."""
        pace = self._assumptions.look_s
        due = math.ceil((at_s - BLUR_S) / pace) * pace
        if due <= self._looked_s or due < self.now:
            tick = math.floor(self.now / pace) + 1
            while tick * pace <= self.now:  # a quotient of fractions may be a little too small
                tick += 1
            due = tick * pace
        if self._look is None or due < self._look:
            self._look = due
            self._event_queue.add(due, _wake, None)

    def _plan(self, now: float) -> None:
        self._look, self._looked_s = None, now
        self.fleet.has_changed = self.work.has_moved = False
        # A cloud refuses within seconds, and the service looks again at once: so does the replay, at each offering.
        for _ in range(1 + len(self.trace.offerings)):
            refused = self.fleet.refused
            self._ask(now)
            if self.fleet.refused == refused:
                break

    def _ask(self, now: float) -> None:
        self.looks += 1
        if not self._runs_by_the_clock and self._is_plan_empty(now):
            return
        at = self.trace.begins_at + now
        has_acted = False
        for width in WIDTHS:
            self._show(width)
            view = self._view(now)
            actions = self._planner(view, self.policies, at)
            if not any(isinstance(action, ShowMore) for action in actions):
                break
        self._show(1)
        self._step = step_reached(view, self.policies)
        if self.fleet.has_failures:
            self._times.see(view)
        self._times.see_late(view)
        for action in actions:
            if not isinstance(action, Wait):  # most of a plan in a crowded cluster
                has_acted |= self._do(now, action)
        if has_acted or self._runs_by_the_clock:
            self.fleet.has_changed = True

    def _is_plan_empty(self, now: float) -> bool:
        return not self.work.is_any_to_move(now) and is_plan_empty(
            self.fleet,
            self.policies,
            now,
            short=self.work.short.all(),
            waiting=self._in_view(),
            is_strict=self._is_strict,
        )

    def _in_view(self) -> list[SimJob]:
        """Waiting jobs that are in the planner's view, next one first.

        With quotas the first ones of every project, as in the service: those of one do not hide another's.
        """
        waiting = self.work.waiting
        return waiting.first(len(waiting) if self.work.counts_projects else self._width * WINDOW)

    def _show(self, width: int) -> None:
        """Show plans `width` times as many of the waiting jobs as usual, as the service does."""
        self._width = width
        self.work.waiting.show(width)

    def _view(self, now: float) -> ClusterView:
        """The values that the service builds from its rows.

        Jobs and nodes that have not changed are reused from the view before: few of them change from plan to plan.
        """
        spent, begins_at = Spending(), self.trace.begins_at
        if self.policies.budget.usd_per_day is not None or self.policies.budget.usd_per_month is not None:
            self.fleet.pay_all(now)
            spent = self.ledger.spent(now)
        waiting = self._in_view()
        if (day := self.ledger.day_of(now)) != self._step_day:
            self._step_day, self._step = day, None
        jobs = (*waiting, *self.work.running.values())
        return ClusterView(
            now=begins_at + now,
            jobs=tuple([sim.seen or demand_of(sim, now, begins_at) for sim in jobs]),
            nodes=tuple([node_view(node, begins_at) for node in self.fleet.seen(now)]),
            offerings=self.fleet.market.offered,
            refusals=tuple(self.fleet.refusals(now)),
            quota_left=self.fleet.market.quota_left,
            spent=spent,
            spent_by_project=self.fleet.spent_by_project(now),
            budget_step=self._step,
            strict_order=True,
            cut_at=self.work.waiting.cut_at(waiting),
            start_up_s=self.trace.provisioning_s,
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
                self.fleet.end(now, node, action.is_failure)
            case Notice():
                self.work.sims[action.job_id].notice_step(action.step)
                return False
            case _:
                return False
        return True

    def _drain(self, now: float, action: Drain) -> bool:
        node = self.fleet.nodes.get(action.node_id)
        if node is None or node.deadline_s is not None:
            return False
        if node.jobs:
            self.fleet.drain(now, node, max(now, action.deadline_at - self.trace.begins_at))
            self.work.vacate(now, node, only_elastic=True)
        if not node.jobs:
            self.fleet.end(now, node)
        return True


def _wake(now: float, what: None) -> None:
    """An event without an effect, at which the replay checks whether a plan is due."""


def _runs_by_the_clock(policies: Policies) -> bool:
    """True when plans depend on the time or on money, so that every look counts."""
    has_budget = policies.budget.usd_per_day is not None or policies.budget.usd_per_month is not None
    return (
        has_budget
        or counts_money(policies)
        or bool(policies.rules)
        or any(pool.schedules or pool.maintenance or pool.warm_nodes for pool in policies.pools.values())
    )

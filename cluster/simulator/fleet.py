"""The nodes of a replay: bought, ready, taken by the cloud, returned, and paid for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from random import Random

from cluster.policies.offerings import CapacityType
from cluster.scheduling.actions import Launch
from cluster.scheduling.view import ENDED, Refusal, Spending
from cluster.simulator.event_queue import EventQueue
from cluster.simulator.ledger import Ledger
from cluster.simulator.market import SimulatedMarket
from cluster.simulator.nodes import SimNode
from cluster.traces.trace import MarketChange, Trace
from remora.states import NodeState

#: Seconds for which a view remembers nodes that ended, and refusals that are over, where nothing asks for more.
MEMORY_S = 900.0
#: Seconds by which a time may be off: views count from 1970, which leaves about a microsecond of accuracy.
BLUR_S = 1e-3


class Fleet:
    """All nodes; `vacate` is called with every node whose jobs have to leave it, before it ends.

    Refusals are remembered for `remembered_s` after their end, so that policies can wait until an offering stays
    available, and nodes that failed for `failures_s`, as they slow their pool down. `projects` by job id is passed
    where it counts what they spend.
    """

    def __init__(
        self,
        trace: Trace,
        event_queue: EventQueue,
        ledger: Ledger,
        *,
        seed: int,
        refused_s: float,
        remembered_s: float = MEMORY_S,
        failures_s: float = MEMORY_S,
        vacate: Callable[[float, SimNode], None],
        projects: Mapping[str, str] | None = None,
    ) -> None:
        self.market = SimulatedMarket(trace.offerings, trace.changes, trace.quotas)
        self.nodes: dict[str, SimNode] = {}
        #: All nodes that were ever bought, in that order.
        self.every: list[SimNode] = []
        #: Ready nodes on which something is free, those of them with capacity for a worker of some job of the trace,
        #: and those that are empty.
        self.partly_free: dict[str, SimNode] = {}
        self.with_capacity: dict[str, SimNode] = {}
        self.idle: dict[str, SimNode] = {}
        #: Nodes that start or are drained.
        self.changing: dict[str, SimNode] = {}
        #: On-demand nodes.
        self.on_demand: dict[str, SimNode] = {}
        #: Nodes by pool that are ready or start.
        self.have: Counter[str] = Counter()
        self.preemptions = 0
        self.launches = 0
        self.refused = 0
        #: True when something happened that a plan may depend on.
        self.has_changed = False
        #: True when more has become free on ready nodes; `Work.dispatch` resets it.
        self.has_freed_capacity = False
        self._ended: deque[SimNode] = deque()
        self._failed: deque[SimNode] = deque()
        self._refusals: dict[str, Refusal] = {}
        self._random = Random(f"{seed} cloud")  # noqa: S311 - chance, no secret
        self._event_queue = event_queue
        self._ledger = ledger
        self._begins_at = trace.begins_at
        self._provisioning_s = trace.provisioning_s
        self._refused_s = refused_s
        self._remembered_s = max(MEMORY_S, remembered_s)
        self._failures_s = max(MEMORY_S, failures_s)
        self._vacate = vacate
        self._projects = projects
        self._least = least_of(trace)

    def launch(self, now: float, action: Launch) -> None:
        """Buy a node, or remember that there is none or that its quota has no capacity."""
        stock = self.market.stocks[action.offering]
        has_quota = self.market.has_quota(stock.offering)
        if not (stock.is_available and has_quota):
            self.refused += 1
            until = self._begins_at + now + self._refused_s
            reason = (
                f"there is no {action.offering} now"
                if has_quota
                else f"the quota {stock.offering.quota} has no capacity for one more {action.offering}"
            )
            known = self._refusals.get(action.offering)
            if known is None or (known.until, known.reason) != (until, reason):  # many launches, one answer
                self._refusals[action.offering] = Refusal(
                    offering=action.offering, until=until, reason=reason
                )
            return
        self.launches += 1
        stock.held += 1
        free = dict(stock.offering.resources)
        node = SimNode(
            number=self.launches,
            pool=action.pool,
            stock=stock,
            created_s=now,
            price_per_hour=stock.price_per_hour,
            free=free,
            fabric=action.fabric,
            bought_for=action.job_id,
            project=None if self._projects is None else self._projects.get(action.job_id or ""),
            paid_until=now,
        )
        self.nodes[node.id] = self.changing[node.id] = node
        self.have[node.pool] += 1
        if stock.offering.capacity is CapacityType.ON_DEMAND:
            self.on_demand[node.id] = node
        self.every.append(node)
        self._event_queue.add(now + self._provisioning_s, self._ready, node)
        rate = stock.offering.evictions_per_hour / 3600
        if (
            rate > 0
            and stock.offering.capacity is CapacityType.SPOT
            and action.offering not in self.market.traced
        ):
            self._event_queue.add(now + self._random.expovariate(rate), self._take, node)

    def _ready(self, now: float, node: SimNode) -> None:
        if node.state is NodeState.LAUNCHED:
            node.state = NodeState.READY
            node.ready_s = node.idle_since = now
            node.seen = None
            del self.changing[node.id]
            self.partly_free[node.id] = self.with_capacity[node.id] = self.idle[node.id] = node
            self.has_changed = self.has_freed_capacity = True

    def change(self, now: float, change: MarketChange) -> None:
        """Apply a change of the market; what is held beyond it is preempted."""
        stock = self.market.stocks[change.offering]
        held = [node for node in self.nodes.values() if node.stock is stock] if stock.held else []
        if change.price_per_hour is not None:
            for node in held:
                self._ledger.pay(node, now)
        self.market.change(change)
        self.has_changed = True
        for node in self._random.sample(held, stock.surplus):
            self._take(now, node)

    def _take(self, now: float, node: SimNode) -> None:
        """The cloud preempts a node."""
        if node.state not in ENDED:
            self.preemptions += 1
            self.end(now, node)

    def drain(self, now: float, node: SimNode, deadline_s: float) -> None:
        """Give it no more work, and end it at the deadline or once it is empty."""
        if node.state in ENDED or node.state is NodeState.DRAINING:
            return
        node.state = NodeState.DRAINING
        node.deadline_s = deadline_s
        node.leaving_since = now
        node.seen = None
        self.have[node.pool] -= 1
        self.changing[node.id] = node
        self.partly_free.pop(node.id, None)
        self.with_capacity.pop(node.id, None)
        self.idle.pop(node.id, None)
        self._event_queue.add(max(now, deadline_s), self.end, node)

    def end(self, now: float, node: SimNode, is_failure: bool = False) -> None:
        """End a node now, whatever runs on it, as gone or as failed; ending it again does nothing."""
        if node.state in ENDED:
            return
        self._vacate(now, node)
        self._ledger.pay(node, now)
        if node.state is not NodeState.DRAINING:
            self.have[node.pool] -= 1
        node.state = NodeState.FAILED if is_failure else NodeState.GONE
        node.ended_s = now
        node.seen = None
        node.leaving_since = now if node.leaving_since is None else node.leaving_since
        node.stock.held -= 1
        del self.nodes[node.id]
        self.changing.pop(node.id, None)
        self.on_demand.pop(node.id, None)
        self.partly_free.pop(node.id, None)
        self.with_capacity.pop(node.id, None)
        self.idle.pop(node.id, None)
        (self._failed if is_failure else self._ended).append(node)
        self.has_changed = True

    def take(self, node: SimNode, job_id: str, workers: int, worker: Mapping[str, float]) -> None:
        """Put workers of a job on a node."""
        node.take(job_id, workers, worker)
        self.idle.pop(node.id, None)
        if self._is_full(node):
            self.with_capacity.pop(node.id, None)
            if all(amount <= 1e-9 for amount in node.free.values()):
                self.partly_free.pop(node.id, None)

    def give_back(
        self,
        now: float,
        node: SimNode,
        job_id: str,
        worker: Mapping[str, float],
        workers: int | None = None,
    ) -> None:
        """Remove a job's workers (None: all) from a node; one that is drained ends when it is empty."""
        node.give_back(job_id, worker, now, workers)
        if node.state is NodeState.READY:
            self.partly_free[node.id] = node
            if not self._is_full(node):
                self.with_capacity[node.id] = node
            if not node.jobs:
                self.idle[node.id] = node
            self.has_freed_capacity = True
        elif node.state is NodeState.DRAINING and not node.jobs:
            self._event_queue.add(now, self.end, node)

    def may_buy(self, capacity: CapacityType, now: float) -> bool:
        """False when each offering of the type is refused now, or its quota has no capacity."""
        at = self._begins_at + now
        return any(
            (name not in self._refusals or self._refusals[name].until <= at)
            and self.market.has_quota(stock.offering)
            for name, stock in self.market.stocks.items()
            if stock.offering.capacity is capacity
        )

    def may_have(self, capacity: CapacityType, now: float, for_s: float = 0.0) -> bool:
        """False when each offering of the type was refused within the last `for_s`, or is refused now."""
        since = self._begins_at + now - for_s
        return any(
            name not in self._refusals or self._refusals[name].until <= since
            for name, stock in self.market.stocks.items()
            if stock.offering.capacity is capacity
        )

    def _is_full(self, node: SimNode) -> bool:
        for (
            name,
            amount,
        ) in self._least.items():  # asked twice for every worker group: a loop is half of any()
            if node.free.get(name, 0.0) / amount + 1e-9 < 1:
                return True
        return not self._least and all(amount <= 1e-9 for amount in node.free.values())

    def pay_all(self, now: float) -> None:
        """Settle every node."""
        for node in self.nodes.values():
            self._ledger.pay(node, now)

    def spent_by_project(self, now: float) -> dict[str, Spending]:
        """USD of this day and month; nothing where it is not counted."""
        if self._projects is None:
            return {}
        self.pay_all(now)
        return self._ledger.spent_by_project(now)

    def day_of(self, now: float) -> int:
        """Days since 1970 (UTC), in which projects' money is counted."""
        return self._ledger.day_of(now)

    def bought(self, pool: str, now: float, within_s: float) -> Iterator[SimNode]:
        """Nodes of a view that were bought for the pool within the last `within_s`, newest first."""
        for node in reversed(self.every):
            if node.created_s < now - within_s:
                return
            if node.pool == pool and (node.ended_s is None or node.ended_s >= now - self.memory_s(node)):
                yield node

    def left(self, pool: str, now: float, within_s: float) -> Iterator[SimNode]:
        """Nodes of a view that left the pool within the last `within_s`, by themselves or not, or began to."""
        for node in (*self._failed, *self._ended, *self.changing.values()):
            since_s = node.leaving_since
            is_seen = node.ended_s is None or node.ended_s >= now - self.memory_s(node)
            if node.pool == pool and is_seen and since_s is not None and since_s > now - within_s:
                yield node

    def seen(self, now: float) -> list[SimNode]:
        """Nodes of a view: those that are there, and those that ended lately."""
        for ended in (self._failed, self._ended):
            while ended and (ended[0].ended_s or 0.0) < now - self.memory_s(ended[0]):
                ended.popleft()
        return [*self._failed, *self._ended, *self.nodes.values()]

    def memory_s(self, node: SimNode) -> float:
        """Seconds for which a view holds the node after its end."""
        return self._failures_s if node.state is NodeState.FAILED else MEMORY_S

    def failures_end(self) -> list[float]:
        """When a view forgets each node that failed."""
        return [(node.ended_s or 0.0) + self.memory_s(node) for node in self._failed]

    @property
    def has_failures(self) -> bool:
        """A view holds nodes that failed."""
        return bool(self._failed)

    def refusals(self, now: float) -> list[Refusal]:
        """Refusals of a view: those in force, and those that were lately."""
        at = self._begins_at + now
        oldest = at - self._remembered_s - BLUR_S
        self._refusals = {name: one for name, one in self._refusals.items() if one.until > oldest}
        return list(self._refusals.values())

    def refusals_end(self) -> list[float]:
        """When each refusal that is remembered ends or ended."""
        return [one.until - self._begins_at for one in self._refusals.values()]


def least_of(trace: Trace) -> dict[str, float]:
    """Of each resource that every worker of a trace needs, the least that one of them needs.

    Where an offering lacks a resource that a job names, what is free of the others may show the queue how much of it
    there is, so that every node is of interest: the answer is empty.
    """
    shapes = [dict(shape) for shape in {tuple(job.resources.items()) for job in trace.jobs}]
    names = {name for shape in shapes for name in shape}
    if any(names - set(offering.resources) for offering in trace.offerings):
        return {}
    return {name: least for name in names if (least := min(shape.get(name, 0.0) for shape in shapes)) > 0}

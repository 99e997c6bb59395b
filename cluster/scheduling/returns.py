"""Nodes that are returned to the cloud: the budget is spent, a limit is exceeded, or they are unused (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cluster.policies.offerings import CapacityType
from cluster.policies.policies import BudgetStep
from cluster.scheduling.actions import Drain, Terminate, Wait
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.drains import Losses, cheapest, workers_on
from cluster.scheduling.formatting import clock, count
from cluster.scheduling.free_capacity import Space
from cluster.scheduling.limits import pace_left
from cluster.scheduling.money import MEANING
from cluster.scheduling.view import NodeView

Usable = Mapping[str, list[NodeView]]


class Returns:
    """Decides which nodes go before jobs are placed, and which unused ones go afterwards."""

    def __init__(self, context: PlanningContext) -> None:
        self._context = context
        self.actions: list[Terminate | Drain] = []
        self._waits: list[Wait] = []
        self._kept: list[Wait] = []
        #: Nodes that the plan returns, by id.
        self._gone: dict[str, NodeView] = {}
        self._left = {
            pool: pace_left(policy.shrink_per_minute, self._leaving_since(pool), context.now)
            for pool, policy in context.policies.pools.items()
        }

    def _leaving_since(self, pool: str) -> Iterable[float]:
        unwell = self._context.view.unwell_of.get(pool, ())
        return [node.leaving_since for node in unwell if node.leaving_since is not None]

    @property
    def waits(self) -> list[Wait]:
        """Why other nodes are not returned."""
        return [*self._waits, *self._kept]

    @property
    def all_stay(self) -> bool:
        """The plan so far returns no node."""
        return not self._gone

    @property
    def held(self) -> Mapping[str, int]:
        """Workers on usable nodes that the plan so far keeps, by job id; a job without any may be missing."""
        held = self._context.held
        if self._gone:
            held = dict(held)
            for job_id, workers in workers_on(self._gone.values()).items():
                held[job_id] -= workers
        return held

    def staying(self, nodes: list[NodeView]) -> list[NodeView]:
        """Those of the nodes that the plan so far keeps."""
        return [node for node in nodes if node.id not in self._gone] if self._gone else nodes

    def give_back(self, node: NodeView, reason: str) -> None:
        """Return a node: one that may have been given work is drained with a deadline, any other is ended."""
        self._gone[node.id] = node
        policy = self._context.policies.pools[node.pool]
        if node.may_work:
            deadline_at = self._context.now + policy.drain_s
            self.actions.append(Drain(node_id=node.id, deadline_at=deadline_at, reason=reason))
        else:
            self.actions.append(Terminate(node_id=node.id, reason=reason))

    def may_return(self, pool: str) -> bool:
        """The pace of the pool allows one more return now."""
        return self._left[pool] > 0

    def give_back_one(self, node: NodeView, reason: str) -> None:
        """Return a node that counts for the pace."""
        self._left[node.pool] -= 1
        self.give_back(node, reason)

    def out_of_money(self, usable: Usable) -> None:
        """Carry out the steps of the budget, mildest first; nodes that cost nothing stay."""
        money = self._context.money
        if money.step is None:
            return
        reason = f"the budget has reached {money.step} ({money.ends}): {money.words}"
        self._waits.extend(
            Wait(pool=pool, reason=f"{reason}; {MEANING[money.step]}") for pool in self._costly_pools()
        )
        for pool, nodes in usable.items():
            paid = [node for node in nodes if self._context.price_of(node) > 0]
            if money.reached(BudgetStep.PAUSE):
                for node in paid:
                    self.give_back(node, reason)
                continue
            spare = max(0, len(nodes) - self._context.limits[pool].min_nodes)
            if money.reached(BudgetStep.SPOT_ONLY):
                on_demand = self._context.paid_as(paid, CapacityType.ON_DEMAND)
                spare -= self._drain_some(on_demand, spare, reason)
            if money.reached(BudgetStep.SHRINK):
                spare -= self._drain_some(self.staying(paid), spare, reason, keep_minimum=True)
                if (stay := min(spare, len(self.staying(paid)))) > 0:
                    stays, them = ("stays", "it") if stay == 1 else ("stay", "them")
                    why = f"without {them} jobs would have fewer workers than their smallest group"
                    said = f"{count(stay, 'node')} more would go, and {stays}: {why}"
                    self._waits.append(Wait(pool=pool, reason=said))

    def _costly_pools(self) -> list[str]:
        """Pools whose nodes cost something."""
        sold = self._context.sold
        return [
            pool
            for pool in self._context.limits
            if any(offering.price_per_hour > 0 for one in CapacityType for offering in sold(pool, one))
        ]

    def _drain_some(
        self, nodes: list[NodeView], number: int, reason: str, *, keep_minimum: bool = False
    ) -> int:
        """Return up to `number` nodes, those that cost least work; the result is how many."""
        losses = Losses(self._context.jobs, self._context.held, self._context.now)
        for node in self._gone.values():
            losses.drain(node)
        chosen = cheapest(nodes, losses, number, keep_minimum=keep_minimum)
        for node in chosen:
            self.give_back(node, reason)
        return len(chosen)

    def above_limits(self, usable: Usable) -> None:
        """Return nodes above a pool's limit: those that start, then unused ones, then those that cost least work."""
        for pool, nodes in usable.items():
            limits = self._context.limits[pool]
            if len(nodes) <= limits.max_nodes:
                continue
            staying = self.staying(nodes)
            surplus = len(staying) - limits.max_nodes
            if surplus <= 0:
                continue
            if self._held_up(pool, surplus):
                continue
            number = min(surplus, self._left[pool])
            allowed = f"{limits.max_nodes} {'is' if limits.max_nodes == 1 else 'are'} allowed"
            reason = (
                f"pool {pool!r} has {count(len(staying), 'node')}, {allowed} by max_nodes of the policies"
            )
            self._left[pool] -= self._drain_some(staying, number, reason)
            if number < surplus:
                self._pace(pool, surplus - number)

    def _held_up(self, pool: str, number: int) -> bool:
        """Maintenance keeps the pool's nodes where they are."""
        until = self._context.limits[pool].maintenance_until
        if until is not None:
            reason = f"{count(number, 'node')} too many stay until the maintenance ends at {clock(until)}"
            self._waits.append(Wait(pool=pool, reason=reason))
        return until is not None

    def _pace(self, pool: str, number: int) -> None:
        pace = self._context.policies.pools[pool].shrink_per_minute
        reason = f"{count(number, 'node')} more go later: at most {pace:g} a minute are returned"
        self._waits.append(Wait(pool=pool, reason=reason))

    def unused(self, space: Space) -> bool:
        """Return unused nodes: the longest unused first, expensive before cheap.  True when a node was returned."""
        before = len(self.actions)
        self._kept.clear()
        free: dict[str, list[NodeView]] = {pool: [] for pool in self._context.policies.pools}
        used = Counter[str]()
        for bin_ in space.others:
            # A node that still starts does not replace one that is ready: it may never join.
            if bin_.node is None or not bin_.node.is_member:
                continue
            if bin_.is_used:
                used[bin_.pool] += 1
            else:
                free[bin_.pool].append(bin_.node)
        if any(free.values()):
            used.update(node.pool for node in space.at_work if node.is_member)
        for pool, nodes in free.items():
            if not nodes:
                continue
            limits = self._context.limits[pool]
            keep = max(limits.min_nodes, min(used[pool] + self._warm(pool), limits.max_nodes))
            surplus = max(0, used[pool] + len(nodes) - keep)
            self._return_unused(pool, self.staying(nodes), surplus)
        return len(self.actions) > before

    def _warm(self, pool: str) -> int:
        stopped = self._context.money.reached(BudgetStep.STOP_GROWING)
        return 0 if stopped else self._context.limits[pool].warm_nodes

    def _return_unused(self, pool: str, free: list[NodeView], surplus: int) -> None:
        policy, now = self._context.policies.pools[pool], self._context.now
        idle = sorted(
            free,
            key=lambda n: (n.idle_since is None, n.idle_since or 0.0, -self._context.price_of(n), n.id),
        )
        for node in idle[surplus:]:
            if node.idle_since is not None:
                self._waits.append(
                    Wait(node_id=node.id, reason="it is unused, and kept ready by its pool's limits")
                )
        for node in idle[:surplus]:
            if node.idle_since is None:
                reason = "it is not needed any more; it goes once it has been unused for long enough"
            elif now - node.idle_since < policy.idle_s:
                reason = f"it is unused, and goes at {clock(node.idle_since + policy.idle_s)} if it still is"
            elif (until := self._context.limits[pool].maintenance_until) is not None:
                reason = f"it is unused, and stays until the maintenance ends at {clock(until)}"
            elif self._left[pool] <= 0:
                reason = f"it is unused, and goes later: at most {policy.shrink_per_minute:g} a minute are returned"
            else:
                self._left[pool] -= 1
                self.give_back(node, f"it has been unused for {now - node.idle_since:.0f} s")
                continue
            self._kept.append(Wait(node_id=node.id, reason=reason))

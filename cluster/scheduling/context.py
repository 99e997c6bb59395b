"""The input of one plan, indexed: a view of the cluster under a version of the policies at one moment (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from cluster.lazy_property import lazy
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling import keeping
from cluster.scheduling.drains import workers_on
from cluster.scheduling.fitting import slots
from cluster.scheduling.health import closed_offerings, silent_zones
from cluster.scheduling.limits import Limits, limits_of
from cluster.scheduling.money import Money, money_of
from cluster.scheduling.pool_sizes import PoolSize, complete_pools
from cluster.scheduling.slack import may_rely_on_spot, may_return, should_move, urgent_among
from cluster.scheduling.view import ClusterView, JobDemand, NodeView


class PlanningContext:
    """One view under one version of the policies at one moment, with what several parts of a plan compute from it."""

    def __init__(self, view: ClusterView, policies: Policies, now: float) -> None:
        self.view = view
        self.policies = policies
        self.now = now
        self.limits: dict[str, Limits] = {
            name: limits_of(policy, now) for name, policy in policies.pools.items()
        }
        self.offerings: dict[str, Offering] = {offering.id: offering for offering in view.offerings}
        self._closed: dict[str, dict[str, float]] = {}
        self._sold: dict[tuple[str, CapacityType], list[Offering]] = {}
        self._capacities = {name: offering.capacity for name, offering in self.offerings.items()}
        self.money: Money = money_of(view, policies, self.offerings)

    @lazy
    def jobs(self) -> Mapping[str, JobDemand]:
        """All jobs by id."""
        return {job.id: job for job in self.view.jobs}

    @lazy
    def usable(self) -> Mapping[str, list[NodeView]]:
        """Nodes that can take work, by pool of the policies; a pool without any is missing."""
        unwell = self.view.unwell_of
        usable = {
            pool: [node for node in nodes if node.is_usable] if pool in unwell else nodes
            for pool, nodes in self.view.nodes_of.items()
            if pool in self.limits
        }
        return {pool: nodes for pool, nodes in usable.items() if nodes}

    @lazy
    def held(self) -> Mapping[str, int]:
        """Workers on these nodes, by job id."""
        return workers_on(chain.from_iterable(self.usable.values()))

    def paid_as(self, nodes: Iterable[NodeView], capacity: CapacityType) -> list[NodeView]:
        """Those of the nodes that are of this capacity type."""
        capacities = self._capacities
        return [node for node in nodes if capacities.get(node.offering) is capacity]

    @lazy
    def refused(self) -> Mapping[str, float]:
        """Until when each offering is refused, by its id; only those that are refused now."""
        until: dict[str, float] = {}
        for refusal in self.view.refusals:
            if refusal.until > self.now:
                until[refusal.offering] = max(refusal.until, until.get(refusal.offering, 0.0))
        return until

    def closed(self, pool: str) -> Mapping[str, float]:
        """Until when the pool buys none of an offering, by its id, as its nodes failed again and again.

        An offering that costs nothing is bought all the same.
        """
        if pool not in self._closed:
            priced = {name for name, offering in self.offerings.items() if offering.price_per_hour > 0}
            join_timeout_s = self.policies.pools[pool].join_timeout_s
            found = closed_offerings(self.view, pool, join_timeout_s, self.now)
            self._closed[pool] = {name: until for name, until in found.items() if name in priced}
        return self._closed[pool]

    @lazy
    def available_since(self) -> Mapping[str, float]:
        """When the last refusal of an offering ended, by its id; what was never refused is missing."""
        since: dict[str, float] = {}
        for refusal in self.view.refusals:
            since[refusal.offering] = max(refusal.until, since.get(refusal.offering, float("-inf")))
        return since

    def has_quota(self, offering: Offering) -> bool:
        """The cloud's quota had capacity for one more of it when this plan began."""
        left = self.view.quota_left.get(offering.quota.lower())
        return left is None or left >= offering.quota_units

    def sold(self, pool: str, capacity: CapacityType) -> list[Offering]:
        """What the pool may buy of a capacity type: its sizes in order, and each in its zones in order.

        Zones with little chance come after a size's others: the cloud has hardly any capacity there, or nodes that were
        made there did not join.  Sizes that the policy calls equal count as one, of which those come first that the
        cloud takes back least often.
        """
        key = (pool, capacity)
        if key not in self._sold:
            policy = self.policies.pools[pool]
            rank = {
                (size, None if zone == "any" else zone): at
                for at, (size, zone) in enumerate((s, z) for s in policy.sizes for z in policy.zones)
            }
            mine = [o for o in self.view.offerings if o.capacity is capacity and (o.size, o.zone) in rank]
            sizes = {size: at for at, size in enumerate(policy.sizes)}
            silent, are_equal = self._silent_zones, policy.sizes_are_equal
            self._sold[key] = sorted(
                mine,
                key=lambda o: (
                    0 if are_equal else sizes[o.size],
                    o.zone in silent,
                    o.is_scarce,
                    o.evictions_per_hour if are_equal else 0.0,
                    rank[o.size, o.zone],
                ),
            )
        return self._sold[key]

    def why_before_others(self, pool: str, offering: Offering) -> str:
        """Why it is bought before a size that precedes its own in the policy; empty where there is no such size.

        Sizes that the cloud refuses now, or that are closed, do not count.
        """
        policy = self.policies.pools[pool]
        if not policy.sizes_are_equal or offering.capacity is not CapacityType.SPOT:
            return ""
        earlier = policy.sizes[: policy.sizes.index(offering.size)]
        sold = self.sold(pool, CapacityType.SPOT)
        for other in sold[sold.index(offering) + 1 :]:
            is_as_likely = other.is_scarce == offering.is_scarce and (
                (other.zone in self._silent_zones) == (offering.zone in self._silent_zones)
            )
            is_open = other.id not in self.refused and other.id not in self.closed(pool)
            if other.size in earlier and is_as_likely and is_open:
                rates = f"{_percent(offering)} an hour, {_percent(other)} of {other.size}"
                return f"as the cloud takes back {offering.size} less often: {rates}"
        return ""

    @lazy
    def _silent_zones(self) -> frozenset[str]:
        return silent_zones(self.view, self._zone_of, self.now)

    def _zone_of(self, node: NodeView) -> str | None:
        offering = self.offering_of(node)
        return None if offering is None else offering.zone

    def offering_of(self, node: NodeView) -> Offering | None:
        """What the node was bought as, when it is known."""
        return self.offerings.get(node.offering)

    def price_of(self, node: NodeView) -> float:
        """USD for an hour of the node; 0 when its offering is not known."""
        offering = self.offering_of(node)
        return 0.0 if offering is None else offering.price_per_hour

    def waited_s(self, job: JobDemand) -> float:
        """Seconds that the job has had fewer workers than it can use."""
        return max(0.0, self.now - job.waits_since)

    def is_urgent(self, job: JobDemand) -> bool:
        """Only on-demand nodes are bought for it: with spot its deadline could be missed."""
        if job.deadline_at is None:
            return False
        return not may_rely_on_spot(job, self.now, self.view.start_up_s, self._ready_in_s(job))

    def is_sold_on_demand(self, job: JobDemand, pools: Iterable[str]) -> bool:
        """Some of the pools may buy on-demand nodes for the job."""
        if job.placement.capacity is CapacityRule.SPOT:
            return False
        known = self.policies.pools
        return any(pool in known and known[pool].capacity is not CapacityRule.SPOT for pool in pools)

    @lazy
    def complete_pools(self) -> Mapping[str, PoolSize]:
        """What each pool has when it is complete, by its limits now."""
        sizes = complete_pools(
            self.policies, self.view.offerings, lambda pool: limits_of(pool, self.now).max_nodes
        )
        return {size.name: size for size in sizes}

    @lazy
    def urgent(self) -> frozenset[str]:
        """Jobs that wait and come before others of their priority, as in the queue."""
        return urgent_among(self.view.jobs, self.now, self.view.start_up_s)

    def keeps_off_free_spot(self, job: JobDemand) -> bool:
        """It does not even start on spot nodes that are ready."""
        return not may_rely_on_spot(job, self.now, self.view.start_up_s, 0.0)

    def may_be_kept(self, node: NodeView) -> bool:
        """The node is reserved for the job that it was bought for, until that job has been placed."""
        return keeping.may_be_kept(node, self.now, self.view.start_up_s)

    def _ready_in_s(self, job: JobDemand) -> float:
        """When the nodes are ready that were bought for it, or would be that are bought now."""
        own = self._starting_for.get(job.id, ())
        if sum(slots(node.resources, job.worker_resources) for node in own) < job.min_workers:
            return self.view.start_up_s
        return max(max(0.0, node.created_at + self.view.start_up_s - self.now) for node in own)

    @lazy
    def _starting_for(self) -> Mapping[str, list[NodeView]]:
        """Nodes without work that were bought for each job, those that are ready among them."""
        found: dict[str, list[NodeView]] = {}
        for node in chain.from_iterable(self.usable.values()):
            if node.bought_for is not None and not node.jobs:
                found.setdefault(node.bought_for, []).append(node)
        return found

    @lazy
    def movers(self) -> Mapping[str, int]:
        """Jobs that should move from spot to on-demand nodes, with the number of workers on spot."""
        jobs = [
            job
            for job in self.view.jobs
            if job.is_running
            and job.deadline_at is not None
            and not job.placement.needs_fabric
            and self.is_sold_on_demand(job, job.placement.pools or self.policies.pools)
            and should_move(job, self.now, self.view.start_up_s)
        ]
        if not jobs:
            return {}
        on_spot = workers_on(self.paid_as(chain.from_iterable(self.usable.values()), CapacityType.SPOT))
        return {
            job.id: on_spot[job.id]
            for job in jobs
            # Its on-demand nodes hold its smallest group: it goes on whatever happens to the rest.
            if on_spot.get(job.id) and self.held.get(job.id, 0) - on_spot[job.id] < job.min_workers
        }

    def may_return(self, job: JobDemand) -> bool:
        """It may leave on-demand nodes for spot."""
        return may_return(job, self.now, self.view.start_up_s)


def _percent(offering: Offering) -> str:
    return f"{100 * offering.evictions_per_hour:g} %"

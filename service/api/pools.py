"""Node pools as they are now: limits, nodes, and what the newest plan does not do for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies, PoolPolicy
from cluster.scheduling.limits import limits_of
from cluster.scheduling.refusals import taken_back
from cluster.scheduling.view import Refusal
from remora.states import NodeState
from remora.views import Page, Pool, PoolWait, RefusedOffering, SoldOffering
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.hidden_job_ids import ForeignJobs
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.writes import Noted, write
from service.policies_in_force import policies_in_force
from service.queue.full_pools import kept_full
from service.queue.market import may_buy
from service.queue.rows import WaitKind
from service.store import spending
from service.store.nodes import count_nodes
from service.store.policies import newest_market
from service.store.waits import waits_of

router = APIRouter(prefix="/v1/pools")


@router.get("", operation_id="list_pools", response_model=Page[Pool])
async def list_pools(request: Request, _: Annotated[Parameters, Query()]) -> Page[Pool]:
    """Pools of the policies in the order in which they stand there, then removed ones that still have nodes."""
    context = context_of(request)
    settings, now, access = context.settings, context.clock(), access_of(request)

    def work(connection: sa.Connection) -> list[Pool]:
        shown = ForeignJobs(connection, access).pool
        policies = policies_in_force(connection, settings)
        if settings.cloud == "local":
            policies = kept_full(policies, now)
        counts = count_nodes(connection)
        waits: defaultdict[str, list[PoolWait]] = defaultdict(list)
        for row in waits_of(connection, WaitKind.POOL):
            waits[row.about].append(PoolWait(reason=row.reason, since=row.since))
        removed = sorted(counts.keys() - policies.pools.keys())
        market = _Market.read(connection, policies, now)
        return [
            shown(_view(name, policies, now, counts.get(name, {}), waits[name], market))
            for name in (*policies.pools, *removed)
        ]

    return Page[Pool](items=await context.database.read(work))


@router.post("/{pool}/reopen", operation_id="reopen_pool", response_model=Pool)
async def reopen_pool(request: Request, pool: str, _: Annotated[Parameters, Query()]) -> Pool:
    """Take back what has closed offerings to a pool: it asks for them again at the controller's next tick."""
    context = context_of(request)
    settings, now = context.settings, context.clock()

    def work(connection: sa.Connection, noted: Noted) -> Pool:
        policies = policies_in_force(connection, settings)
        if pool not in policies.pools:
            raise ApiProblem(
                404,
                "pool_not_found",
                f"there is no pool {pool[:80]!r}",
                hint="`remora pools` shows which are",
            )
        noted.before = {"reopened_at": spending.reopenings(connection).get(pool)}
        spending.reopen(connection, pool, now)
        noted.object, noted.after = pool, {"reopened_at": now}
        market = _Market.read(connection, policies, now)
        return _view(pool, policies, now, count_nodes(connection).get(pool, {}), [], market)

    return await write(request, work)


@dataclass(frozen=True)
class _Market:
    """What is sold and what is refused, and when which pools were reopened."""

    #: By cluster: when it was recorded, and what it is.
    sold: Mapping[str, tuple[float, Sequence[Offering]]]
    refusals: Mapping[str, tuple[Refusal, ...]]
    reopened: Mapping[str, float]

    @classmethod
    def read(cls, connection: sa.Connection, policies: Policies, now: float) -> _Market:
        """As it is now; some statements for each cluster."""
        sold = {cluster: newest_market(connection, cluster) for cluster in policies.clusters}
        return cls(sold, spending.refusals_by_cluster(connection, now), spending.reopenings(connection))

    def sold_to(self, policy: PoolPolicy, refused: Sequence[RefusedOffering]) -> list[SoldOffering]:
        """What the pool may buy, of which `refused` is closed."""
        until = {one.offering: one.until for one in refused}
        return [
            SoldOffering(
                offering=one.id,
                price_per_hour=one.price_per_hour,
                is_price_assumed=one.is_price_assumed,
                evictions_per_hour=one.evictions_per_hour if one.capacity is CapacityType.SPOT else None,
                closed_until=until.get(one.id),
            )
            for one in self.sold.get(policy.cluster, (0.0, ()))[1]
            if may_buy(policy, one.id)
        ]

    def recorded_at(self, cluster: str) -> float | None:
        """When what the cluster's cloud sells was recorded; None: it was not yet."""
        return self.sold.get(cluster, (0.0, ()))[0] or None

    def to(self, pool: str, policies: Policies, now: float) -> list[RefusedOffering]:
        """What the pool could buy and is refused; the controller may not have seen yet what was taken back."""
        cluster = policies.pools[pool].cluster
        refused = self.refusals.get(cluster, ())
        sizes = {one.offering: one.offering.partition("/")[0] for one in refused}
        return [
            RefusedOffering(
                offering=one.offering, at=one.at, until=one.until, tries=one.tries, reason=one.reason
            )
            for one in taken_back(refused, policies.of_cluster(cluster), self.reopened, sizes)
            if one.until > now and may_buy(policies.pools[pool], one.offering)
        ]


def _view(
    name: str,
    policies: Policies,
    now: float,
    nodes: dict[NodeState, int],
    waits: list[PoolWait],
    market: _Market,
) -> Pool:
    if name not in policies.pools:
        return Pool(name=name, cluster=None, nodes=nodes, waits=waits)
    limits, refused = limits_of(policies.pools[name], now), market.to(name, policies, now)
    return Pool(
        name=name,
        cluster=policies.pools[name].cluster,
        min_nodes=limits.min_nodes,
        max_nodes=limits.max_nodes,
        warm_nodes=limits.warm_nodes,
        maintenance_until=limits.maintenance_until,
        nodes=nodes,
        waits=waits,
        refused=refused,
        offerings=market.sold_to(policies.pools[name], refused),
        offerings_at=market.recorded_at(policies.pools[name].cluster),
        reopened_at=market.reopened.get(name),
    )

"""Node pools as they are now: limits, nodes, and what the newest plan does not do for them."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request

from cluster.planning.limits import limits_of
from cluster.policies import Policies
from remora.states import NodeState
from remora.views import Page, Pool, PoolWait
from service.api.context import context_of
from service.api.parameters import Parameters
from service.fixed_pool import kept_full
from service.policies_in_force import policies_in_force
from service.queue.rows import WaitKind
from service.store.nodes import count_nodes
from service.store.waits import waits_of

router = APIRouter(prefix="/v1/pools")


@router.get("", operation_id="list_pools", response_model=Page[Pool])
async def list_pools(request: Request, _: Annotated[Parameters, Query()]) -> Page[Pool]:
    """Pools of the policies in the order in which they stand there, then removed ones that still have nodes."""
    context = context_of(request)
    settings, now = context.settings, context.clock()

    def work(connection: sa.Connection) -> list[Pool]:
        policies = policies_in_force(connection, settings)
        if settings.cloud == "local":
            policies = kept_full(policies, now)
        counts = count_nodes(connection)
        waits: defaultdict[str, list[PoolWait]] = defaultdict(list)
        for row in waits_of(connection, WaitKind.POOL):
            waits[row.about].append(PoolWait(reason=row.reason, since=row.since))
        removed = sorted(counts.keys() - policies.pools.keys())
        return [
            _view(name, policies, now, counts.get(name, {}), waits[name])
            for name in (*policies.pools, *removed)
        ]

    return Page[Pool](items=await context.database.read(work))


def _view(
    name: str, policies: Policies, now: float, nodes: dict[NodeState, int], waits: list[PoolWait]
) -> Pool:
    if name not in policies.pools:
        return Pool(name=name, nodes=nodes, waits=waits)
    limits = limits_of(policies.pools[name], now)
    return Pool(
        name=name,
        min_nodes=limits.min_nodes,
        max_nodes=limits.max_nodes,
        warm_nodes=limits.warm_nodes,
        maintenance_until=limits.maintenance_until,
        nodes=nodes,
        waits=waits,
    )

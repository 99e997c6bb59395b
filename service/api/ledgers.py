"""What jobs cost."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query, Request

from cluster.offerings import zone_and_capacity
from remora.views import Ledger, LedgerLine
from service.api.context import context_of, job_of
from service.api.parameters import Parameters
from service.queue.ledger import UseRow
from service.queue.limits import budget_of
from service.store import ledger

router = APIRouter()


@router.get("/v1/jobs/{job_id}/ledger", operation_id="show_ledger", response_model=Ledger)
async def show_ledger(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Ledger:
    """Seconds of nodes and money that the job has cost so far, by kind of node."""
    job = await job_of(request, job_id)
    uses = await context_of(request).database.read(lambda connection: ledger.uses_of(connection, job_id))
    now = time.time()
    lines = _lines(uses, now)
    return Ledger(
        job_id=job_id,
        at=now,
        lines=lines,
        node_s=sum(line.node_s for line in lines),
        cost=sum(line.cost for line in lines),
        budget=budget_of(job.spec),
    )


def _lines(uses: Iterable[UseRow], now: float) -> list[LedgerLine]:
    """One line for each kind of node, in the order in which they were first used."""
    kinds: dict[tuple[str, str], list[UseRow]] = defaultdict(list)
    for use in uses:
        kinds[use.pool, use.offering].append(use)
    lines = []
    for (pool, offering), of_kind in kinds.items():
        zone, capacity = zone_and_capacity(offering)
        line = LedgerLine(
            pool=pool,
            size=offering.rsplit("/", 2)[0],
            zone=zone,
            capacity=None if capacity is None else capacity.value,
            nodes=len({use.node_id for use in of_kind}),
            node_s=sum(use.node_s(now) for use in of_kind),
            cost=sum(use.cost(now) for use in of_kind),
        )
        lines.append(line)
    return lines

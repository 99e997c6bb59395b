"""Ledgers: what jobs cost, and how the cost of the whole cluster is charged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from cluster.policies.offerings import zone_and_capacity
from remora.views import AccountLine, ClusterLedger, Ledger, LedgerLine
from service.api.authorisation import access_of
from service.api.context import context_of, job_of
from service.api.pages import as_json
from service.api.parameters import MAX_NUMBER, Parameters
from service.api.problem_documents import invalid_parameter
from service.identities.principals import Access
from service.queue.bill import Charge, Payer, Purpose, charges
from service.queue.ledger import UseRow
from service.store import ledger
from service.store.spending import month_of

router = APIRouter()

#: Jobs that have lines of their own in the ledger of the cluster.
_JOBS = 500


@router.get("/v1/jobs/{job_id}/ledger", operation_id="show_ledger", response_model=Ledger)
async def show_ledger(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Ledger:
    """Seconds of nodes and money that the job has cost so far, by kind of node."""
    job = await job_of(request, job_id)
    context = context_of(request)
    uses = await context.database.read(lambda connection: ledger.uses_of(connection, job_id))
    bought = await context.database.read(lambda connection: ledger.start_ups(connection, job_id))
    now = context.clock()
    lines = _lines(uses, now)
    began = [
        one
        for one in charges(bought, (), {}, 0.0, now)
        if one.payer is Payer.JOB and one.purpose is Purpose.START_UP
    ]
    return Ledger(
        job_id=job_id,
        at=now,
        lines=lines,
        node_s=sum(line.node_s for line in lines),
        cost=sum(line.cost for line in lines),
        start_up_s=sum(one.node_s for one in began),
        start_up_cost=sum(one.cost for one in began),
        budget=job.budget,
    )


class LedgerParameters(Parameters):
    """From when to when, seconds since 1970."""

    #: The beginning of the running month in UTC unless told.
    since: Annotated[float, Field(ge=0, le=MAX_NUMBER)] | None = None
    #: Now unless told; no later than that.
    until: Annotated[float, Field(ge=0, le=MAX_NUMBER)] | None = None


@router.get("/v1/ledger", operation_id="show_cluster_ledger", response_model=ClusterLedger)
async def show_cluster_ledger(request: Request, parameters: Annotated[LedgerParameters, Query()]) -> Response:
    """Who pays for what the cloud bills for all nodes: jobs, projects and the cluster.

    Who is no operator sees what its own projects and their jobs pay.
    """
    context, access = context_of(request), access_of(request)
    now = context.clock()
    until = now if parameters.until is None else min(parameters.until, now)
    since = month_of(until) if parameters.since is None else parameters.since
    if since > until:
        raise invalid_parameter("since", "it is after until; give an earlier time")

    def work(connection: sa.Connection) -> str:
        nodes = ledger.paid_nodes(connection, since, until)
        uses = ledger.uses_between(connection, since, until)
        named = [node.bought_for for node in nodes if node.bought_for is not None]
        projects = ledger.projects_of(connection, named)
        found = _visible(connection, access, charges(nodes, uses, projects, since, until))
        view = ClusterLedger(
            since=since,
            until=until,
            lines=_account(found),
            node_s=sum(one.node_s for one in found),
            cost=sum(one.cost for one in found),
        )
        return view.model_dump_json()

    return as_json(await context.database.read(work))


def _visible(connection: sa.Connection, access: Access, found: list[Charge]) -> list[Charge]:
    """Those that projects which the principal sees pay, and their jobs."""
    if access.projects is None:
        return found
    owners = ledger.projects_of(connection, (one.name for one in found if one.payer is Payer.JOB))
    owners |= {one.name: one.name for one in found if one.payer is Payer.PROJECT}
    return [one for one in found if owners.get(one.name) in access.projects]


def _account(found: Iterable[Charge]) -> list[AccountLine]:
    """One line for each payer and purpose, the dearest first; jobs beyond the first `_JOBS` share one."""
    sums: dict[tuple[Payer, str, Purpose], list[Charge]] = defaultdict(list)
    for one in found:
        sums[one.payer, one.name, one.purpose].append(one)
    of_jobs: dict[str, float] = defaultdict(float)
    for (payer, name, _), group in sums.items():
        if payer is Payer.JOB:
            of_jobs[name] += sum(one.cost for one in group)
    named = set(sorted(of_jobs, key=lambda name: -of_jobs[name])[:_JOBS])
    merged: dict[tuple[Payer, str, Purpose], list[Charge]] = defaultdict(list)
    for (payer, name, purpose), group in sums.items():
        shown = name if payer is not Payer.JOB or name in named else ""
        merged[payer, shown, purpose] += group
    lines = [
        AccountLine(
            payer=payer,
            name=name,
            purpose=purpose,
            nodes=len({one.node_id for one in group}),
            node_s=sum(one.node_s for one in group),
            cost=sum(one.cost for one in group),
        )
        for (payer, name, purpose), group in merged.items()
    ]
    return sorted(lines, key=lambda line: (-line.cost, line.payer, line.name, line.purpose))


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

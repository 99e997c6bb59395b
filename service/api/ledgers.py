"""Ledgers: what jobs cost, and how the cost of the whole cluster is charged."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
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
from service.api.ranges import range_asked
from service.identities.principals import Access
from service.queue.accounts import amount_of, total_of
from service.queue.bill import Charge, Purpose, charges_of, purpose_of
from service.queue.cost_causes import Payer, Span, to_ms
from service.queue.rows import NodeRow
from service.store import costs

router = APIRouter()

#: Jobs that have lines of their own in the ledger of the cluster.
_JOBS = 500


@router.get("/v1/jobs/{job_id}/ledger", operation_id="show_ledger", response_model=Ledger)
async def show_ledger(request: Request, job_id: str, _: Annotated[Parameters, Query()]) -> Ledger:
    """Seconds of nodes and money that the job has cost so far, by kind of node."""
    job = await job_of(request, job_id)
    context = context_of(request)
    now = context.clock()

    def work(connection: sa.Connection) -> tuple[costs.CostRows, tuple[int, int]]:
        # What others did on its nodes before and after it is not read: a page asks for this every few seconds.
        first, last = costs.paid_range(connection, job_id, now)
        rows = costs.rows_of_jobs(connection, [job_id], first, last, with_phases=False)
        return rows, (to_ms(first), to_ms(last))

    rows, paid = await context.database.read(work)
    mine = [one for one in rows.spans([paid]) if one.payer is Payer.JOB and one.name == job_id]
    lines = _lines([one for one in mine if purpose_of(one) is Purpose.WORK], rows.nodes)
    start_ups = [one for one in mine if purpose_of(one) is Purpose.START_UP]
    began = total_of(amount_of(one, rows.nodes[one.node_id]) for one in start_ups)
    return Ledger(
        job_id=job_id,
        at=now,
        lines=lines,
        node_s=sum(line.node_s for line in lines),
        cost=sum(line.cost for line in lines),
        start_up_s=began.node_s,
        start_up_cost=began.usd,
        budget=job.facts.budget,
    )


class LedgerParameters(Parameters):
    """From when to when, seconds since 1970."""

    #: The beginning of the running month in UTC unless given, and at most 31 days before `until`.
    since: Annotated[float, Field(ge=0, le=MAX_NUMBER)] | None = None
    #: Now unless given; no later than that.
    until: Annotated[float, Field(ge=0, le=MAX_NUMBER)] | None = None


@router.get("/v1/ledger", operation_id="show_cluster_ledger", response_model=ClusterLedger)
async def show_cluster_ledger(request: Request, parameters: Annotated[LedgerParameters, Query()]) -> Response:
    """Who pays for what the cloud bills for all nodes: jobs, projects and the cluster.

    Who is no operator sees what its own projects and their jobs pay.
    """
    context, access = context_of(request), access_of(request)
    since, until = range_asked(context, parameters.since, parameters.until)

    def work(rows: costs.CostRows) -> str:
        found = [
            one for one in charges_of(rows.spans([(to_ms(since), to_ms(until))]), rows.nodes) if one.is_billed
        ]
        found = _visible(rows.projects, access, found)
        view = ClusterLedger(
            since=since,
            until=until,
            lines=_account(found),
            node_s=sum(one.node_s for one in found),
            cost=sum(one.cost for one in found),
        )
        return view.model_dump_json()

    rows = await context.database.read(
        lambda connection: costs.rows_between(connection, since, until, with_phases=False)
    )
    # The database is not held while it is computed.
    return as_json(await asyncio.to_thread(work, rows))


def _visible(projects: Mapping[str, str], access: Access, found: list[Charge]) -> list[Charge]:
    """Those that projects which the principal sees pay, and their jobs."""
    if access.projects is None:
        return found
    owners = {one.name: one.name for one in found if one.payer is Payer.PROJECT}
    owners |= {one.name: projects.get(one.name, "") for one in found if one.payer is Payer.JOB}
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


def _lines(spans: Iterable[Span], nodes: Mapping[str, NodeRow]) -> list[LedgerLine]:
    """One line for each kind of node, in the order in which they were first used."""
    kinds: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda one: (one.begins_ms, one.node_id)):
        node = nodes[span.node_id]
        kinds[node.pool, node.offering].append(span)
    lines = []
    for (pool, offering), of_kind in kinds.items():
        zone, capacity = zone_and_capacity(offering)
        amount = total_of(amount_of(one, nodes[one.node_id]) for one in of_kind)
        line = LedgerLine(
            pool=pool,
            size=offering.rsplit("/", 2)[0],
            zone=zone,
            capacity=None if capacity is None else capacity.value,
            nodes=len({one.node_id for one in of_kind}),
            node_s=amount.node_s,
            cost=amount.usd,
        )
        lines.append(line)
    return lines

"""How far each budget is spent, and how long it lasts."""

from __future__ import annotations

import asyncio
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cluster.policies.policies import BudgetStep, Policies
from remora.budget_views import Budget, BudgetPoint
from remora.roles import Role
from remora.views import Page
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, read_cursor
from service.policies_in_force import policies_in_force
from service.queue import budgets
from service.queue.budgets import PaidNode
from service.store import spending

router = APIRouter()


@router.get("/v1/budgets", operation_id="list_budgets", response_model=Page[Budget])
async def list_budgets(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """The budgets of the policies, those of the cluster first, with what is spent of each and until when it lasts.

    Who is no operator sees those of the projects in which it may submit.
    """
    after = "" if query.cursor is None else read_cursor(query.cursor)
    context, visible = context_of(request), access_of(request).principal.projects_with(Role.SUBMITTER)
    now = context.clock()

    def read(connection: sa.Connection) -> tuple[Policies, list[PaidNode], BudgetStep | None]:
        policies = policies_in_force(connection, context.settings)
        paid = spending.paid_nodes(connection, budgets.paid_since(now))
        return policies, paid, spending.budget_step(connection, policies.budget.figures, now)

    def work(policies: Policies, paid: list[PaidNode], reached: BudgetStep | None) -> bytes:
        found = budgets.budgets_of(policies, paid, reached, visible, now, after)
        return write_page(found, _view, lambda one: budgets.position_of(one.project, one.period), query.limit)

    # The database is not held while it is computed.
    return as_json(await asyncio.to_thread(work, *await context.database.read(read)))


def _view(one: budgets.Budget) -> Budget:
    return Budget(
        project=one.project,
        period="day" if one.period == "day" else "month",
        begins_at=one.begins_at,
        ends_at=one.ends_at,
        limit=one.limit,
        spent=one.spent,
        fraction=one.spent / one.limit if one.limit else None,
        step=one.step,
        step_in_force=one.in_force,
        next_step=one.next_step,
        next_step_at=one.next_at,
        usd_per_hour=one.usd_per_hour,
        pace_s=budgets.PACE_S[one.period],
        runs_out_at=one.runs_out_at,
        course=[BudgetPoint(at=at, spent=spent) for at, spent in one.course],
    )

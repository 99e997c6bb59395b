"""Projects: what is kept of each, beside its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cluster.policies.policies import Policies, ProjectPolicy
from remora.views import Page, Project, ProjectUse
from service.api.authorisation import access_of
from service.api.context import Context, context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, read_cursor
from service.api.projects_in_use import in_use
from service.policies_in_force import policies_in_force
from service.queue.intake import Kept
from service.store import kept_amounts
from service.store.jobs import active_projects, count_active_of_each

router = APIRouter(prefix="/v1/projects")


@router.get("", operation_id="list_projects", response_model=Page[Project])
async def list_projects(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """Projects by name, with what is kept of each and its limits."""
    after = "" if query.cursor is None else read_cursor(query.cursor)
    context, visible = context_of(request), access_of(request).projects

    def work(connection: sa.Connection) -> bytes:
        policies = policies_in_force(connection, context.settings)
        if visible is None:
            # Those of which something was kept once, those with jobs now, and those that operators named.
            programs = policies.ray_programs
            of_programs = () if programs is None else (programs.project,)
            named = {one for one in (*policies.projects, *of_programs) if one > after}
            kept = kept_amounts.projects(connection, after, query.limit)
            active = active_projects(connection, after, query.limit)
            names = sorted(named.union(kept, active))[: query.limit]
        else:
            names = sorted(one for one in visible if one > after)[: query.limit]
        rows = _uses(connection, context, policies, names)
        return write_page(rows, lambda row: row, lambda row: row.name, query.limit)

    return as_json(await context.database.read(work))


def _uses(
    connection: sa.Connection, context: Context, policies: Policies, names: Sequence[str]
) -> list[Project]:
    active = count_active_of_each(connection, names)
    held = in_use(connection, context.settings, policies, names, context.clock())
    kept = kept_amounts.amounts(connection, [kept_amounts.project_holder(one) for one in names])
    found = []
    for name in names:
        limits, named = policies.limits_of(name), policies.projects.get(name)
        policy = ProjectPolicy() if named is None else named
        jobs = ProjectUse(used=active.get(name, 0), limit=policy.jobs)
        uses = {
            kind.value: ProjectUse(
                used=kept.get((kept_amounts.project_holder(name), kind), 0), limit=getattr(limits, kind.value)
            )
            for kind in Kept
        }
        open_streams = ProjectUse(used=context.streams.of_project(name), limit=limits.streams)
        gpus = ProjectUse(used=math.ceil(held.gpus.get(name, 0.0) - 1e-9), limit=policy.gpus)
        part = None if held.parts is None else held.parts.get(name, 0.0)
        every = {"jobs": jobs, "gpus": gpus, **uses, "streams": open_streams}
        found.append(Project(name=name, share=policy.share, share_held=part, uses=every))
    return found

"""Projects: what is kept of each, beside its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cluster.policies.policies import Policies, ProjectPolicy
from cluster.scheduling.quotas import Counting
from remora.views import Page, Project, ProjectUse
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, read_cursor
from service.api.sse import OpenStreams
from service.policies_in_force import policies_in_force
from service.queue.demand import demand_of
from service.queue.intake import Kept
from service.store import holdings
from service.store.clusters_in_use import clusters_in_use
from service.store.jobs import active_projects, count_active_of_each, live_attempts

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
            named = {one for one in policies.projects if one > after}
            kept = holdings.projects(connection, after, query.limit)
            active = active_projects(connection, after, query.limit)
            names = sorted(named.union(kept, active))[: query.limit]
        else:
            names = sorted(one for one in visible if one > after)[: query.limit]
        rows = _uses(connection, policies, context.streams, names, context.clock())
        return write_page(rows, lambda row: row, lambda row: row.name, query.limit)

    return as_json(await context.database.read(work))


def _uses(
    connection: sa.Connection, policies: Policies, streams: OpenStreams, names: Sequence[str], now: float
) -> list[Project]:
    active, gpus = count_active_of_each(connection, names), _gpus(connection, policies, names, now)
    kept = holdings.amounts(connection, [holdings.project_holder(one) for one in names])
    found = []
    for name in names:
        limits, named = policies.limits_of(name), policies.projects.get(name)
        policy = ProjectPolicy() if named is None else named
        jobs = ProjectUse(used=active.get(name, 0), limit=policy.jobs)
        uses = {
            kind.value: ProjectUse(
                used=kept.get((holdings.project_holder(name), kind), 0), limit=getattr(limits, kind.value)
            )
            for kind in Kept
        }
        open_streams = ProjectUse(used=streams.of_project(name), limit=limits.streams)
        in_use = ProjectUse(used=math.ceil(gpus[name] - 1e-9), limit=policy.gpus)
        every = {"jobs": jobs, "gpus": in_use, **uses, "streams": open_streams}
        found.append(Project(name=name, share=policy.share, uses=every))
    return found


def _gpus(
    connection: sa.Connection, policies: Policies, names: Sequence[str], now: float
) -> Mapping[str, float]:
    """GPUs that the jobs of each project use which run, counted as for its quota."""
    running = [one for cluster in clusters_in_use(connection) for one in live_attempts(connection, cluster)]
    demands = [demand_of(job, attempt, None, now) for job, attempt in running]
    held = {job.id: attempt.world_size for job, attempt in running}
    # Quotas are counted for projects with a policy alone.
    every = {**dict.fromkeys(names, ProjectPolicy()), **policies.projects}
    counting = Counting(policies.model_copy(update={"projects": every}), demands, held, {}, now)
    return {name: counting.gpus_of_project(name) for name in names}

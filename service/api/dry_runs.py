"""What would become of a job if it were submitted: every reason against it, and what it would be with all defaults."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import Request

from cluster.scheduling.fitting import as_shown
from cluster.scheduling.limits import limits_of
from cluster.scheduling.pool_sizes import complete_pools
from cluster.scheduling.starts import why_never
from remora.errors import SpecProblem
from remora.views import DryRun, FieldProblem
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.problem_documents import ApiProblem
from service.api.submissions import check_code_there, read_elements, read_spec, unknown_here
from service.clouds.fixed_pool import known
from service.policies_in_force import limits_in_force, policies_in_force
from service.queue.demand import demand_of, node_view
from service.queue.full_pools import kept_full
from service.queue.rows import JobRow
from service.settings import Settings
from service.store.nodes import current_nodes
from service.store.submissions import row_of, why_refused


async def try_out(request: Request) -> DryRun:
    """Try out the specification in the body.  Raises ApiProblem where it is none, with all that is wrong with it."""
    body = await read_spec(request)
    context, access, spec = context_of(request), access_of(request), body.spec
    jobs = 1 if spec.array is None else len(await read_elements(request, spec))
    now = context.clock()

    def work(connection: sa.Connection) -> tuple[list[SpecProblem], str | None]:
        limits = limits_in_force(connection, context.settings)
        refused = why_refused(connection, spec, jobs, limits, now, access)
        return refused, _never(connection, context.settings, row_of(spec, now, limits.policies), now)

    problems, never = await context.database.read(work)
    of_settings = unknown_here(context.settings, spec)
    found = [FieldProblem(field=one.field, message=one.message) for one in (*of_settings, *problems)]
    try:
        await check_code_there(request, spec)
    except ApiProblem as problem:
        found += problem.errors or [FieldProblem(field="code", message=str(problem))]
    return DryRun(project=spec.project, jobs=jobs, spec=spec.to_mapping(), problems=found, never=never)


def _never(connection: sa.Connection, settings: Settings, row: JobRow, now: float) -> str | None:
    """Why no pool of the policies in force could ever hold the job, as the queue would say; None: one could."""
    policies = policies_in_force(connection, settings).of_cluster(row.cluster)
    if settings.cloud == "local":
        policies = kept_full(policies, now)
    if (offerings := known(settings).catalogue_of(row.cluster)) is None:
        return None
    nodes = [node_view(one, {}) for one in current_nodes(connection, row.cluster, now)]
    pools = complete_pools(policies, as_shown(offerings, nodes), lambda pool: limits_of(pool, now).max_nodes)
    return why_never(demand_of(row, None, None, now), pools)

"""New jobs: what stands in the database before a submission is answered, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sqlalchemy as sa

from cluster.policies.policies import Policies
from remora.clusters import DEFAULT_CLUSTER
from remora.errors import SpecError, SpecProblem
from remora.spec.array_elements import Element
from remora.spec.spec import JobSpec
from service.identities.principals import EVERYTHING, Access
from service.queue import intake, lifecycle
from service.queue.arrays import ArrayRow, waits_for_array
from service.queue.dependencies import Dependency, dependencies_of, why_impossible
from service.queue.early_stop import first_comparison
from service.queue.intake import JobLimits, Kept, LimitReached
from service.queue.rows import JobRow
from service.store import arrays, bundles, dependencies, kept_amounts, secret_rows
from service.store import jobs as store
from service.store.ids import new_id
from service.store.scoped import visible_jobs

#: A store has the files of all jobs that name it, whatever their project, below two folders of its own.
_KEPT_BY_JOBS = (
    "name a folder or file of the store, other than jobs and bundles; what jobs leave is read by `job`"
)


class BundleMissing(Exception):
    """The code of the job is not there, or is being deleted; the message is its digest."""


def check_jobs(connection: sa.Connection, project: str, count: int, limits: JobLimits) -> None:
    """Raise LimitReached when `count` more jobs of the project may not wait or run."""
    refusal = intake.check(store.count_active(connection) + count - 1, limits.jobs)
    named = limits.policies.projects.get(project)
    most = None if named is None else named.jobs
    if refusal is None and most is not None:
        active = store.count_active(connection, project)
        refusal = intake.check_project(project, active + count - 1, most)
    if refusal is not None:
        raise LimitReached(refusal)


def check_outputs(connection: sa.Connection, spec: JobSpec, policies: Policies) -> None:
    """Raise LimitReached for a job with outputs whose project has as many bytes of them as it may."""
    most = policies.limits_of(spec.project).output_bytes
    if most is None or not spec.outputs:
        return
    holder = kept_amounts.project_holder(spec.project)
    kept = kept_amounts.amount(connection, holder, Kept.OUTPUT_BYTES)
    # A job that may store nothing is not worth its nodes.
    refusal = intake.check_kept(kept_amounts.whose(holder), Kept.OUTPUT_BYTES, kept, 1, most)
    if refusal is not None:
        raise LimitReached(refusal)


def use_bundle(
    connection: sa.Connection,
    spec: JobSpec,
    now: float,
    access: Access = EVERYTHING,
    policies: Policies | None = None,
) -> None:
    """Note that the code of a job is used by its project.

    Raises BundleMissing without it, or when it is not there for who submits, and LimitReached when the project's limit
    in `policies` would be exceeded.  Together with the job: the deletion of bundles sees both, or comes first, and the
    client uploads it again.
    """
    if spec.bundle is None:
        return
    is_there = bundles.is_held(connection, access, spec.bundle) and bundles.use(connection, spec.bundle, now)
    if not is_there:
        raise BundleMissing(spec.bundle)
    most = None if policies is None else policies.limits_of(spec.project).bundle_bytes
    bundles.hold(connection, spec.bundle, kept_amounts.project_holder(spec.project), most)


def check_references(connection: sa.Connection, spec: JobSpec, access: Access) -> None:
    """Raise SpecError for jobs that it names and that are not there for who submits.

    Who sees every project names what it likes: a job that is to wait looks by itself, and inputs are read on nodes.
    """
    if access.projects is None:
        return
    named = {f"after.{place}.job": one.job for place, one in enumerate(spec.after)}
    named |= {f"inputs.{name}.job": one.job for name, one in spec.inputs.items() if one.job is not None}
    visible = visible_jobs(connection, access, named.values()) if named else set()
    problems = [
        SpecProblem(field, f"there is no job {job_id}")
        for field, job_id in named.items()
        if job_id not in visible
    ]
    problems += [
        SpecProblem(f"inputs.{name}.path", _KEPT_BY_JOBS)
        for name, one in spec.inputs.items()
        if one.store is not None and _first_part(one.path or "") in ("", "jobs", "bundles")
    ]
    if problems:
        raise SpecError(problems)


def _first_part(path: str) -> str:
    """The first folder that a path names, however it is written; "" for the top."""
    return next((part for part in path.split("/") if part not in ("", ".")), "")


def why_refused(
    connection: sa.Connection, spec: JobSpec, count: int, limits: JobLimits, now: float, access: Access
) -> list[SpecProblem]:
    """Every reason for which `count` jobs of this specification would not be accepted now; nothing is written."""
    checks: list[Callable[[], object]] = [
        lambda: secret_rows.check_there(connection, spec),
        lambda: check_outputs(connection, spec, limits.policies),
        lambda: _check_others(connection, spec, now, access),
    ]
    if spec.schedule is None:
        checks.append(lambda: check_jobs(connection, spec.project, count, limits))
    problems: list[SpecProblem] = []
    for check in checks:
        try:
            check()
        except SpecError as error:
            problems += [one for one in error.problems if one not in problems]
        except LimitReached as full:
            problems.append(SpecProblem("", full.refusal.message))
    return problems


def _check_others(connection: sa.Connection, spec: JobSpec, now: float, access: Access) -> None:
    """Raise SpecError for jobs that it names; of those that are not there for who submits nothing more is said."""
    check_references(connection, spec, access)
    _awaited(connection, row_of(spec, now), store.find_jobs)


def submit(
    connection: sa.Connection,
    spec: JobSpec,
    now: float,
    origin: str = "",
    *,
    access: Access = EVERYTHING,
    by: str | None = None,
    policies: Policies | None = None,
    traceparent: str | None = None,
) -> JobRow:
    """Store a new job, which begins to wait; `origin` says where it comes from, for people, `by` who submits it.

    `traceparent` is the W3C trace context of the request.

    Raises BundleMissing, and SpecError for secrets that its project does not have, and for jobs that it names and that
    are not there or ended otherwise; LimitReached when its project has as much as `policies` allow.
    """
    _check(connection, spec, now, access, policies)
    row = replace(row_of(spec, now, policies), submitted_by=by, traceparent=traceparent)
    awaited = _awaited(connection, row)
    row = store.insert_job(connection, lifecycle.submit(row, awaited, origin))
    dependencies.insert(connection, [one for one in awaited if not one.is_met])
    return row


def submit_array(
    connection: sa.Connection,
    spec: JobSpec,
    elements: Sequence[Element],
    now: float,
    *,
    access: Access = EVERYTHING,
    by: str | None = None,
    policies: Policies | None = None,
    traceparent: str | None = None,
) -> ArrayRow:
    """Store an array with its jobs, of which as many wait in the queue as may run at once; raises as `submit`."""
    assert spec.array is not None
    _check(connection, spec, now, access, policies)
    most, early = spec.array.most_at_once, spec.array.stop_early
    rule = None if early is None else early.model_dump()
    array = ArrayRow(
        id=new_id("array", now),
        name=spec.name,
        project=spec.project,
        created_at=now,
        spec=spec.to_mapping(),
        size=len(elements),
        most_at_once=most,
        submitted_by=by,
    )
    arrays.insert(connection, array)
    decisions: list[lifecycle.Decision] = []
    awaited: list[Dependency] = []
    for one in elements:
        row = replace(
            row_of(one.spec, now, policies),
            array_id=array.id,
            array_index=one.index,
            parameters=one.parameters,
        )
        row = replace(row, stop_rule=rule, submitted_by=by, traceparent=traceparent)
        row = replace(row, compared_at=first_comparison(row))
        # All of them wait for the same jobs, which are locked once.
        others = (
            _awaited(connection, row)
            if not awaited
            else [replace(other, job_id=row.id) for other in awaited[: len(spec.after)]]
        )
        awaited += others
        held = waits_for_array(array.id, most) if most is not None and one.index >= most else None
        origin = f"number {one.index} of the array {array.id}"
        decisions.append(lifecycle.submit(row, others, origin, held))
    store.insert_jobs(connection, decisions)
    dependencies.insert(connection, [one for one in awaited if not one.is_met])
    return array


def _check(
    connection: sa.Connection, spec: JobSpec, now: float, access: Access, policies: Policies | None
) -> None:
    """What has to hold of every submission."""
    secret_rows.check_there(connection, spec)
    if policies is not None:
        check_outputs(connection, spec, policies)
    use_bundle(connection, spec, now, access, policies)
    check_references(connection, spec, access)


def _awaited(
    connection: sa.Connection,
    job: JobRow,
    read: Callable[[sa.Connection, list[str]], dict[str, JobRow]] = store.lock_jobs,
) -> list[Dependency]:
    """What a new job waits for.  Raises SpecError."""
    named = [one["job"] for one in job.spec["after"]]
    if not named:
        return []
    # Locked, so that an end of them is seen here or noted by the transaction that ends them.
    found_rows = read(connection, named)
    others = {job_id: one for job_id, one in found_rows.items() if one.delete_requested_at is None}
    problems = [
        SpecProblem(f"after.{place}.job", f"there is no job {job_id}")
        for place, job_id in enumerate(named)
        if job_id not in others
    ]
    if problems:
        raise SpecError(problems)
    found = dependencies_of(job, others)
    problems = [
        SpecProblem(f"after.{place}", f"{why}; leave it out, or write another `when`")
        for place, one in enumerate(found)
        if (why := why_impossible([one])) is not None
    ]
    if problems:
        raise SpecError(problems)
    return found


def row_of(spec: JobSpec, now: float, policies: Policies | None = None) -> JobRow:
    """The row of a new job, on the cluster on which the policies have its project at this time."""
    return JobRow(
        id=new_id("job", now),
        name=spec.name,
        project=spec.project,
        priority=spec.priority,
        spec=spec.to_mapping(),
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        worker_resources=spec.ray_resources(),
        retry_limit=spec.retry.limit,
        backoff_s=spec.retry.backoff_s,
        run_time_s=spec.limits.run_time_s,
        wait_time_s=spec.limits.wait_time_s,
        created_at=now,
        labels=spec.labels,
        cluster=DEFAULT_CLUSTER if policies is None else policies.cluster_of(spec.project),
    )

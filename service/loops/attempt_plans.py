"""What the driver of an attempt gets, from the rows of its job and of the attempt; a pure function.

It needs no database: `remora dev` makes the plan of an attempt that no service knows.
"""

from __future__ import annotations

from typing import Any

from cluster.policies.placement import ON_DEMAND_LABELS
from remora.spec.sections import Input
from remora.spec.spec import JobSpec
from service.listening import isolation_of
from service.loops.attempt_traces import attempt_traceparent
from service.queue.demand import placement_in
from service.queue.rows import AttemptRow, JobRow
from service.settings import Settings
from service.storage_locations import url_of
from trainers.checkpoints.cadence import FIRST_S
from trainers.driver_protocol import PROTOCOL
from trainers.input_source import InputSource
from trainers.plan import AttemptPlan


def attempt_plan(
    job: JobRow, attempt: AttemptRow, settings: Settings, output_bytes_left: int | None = None
) -> AttemptPlan:
    """Everything the driver needs; its project leaves `output_bytes_left` for the outputs of the job.

    Raises SpecError for a spec that this version no longer accepts, UnknownStore for one whose store is not there.
    """
    spec = JobSpec.from_mapping(job.spec)
    best = spec.checkpoint.best
    return AttemptPlan(
        protocol=PROTOCOL,
        job_id=job.id,
        attempt_id=attempt.id,
        attempt=attempt.attempt,
        command=list(spec.command),
        bundle=spec.bundle,
        storage_url=settings.storage,
        checkpoint_url=url_of(settings, spec.checkpoint.store),
        backend=spec.backend,
        sizes=job.facts.sizes,
        workers_per_node=job.facts.workers_per_node,
        resources=dict(job.worker_resources),
        # Nodes of an existing cluster have no labels of ours, and all of them are of one pool.
        labels={} if settings.cloud == "existing" else placement_in(job, attempt).labels,
        lasting=dict(ON_DEMAND_LABELS),
        device=spec.resources.device,
        precision=spec.resources.precision,
        environment=job.facts.environment,
        image=spec.environment.image,
        inputs={name: _input(one, settings) for name, one in spec.inputs.items()},
        mount_cache_bytes=settings.mount_cache_bytes,
        variables=dict(spec.environment.variables),
        traceparent=attempt_traceparent(job, attempt, settings),
        secrets={use.name: use.variable for use in spec.environment.secrets},
        outputs=tuple(spec.outputs),
        output_paths=_paths(spec, is_file=False),
        output_files=_paths(spec, is_file=True),
        output_commits={name: one.commit for name, one in spec.outputs.items() if one.commit is not None},
        elastic_variables=spec.elastic.variables(),
        checkpoint_interval_s=FIRST_S if spec.checkpoint.is_interval_auto else spec.checkpoint.interval_s,
        is_interval_auto=spec.checkpoint.is_interval_auto,
        worker_mtbf_s=settings.worker_mtbf_s,
        checkpoint_keep=spec.checkpoint.keep,
        best_metric=best.metric if best is not None else None,
        best_mode=best.mode if best is not None else "min",
        log_limit_bytes=settings.max_log_bytes,
        max_processes=settings.max_processes,
        max_shm_bytes=settings.max_shm_bytes,
        isolation=isolation_of(settings),
        max_disk_bytes=settings.max_disk_bytes,
        project=job.project,
        project_cache_bytes=settings.project_cache_bytes,
        **_output_limit(job, settings, output_bytes_left),
        warm_modules=settings.warm,
        previous_step=job.max_step,
        step_time_s=spec.limits.step_time_s,
    )


def _output_limit(job: JobRow, settings: Settings, left: int | None) -> dict[str, Any]:
    if left is None or left >= settings.max_output_bytes:
        return {"max_output_bytes": settings.max_output_bytes}
    return {"max_output_bytes": left, "output_limit": f"what output_bytes leaves the project {job.project}"}


def _input(asked: Input, settings: Settings) -> InputSource:
    """Where an input lies; outputs of other jobs are in the service's own storage.  Raises UnknownStore."""
    if asked.job is not None:
        return InputSource(
            url=settings.storage,
            also=tuple(settings.stores.values()),
            job_id=asked.job,
            output=asked.output or "",
        )
    return InputSource(
        url=url_of(settings, asked.store), path=asked.path or "", is_mounted=asked.mode == "mount"
    )


def _paths(spec: JobSpec, *, is_file: bool) -> dict[str, str]:
    """Names of outputs by their path below the working folder: of those that are a file there, or a folder."""
    return {
        one.path.rstrip("/"): name
        for name, one in spec.outputs.items()
        if one.path is not None and one.is_file == is_file
    }

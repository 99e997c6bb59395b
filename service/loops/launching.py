"""From an attempt's row to its running driver."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from cluster.placement import LASTING
from remora.errors import SpecError
from remora.spec import JobSpec
from remora.states import EndReason
from service.loops.ports import Launcher
from service.loops.turn import Turn
from service.queue import lifecycle
from service.queue.demand import placement_in
from service.queue.rows import AttemptRow, JobRow
from service.settings import Settings
from service.store import jobs as store
from trainers.checkpoints.cadence import FIRST_S
from trainers.plan import AttemptPlan

log = logging.getLogger(__name__)

#: Seconds after which a driver that cannot be started is given up.
LAUNCH_TIMEOUT_S = 60.0


def attempt_plan(job: JobRow, attempt: AttemptRow, settings: Settings) -> AttemptPlan:
    """Everything the driver needs.  Raises SpecError for a spec that this version no longer accepts."""
    spec = JobSpec.from_mapping(job.spec)
    best = spec.checkpoint.best
    return AttemptPlan(
        job_id=job.id,
        attempt_id=attempt.id,
        attempt=attempt.attempt,
        command=list(spec.command),
        bundle=spec.bundle,
        storage_url=settings.storage,
        checkpoint_url=spec.checkpoint.store or settings.storage,
        backend=spec.backend,
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        multiple_of=spec.worker_sizes.multiple_of,
        dealt=spec.worker_sizes.dealt,
        resources=spec.ray_resources(),
        labels=placement_in(job, attempt).labels,
        lasting=dict(LASTING),
        device=spec.resources.device,
        precision=spec.resources.precision,
        variables=dict(spec.environment.variables),
        outputs=tuple(spec.outputs),
        output_paths={one.path: name for name, one in spec.outputs.items() if one.path is not None},
        elastic_variables=spec.elastic.variables(),
        checkpoint_interval_s=FIRST_S if spec.checkpoint.is_interval_auto else spec.checkpoint.interval_s,
        is_interval_auto=spec.checkpoint.is_interval_auto,
        worker_mtbf_s=settings.worker_mtbf_s,
        checkpoint_keep=spec.checkpoint.keep,
        best_metric=best.metric if best is not None else None,
        best_mode=best.mode if best is not None else "min",
        log_limit_bytes=settings.max_log_bytes,
        warm_modules=settings.warm,
        previous_step=job.max_step,
        step_time_s=spec.limits.step_time_s,
    )


def launch(turn: Turn, launcher: Launcher, job: JobRow, attempt: AttemptRow) -> None:
    """Start the driver of an attempt whose row exists, and write down that it was started.  Raises Fenced.

    Also heals a crash between the row and the driver, because starting is idempotent.
    """
    try:
        plan = attempt_plan(job, attempt, turn.settings)
    except SpecError as error:
        end(turn, attempt, EndReason.START_FAILED, f"this version does not accept the job: {error}")
        return
    try:
        launcher.start(plan)
    except Exception as error:
        log.warning("the driver of %s cannot be started: %s", attempt.id, error)
        if turn.now - attempt.created_at > LAUNCH_TIMEOUT_S:
            message = f"its driver could not be started within {LAUNCH_TIMEOUT_S:g} s"
            end(turn, attempt, EndReason.DRIVER_LOST, message)
        return

    def work(connection: sa.Connection) -> None:
        store.save_attempt(connection, lifecycle.launched(_reload(connection, attempt), turn.now))

    turn.apply(work)
    log.info("attempt %d of %s was launched", attempt.attempt, job.id)


def _reload(connection: sa.Connection, attempt: AttemptRow) -> AttemptRow:
    store.lock_job(connection, attempt.job_id)
    return store.get_attempt(connection, attempt.id) or attempt


def end(turn: Turn, attempt: AttemptRow, reason: EndReason, message: str) -> None:
    """End an attempt whose driver does not say it by itself; nothing happens when it has ended.  Raises Fenced."""

    def work(connection: sa.Connection) -> None:
        job = store.lock_job(connection, attempt.job_id)
        current = store.get_attempt(connection, attempt.id)
        if job is None or current is None or current.ended_at is not None:
            return
        decision = lifecycle.end_attempt(job, current, reason, message, turn.now)
        store.save(connection, job, decision, current)

    turn.apply(work)
    log.info("attempt %d of %s ended: %s: %s", attempt.attempt, attempt.job_id, reason.value, message)

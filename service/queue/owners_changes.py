"""What owners change of their jobs besides the state of the life cycle: labels, and whether a job is kept (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from remora.errors import SpecError
from remora.spec.fields import MAX_LABELS, refuses_label
from remora.spec.spec import JobSpec
from remora.states import JobState
from service.queue.lifecycle import Decision
from service.queue.rows import AttemptRow, JobRow, NewEvent


class ChangeRefused(Exception):
    """The job cannot be changed so; the message is one sentence that says what to do."""


def check_not_ended(job: JobRow, done: str) -> None:
    """Raise ChangeRefused when nothing can be done to the job any more."""
    if job.state.is_terminal:
        raise ChangeRefused(f"the job has ended already: {job.state.value}; it cannot be {done}")
    if job.cancel_requested_at is not None:
        raise ChangeRefused(f"the job is being cancelled; it cannot be {done}")


def check_is_owners_pause(job: JobRow) -> None:
    """Raise ChangeRefused when the cluster's budget keeps the job from running, which its owner cannot end."""
    if job.state is JobState.PAUSED and job.pause_requested_at is None:
        raise ChangeRefused(f"its owner has not paused it: {job.message}")


def resize(job: JobRow, spec: JobSpec, now: float) -> Decision:
    """The job may have from `spec.workers.min` to `spec.workers.max` workers from now on; else `spec` is its own."""
    workers = spec.workers
    if (workers.min, workers.max) == tuple(job.spec["workers"][end] for end in ("min", "max")):
        return Decision(job, None)
    said = f"{workers.min}" if workers.min == workers.max else f"{workers.min} to {workers.max}"
    event = NewEvent(
        at=now,
        kind="job.resized",
        message=f"its owner gave it {said} workers",
        data={"min": workers.min, "max": workers.max},
    )
    resized = replace(
        job,
        spec=spec.to_mapping(),
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        # Each change is later than the one before, also where the clock was set back.
        resized_at=max(now, (job.resized_at or 0.0) + 0.001),
    )
    return Decision(resized, None, (event,))


def keep_batch(job: JobRow, attempt: AttemptRow, samples: int, at: float) -> Decision:
    """Its workers made a step of `samples` samples of their configuration: from now on its specification says so.

    Nothing changes where it names a batch already, or could not name this one.
    """
    elastic = job.spec.get("elastic") or {}
    if job.spec.get("backend") != "deepspeed" or elastic.get("global_batch") is not None:
        return Decision(job, attempt)
    try:
        spec = JobSpec.from_mapping({**job.spec, "elastic": {**elastic, "global_batch": samples}})
    except SpecError:
        # Its owner has given it other workers meanwhile, which do not divide the batch.
        return Decision(job, attempt)
    kept = replace(job, spec=spec.to_mapping(), min_workers=spec.min_workers, max_workers=spec.max_workers)
    is_short = 0 < attempt.world_size < kept.facts.sizes.max
    short_since = (attempt.short_since or at) if is_short else None
    return Decision(kept, replace(attempt, short_since=short_since))


def sizes_taken(job: JobRow, attempt: AttemptRow, resized_at: float, now: float) -> Decision:
    """The driver of the attempt knows the sizes that the job got then."""
    is_short = attempt.started_at is not None and 0 < attempt.world_size < job.facts.sizes.max
    short_since = (attempt.short_since or now) if is_short else None
    return Decision(job, replace(attempt, resized_at=resized_at, short_since=short_since))


def request_stacks(job: JobRow, now: float) -> Decision:
    """Its driver reports what each rank is doing.  Raises ChangeRefused where no workers train."""
    check_not_ended(job, "asked what it is doing")
    if job.state is not JobState.RUNNING:
        raise ChangeRefused(f"the job has no workers that train now: it is {job.state.value}")
    event = NewEvent(
        at=now, kind="job.stacks_requested", message="its owner asked what its workers are doing"
    )
    # Each request is later than the one before, also where the clock was set back.
    asked_at = max(now, (job.stacks_requested_at or 0.0) + 0.001)
    return Decision(replace(job, stacks_requested_at=asked_at), None, (event,))


def stacks_taken(job: JobRow, attempt: AttemptRow, requested_at: float) -> Decision:
    """The driver of the attempt knows of the request that was made then."""
    return Decision(job, replace(attempt, stacks_requested_at=requested_at))


def relabel(job: JobRow, changes: Mapping[str, str | None], now: float) -> Decision:
    """The job with these labels set, and those without a value removed.  Raises ChangeRefused."""
    labels = dict(job.labels)
    for name, value in changes.items():
        if value is None:
            labels.pop(name, None)
            continue
        if refusal := refuses_label(name, value):
            raise ChangeRefused(refusal)
        labels[name] = value
    if len(labels) > MAX_LABELS:
        raise ChangeRefused(f"{len(labels)} labels, expected at most {MAX_LABELS}; remove some")
    if labels == job.labels:
        return Decision(job, None)
    shown = ", ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "none"
    event = NewEvent(
        at=now, kind="job.labelled", message=f"its labels are now {shown}"[:1000], data={"labels": labels}
    )
    return Decision(replace(job, labels=labels), None, (event,))


def request_deletion(job: JobRow, models: list[str], now: float) -> Decision:
    """An ended job is to be deleted with its files; asking again changes nothing.  Raises ChangeRefused.

    `models` are the versions of models that were made from its outputs.
    """
    if job.delete_requested_at is not None:
        return Decision(job, None)
    if not job.state.is_terminal:
        raise ChangeRefused(f"the job is {job.state.value}; cancel it first, and delete it when it has ended")
    if models:
        named = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
        raise ChangeRefused(f"its outputs are {named}, and a job whose outputs are a model is kept")
    event = NewEvent(at=now, kind="job.delete_requested", message="its owner asked to delete the job")
    return Decision(replace(job, delete_requested_at=now), None, (event,))

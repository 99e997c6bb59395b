"""The submission of a pipeline, written once for both clients: all steps are checked, then each becomes a job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from remora.client import interrupted, requests
from remora.client.flows import Flow, Work, dry_run, prepared
from remora.errors import ApiError, SpecError, SpecProblem
from remora.spec.pipeline_steps import (
    PipelineStep,
    check_steps,
    digest_of,
    in_order,
    in_step,
    key_of,
    tried_alone,
)
from remora.spec.spec import JobSpec
from remora.views import DryRun, Job, JobArray


def submit_pipeline(
    steps: Sequence[PipelineStep],
    idempotency_key: str | None,
    on_submitted: Callable[[str, Job | JobArray], None] | None,
) -> Flow[dict[str, Job | JobArray]]:
    """Check all steps and upload their code, then create their jobs, each behind those that it needs.

    Without a key the submission is remembered until its last job is created, so that the same steps with the same code
    go on after an interruption.  When the service refuses a step, those that it has accepted are cancelled.
    """
    ordered: list[PipelineStep] = yield Work(lambda: in_order(steps))
    specs = yield from _prepared_steps(ordered)
    key, digest = idempotency_key, digest_of(specs)
    if key is None:
        key = yield Work(lambda: interrupted.remembered(digest))
    created: dict[str, Job | JobArray] = {}
    try:
        for step in ordered:
            jobs = {name: one.id for name, one in created.items()}
            spec = JobSpec.from_mapping({**step.spec_with(jobs), "code": specs[step.name].code})
            create = requests.create_job if spec.array is None else requests.create_array
            created[step.name] = yield create(spec, key_of(key, step.name))
            if on_submitted is not None:
                on_submitted(step.name, created[step.name])
    except ApiError as error:
        if is_refusal(error):
            yield from _cancel([*created.values()])
            yield Work(lambda: interrupted.forget(digest))
        raise
    if idempotency_key is None:
        yield Work(lambda: interrupted.forget(digest))
    return created


def dry_run_pipeline(steps: Sequence[PipelineStep]) -> Flow[dict[str, DryRun]]:
    """A dry run of each step, as if those that it needs were submitted; nothing is stored or uploaded."""
    ordered: list[PipelineStep] = yield Work(lambda: in_order(steps))
    checked: list[JobSpec] = yield Work(lambda: check_steps(ordered))
    found: dict[str, DryRun] = {}
    problems: list[SpecProblem] = []
    for step, spec in zip(ordered, checked, strict=True):
        try:
            found[step.name] = tried_alone(step, (yield from dry_run(spec)))
        except SpecError as error:
            problems += in_step(step, error)
    if problems:
        raise SpecError(problems)
    return found


def is_refusal(error: BaseException) -> bool:
    """True when the service will refuse the same step again: the others are then cancelled."""
    return isinstance(error, ApiError) and 400 <= error.status < 500 and error.status not in (408, 429)


def _prepared_steps(steps: Sequence[PipelineStep]) -> Flow[dict[str, JobSpec]]:
    """The specifications of all steps, whose code the service has by then.  Raises SpecError with all problems."""
    checked: list[JobSpec] = yield Work(lambda: check_steps(steps))
    specs: dict[str, JobSpec] = {}
    problems: list[SpecProblem] = []
    for step, spec in zip(steps, checked, strict=True):
        try:
            specs[step.name] = yield from prepared(spec)
        except SpecError as error:
            problems += in_step(step, error)
    if problems:
        raise SpecError(problems)
    return specs


def _cancel(created: Sequence[Job | JobArray]) -> Flow[None]:
    for one in created:
        with contextlib.suppress(ApiError):
            cancel = requests.cancel_array if isinstance(one, JobArray) else requests.cancel_job
            yield cancel(one.id)

"""Calls that take several requests, each written once for both clients.

A flow is a generator: it yields what is to be done (a request to send, or blocking work) and is sent what came of
it.  It never touches the network itself.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from remora.client import requests
from remora.client.downloads import check_digest, extract, new_file, new_folder, target_path
from remora.client.requests import Request
from remora.code.bundle import PackedBundle, pack
from remora.code.checks import check_code
from remora.errors import ApiError, ConfigurationError, NotFound, SpecError, SpecProblem
from remora.job_formats import translate
from remora.spec.array_elements import elements_of
from remora.spec.problems import read_spec_file
from remora.spec.spec import MAX_SPEC_BYTES, JobSpec
from remora.views import (
    Checkpoint,
    CostReport,
    DryRun,
    Event,
    Job,
    JobArray,
    LogLine,
    MetricPoint,
    ModelVersion,
    OutputFile,
    Page,
    Profile,
    Pruned,
    Schedule,
)

T = TypeVar("T")

#: Number of the newest jobs among which a prefix of an id is looked for.
SEARCHED_JOBS = 1000


@dataclass(frozen=True)
class Work:
    """Something that blocks and is no request; its result is sent back into the flow."""

    call: Callable[[], Any]


Flow = Generator[Request[Any] | Work, Any, T]


def submit(job: JobSpec | Mapping[str, Any] | str | Path, idempotency_key: str | None) -> Flow[Job]:
    """Check the specification against its code, upload that unless the service has it, create the job."""
    spec = yield from prepared(job)
    _refuse_schedule(spec)
    if spec.array is not None:
        raise SpecError([SpecProblem("array", "it describes many jobs; use submit_array")])
    created: Job = yield requests.create_job(spec, _new_key(idempotency_key))
    return created


def dry_run(job: JobSpec | Mapping[str, Any] | str | Path) -> Flow[DryRun]:
    """Check the specification against its code here, and ask the service for the rest; nothing is uploaded."""
    spec: JobSpec = yield Work(lambda: _spec_of(job))
    if spec.array is not None:
        yield Work(lambda: elements_of(spec))
    if (folder := spec.code_folder) is not None:
        with tempfile.TemporaryDirectory(prefix="remora-") as scratch:
            yield Work(lambda: _packed(spec, folder, Path(scratch, "bundle.zip")))
        spec = spec.model_copy(update={"code": None})
    found: DryRun = yield requests.try_job(spec)
    return found


def _refuse_schedule(spec: JobSpec) -> None:
    if spec.schedule is not None:
        text = "it is submitted again and again; use submit_schedule"
        raise SpecError([SpecProblem("schedule", text)])


def submit_schedule(
    job: JobSpec | Mapping[str, Any] | str | Path, idempotency_key: str | None
) -> Flow[Schedule]:
    """The same for a specification that is submitted at each time of its schedule."""
    spec = yield from prepared(job)
    if spec.schedule is None:
        raise SpecError([SpecProblem("schedule", "missing; use submit for one job")])
    if spec.array is not None:
        yield Work(lambda: elements_of(spec))
    created: Schedule = yield requests.create_schedule(spec, _new_key(idempotency_key))
    return created


def submit_array(
    job: JobSpec | Mapping[str, Any] | str | Path, idempotency_key: str | None
) -> Flow[JobArray]:
    """The same for many jobs by one specification."""
    spec = yield from prepared(job)
    if spec.array is None:
        raise SpecError([SpecProblem("array", "missing; use submit for one job")])
    _refuse_schedule(spec)
    # What is wrong with one of its jobs is found before anything is sent.
    yield Work(lambda: elements_of(spec))
    created: JobArray = yield requests.create_array(spec, _new_key(idempotency_key))
    return created


def prepared(job: JobSpec | Mapping[str, Any] | str | Path) -> Flow[JobSpec]:
    """The specification, whose code the service has by then."""
    spec: JobSpec = yield Work(lambda: _spec_of(job))
    folder = spec.code_folder
    if folder is None:
        return spec
    with tempfile.TemporaryDirectory(prefix="remora-") as scratch:
        file = Path(scratch, "bundle.zip")
        packed = yield Work(lambda: _packed(spec, folder, file))
        known = yield requests.has_bundle(packed.digest)
        if not known:
            yield requests.put_bundle(packed.digest, file)
    return spec.with_code(packed.digest)


def _new_key(given: str | None) -> str:
    return uuid.uuid4().hex if given is None else given


def clone(job_id: str, values: Mapping[str, Any] | None, idempotency_key: str | None) -> Flow[Job]:
    """Submit a job again with other values for some fields."""
    created: Job = yield requests.clone_job(job_id, values or {}, _new_key(idempotency_key))
    return created


def _packed(spec: JobSpec, folder: Path, file: Path) -> PackedBundle:
    packed = pack(folder, file)
    with file.open("rb") as bundle:
        check_code(spec, bundle)
    return packed


def _spec_of(job: JobSpec | Mapping[str, Any] | str | Path) -> JobSpec:
    if isinstance(job, JobSpec):
        return job
    if isinstance(job, Mapping):
        return JobSpec.from_mapping(job)
    return _spec_of_file(Path(job))


def _spec_of_file(path: Path) -> JobSpec:
    """The specification in a file; what was written for others is refused, because its losses would go unseen."""
    raw = read_spec_file(path, MAX_SPEC_BYTES)
    if isinstance(raw, dict) and (found := translate(raw, path.resolve().parent)) is not None:
        text = f"{path.name} is {found.source}; `remora submit` takes it, or give submit the specification of"
        raise SpecError([SpecProblem("", f"{text} remora.job_formats.translate, which names what is lost")])
    return JobSpec.from_mapping(raw)


def all_pages(page: Callable[[str | None], Request[Page[T]]], limit: int | None = None) -> Flow[list[T]]:
    """Every item of a list that pages by cursor, or the first `limit`."""
    items: list[T] = []
    cursor: str | None = None
    while limit is None or len(items) < limit:
        answer: Page[T] = yield page(cursor)
        items += answer.items
        cursor = answer.next_cursor
        if cursor is None:
            break
    return items[:limit]


def costs(
    by: Sequence[str], job_id: str | None, since: float | None, until: float | None
) -> Flow[CostReport]:
    """What nodes were paid for, with all lines."""
    found: CostReport = yield requests.show_costs(by, job_id, since, until)
    lines, cursor = list(found.lines), found.next_cursor
    while cursor is not None:
        # Up to the same moment, so that the lines sum to the total.
        more: CostReport = yield requests.show_costs(by, job_id, found.since, found.until, cursor)
        lines, cursor = lines + more.lines, more.next_cursor
    return found.model_copy(update={"lines": lines, "next_cursor": None})


def jobs(
    state: str | None,
    project: str | None,
    limit: int | None,
    labels: Mapping[str, str | None] | None = None,
    array: str | None = None,
) -> Flow[list[Job]]:
    """Jobs, newest first."""
    size = min(limit or requests.PAGE_ITEMS, requests.PAGE_ITEMS)

    def page(cursor: str | None) -> Request[Page[Job]]:
        return requests.list_jobs(
            state=state, project=project, labels=labels, array=array, limit=size, cursor=cursor
        )

    return (yield from all_pages(page, limit))


def find_job(text: str) -> Flow[Job]:
    """The job with this id, the newest one for `last`, or the only one whose id begins like this.

    Raises NotFound, or Conflict's sister `ApiError` with the code `ambiguous_id` when several begin like this.
    """
    if not text.strip():  # every id begins like this
        raise ConfigurationError("the id of the job is empty: name it, or `last` for the newest one")
    if text == "last":
        newest: Page[Job] = yield requests.list_jobs(limit=1)
        if not newest.items:
            raise NotFound(404, "job_not_found", "there is no job yet", hint="submit one with remora submit")
        return newest.items[0]
    try:
        exact: Job = yield requests.get_job(text)
    except NotFound as error:
        if error.code != "job_not_found":
            raise
    else:
        return exact
    prefix = text if text.startswith("job_") else f"job_{text}"
    candidates = yield from jobs(None, None, SEARCHED_JOBS)
    found = [job for job in candidates if job.id.lower().startswith(prefix.lower())]
    if len(found) > 1:
        some = ", ".join(job.id for job in found[:3])
        raise ApiError(
            400, "ambiguous_id", f"{len(found)} jobs begin with {text!r} ({some}); write more of the id"
        )
    if not found:
        hint = "remora list shows the jobs"
        raise NotFound(404, "job_not_found", f"there is no job {text[:80]!r}", hint=hint)
    return found[0]


#: What asks for the page behind an item of the one before; None asks for the first page.
Paging = Callable[[T | None], Request[Page[T]]]


def events(job_id: str, after: int, tail: int | None, kinds: Sequence[str]) -> Paging[Event]:
    """Pages of the events after a sequence number, or of the last `tail`, of these kinds or of all."""
    return lambda last: requests.list_events(
        job_id,
        after=after if last is None else last.seq,
        tail=tail if last is None else None,
        kinds=kinds,
    )


def logs(
    job_id: str,
    after: int,
    rank: int | None,
    attempt: int | None,
    tail: int | None,
    contains: str | None,
) -> Paging[LogLine]:
    """Pages of the log lines after a sequence number, or of the last `tail`."""
    return lambda last: requests.list_logs(
        job_id,
        after=after if last is None else last.seq,
        rank=rank,
        attempt=attempt,
        tail=tail if last is None else None,
        contains=contains,
    )


def is_last(page: Page[T]) -> bool:
    """No page of events or log lines follows."""
    return not page.items or (page.next_cursor is None and len(page.items) < requests.PAGE_ITEMS)


def metrics(job_id: str, after_step: int | None, points: int | None = None) -> Flow[list[MetricPoint]]:
    """Every metric point after a step, by step; with `points` at most that many, which stand for all."""
    if points is not None:
        few: Page[MetricPoint] = yield requests.list_metrics(job_id, after_step=after_step, points=points)
        return few.items

    def page(cursor: str | None) -> Request[Page[MetricPoint]]:
        return requests.list_metrics(job_id, after_step=after_step, cursor=cursor)

    return (yield from all_pages(page))


def prune(older_than_s: float | None, keep_jobs: int | None) -> Flow[Pruned]:
    """Delete what is old, to its end."""
    total = Pruned(jobs=0, nodes=0, rows=0, has_more=True)
    while total.has_more:
        step: Pruned = yield requests.prune(older_than_s, keep_jobs)
        total = Pruned(
            jobs=total.jobs + step.jobs,
            nodes=total.nodes + step.nodes,
            rows=total.rows + step.rows,
            has_more=step.has_more,
        )
    return total


def download_outputs(
    job_id: str, target: Path, names: Collection[str] | None = None
) -> Flow[list[OutputFile]]:
    """Put the files of a job's outputs, or only those of these names, into the folder `target`."""
    files: list[OutputFile] = yield from all_pages(lambda cursor: requests.list_outputs(job_id, cursor))
    files = [one for one in files if names is None or one.name in names]
    if not files:
        raise NotFound(404, "output_not_found", f"the job {job_id} has no outputs yet")
    yield from _receive(files, target, lambda file, path: requests.get_output(job_id, file.name, path))
    return files


def download_profile(job_id: str, number: int, target: Path) -> Flow[Profile]:
    """Write the trace of a profile to the new file `target`."""
    found: Page[Profile] = yield requests.list_profiles(job_id)
    profile = next((one for one in found.items if one.number == number), None)
    if profile is None or profile.sha256 is None:
        hint = None if profile is None else profile.message
        raise NotFound(404, "profile_not_found", f"the job {job_id} has no trace {number}", hint=hint)
    file = OutputFile(name=target.name, size_bytes=profile.size_bytes or 0, sha256=profile.sha256)
    with new_file(target) as draft:
        yield requests.get_profile_content(job_id, number, draft)
        yield Work(partial(check_digest, draft, file))
    return profile


def download_model(name: str, target: Path, version: int | None) -> Flow[ModelVersion]:
    """Put a version of a model (the newest without `version`) into the folder `target`."""
    model = yield from _model_version(name, version)
    yield from _receive(
        model.files,
        target,
        lambda file, path: requests.get_model_file(name, model.version, file.name, path),
    )
    return model


def _model_version(name: str, version: int | None) -> Flow[ModelVersion]:
    """Asks for no more than it takes: a version may have thousands of files."""
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page: Page[ModelVersion] = yield requests.list_model_versions(
            name, cursor, limit=1 if version is None else None
        )
        for one in page.items:
            if version in (None, one.version):
                return one
        seen += [one.version for one in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    hint = f"it has {', '.join(map(str, seen[:10]))}"
    raise NotFound(404, "model_not_found", f"there is no version {version} of {name}", hint=hint)


def _receive(
    files: list[OutputFile], target: Path, request: Callable[[OutputFile, Path], Request[None]]
) -> Flow[None]:
    with new_folder(target) as folder:
        for file in files:
            path = target_path(folder, file)
            yield request(file, path)
            yield Work(partial(check_digest, path, file))


def download(job_id: str, target: Path, step: int | None) -> Flow[Checkpoint]:
    """Put a checkpoint's files (the newest one's without `step`) into the folder `target`."""
    kept: list[Checkpoint] = yield from all_pages(lambda cursor: requests.list_checkpoints(job_id, cursor))
    wanted = [one for one in kept if step is None or one.step == step]
    if not wanted:
        steps = ", ".join(str(one.step) for one in sorted(kept, key=lambda one: one.step))
        missing = f"no checkpoint of step {step}" if step is not None else "no checkpoint yet"
        hint = f"it has {steps}" if steps else None
        if not kept and (yield from all_pages(lambda cursor: requests.list_outputs(job_id, cursor))):
            hint = f"it has outputs: remora outputs {job_id} --download DIR"
        raise NotFound(404, "checkpoint_not_found", f"the job {job_id} has {missing}", hint=hint)
    chosen = max(wanted, key=lambda one: one.step)
    with tempfile.TemporaryDirectory(prefix="remora-") as scratch:
        archive = Path(scratch, "checkpoint.tar")
        yield requests.get_checkpoint_content(job_id, chosen.step, archive)
        yield Work(lambda: extract(archive, target))
    return chosen

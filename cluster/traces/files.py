"""Which format a file has, and several files as one trace; readers of the formats of others.

The job log of Microsoft's Philly clusters (`cluster_job_log`, a JSON list) says which GPUs an attempt had and from when
to when.  A job becomes one of fixed size: as many workers as its last attempt that ran had GPUs, and as much work as
all its attempts did together.

Spot availability as SkyPilot's authors publish it is `{"metadata": {"gap_seconds": 300}, "data": [0, 3, 16]}`: how many
nodes could be had, one number every `gap_seconds`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from cluster.traces.lines import read_lines
from cluster.traces.trace import MarketChange, Trace, TraceError, TraceJob, merged
from remora.spec.worker_sizes import WorkerSizes


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """The text of a file."""

    #: For messages.
    name: str
    text: str
    #: Id of the offering whose availability it has; only for SkyPilot's format.
    offering: str | None = None


def read_files(files: Iterable[TraceFile]) -> Trace:
    """One trace of all files.  Raises TraceError in one sentence that names the file and the line."""
    return merged(_read(file) for file in files)


def _read(file: TraceFile) -> Trace:
    if file.offering is not None:
        return read_skypilot(file.text, file.offering, file.name)
    begin = file.text.lstrip()[:1]
    if begin == "[":
        return read_philly(file.text, file.name)
    first = file.text.lstrip().partition("\n")[0]
    if '"metadata"' in first + file.text[:4096] and '"kind"' not in first:
        raise TraceError(
            f"{file.name}: it has spot availability and does not say of what: name it OFFERING={file.name}"
        )
    return read_lines(file.text, file.name)


#: CPUs of a worker per GPU; the log does not say them.
CPUS_PER_GPU = 4.0
#: Bounds of what a replay takes, those of our own format: workers, and seconds that a job takes with all of them.
_MOST_WORKERS, _LONGEST_S = 100_000, 1e9


def _time(value: object) -> object:
    """Seconds since 1970, or None; the log has local times without a zone, which are taken for UTC."""
    if value in (None, "None", ""):
        return None
    if isinstance(value, str):
        return datetime.strptime(value.strip()[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return value


Time = Annotated[Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)] | None, BeforeValidator(_time)]


class _Place(BaseModel):
    gpus: list[str] = Field(default_factory=list)


class _Attempt(BaseModel):
    start_time: Time = None
    end_time: Time = None
    detail: list[_Place] = Field(default_factory=list)


class _Job(BaseModel):
    jobid: str = Field(min_length=1)
    vc: str = "default"
    submitted_time: Time
    attempts: list[_Attempt] = Field(default_factory=list)


def read_philly(text: str, name: str = "trace") -> Trace:
    """The jobs that ran, from the first submission on.  Raises TraceError with the number of the bad entry.

    Entries without an attempt that began and ended on a GPU are left out, and counted in `notes`.
    """
    try:
        entries = json.loads(text)
    except RecursionError:
        raise TraceError(f"{name}: its JSON is nested too deeply for a job log") from None
    except ValueError as error:
        raise TraceError(f"{name}: it is not JSON: {str(error)[:200]}") from None
    if not isinstance(entries, list):
        raise TraceError(f"{name}: a Philly job log is a JSON list of jobs")
    read: list[_Job] = []
    kept: list[tuple[_Job, list[tuple[int, float]]]] = []
    for number, entry in enumerate(entries, start=1):
        place = f"{name}, job {number}"
        read.append(job := _entry(entry, place))
        if (attempts := _ran(job)) and job.submitted_time is not None:
            _check(attempts, place)
            kept.append((job, attempts))
    if not kept:
        raise TraceError(f"{name}: no job of it ever ran on a GPU")
    begins_at = min(job.submitted_time or 0.0 for job, _ in kept)
    left_out = len(read) - len(kept)
    notes = (f"{name}: {left_out} jobs that never ran on a GPU are left out",) if left_out else ()
    jobs = tuple(_job(job, attempts, begins_at) for job, attempts in kept)
    return Trace(jobs=jobs, begins_at=begins_at, notes=notes)


def _entry(entry: Any, place: str) -> _Job:
    if not isinstance(entry, Mapping):
        raise TraceError(f"{place}: it is not a JSON object")
    try:
        return _Job.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{place}: {field}: {first['msg'].rstrip('.')}") from None


def _ran(job: _Job) -> list[tuple[int, float]]:
    """GPUs and seconds of each attempt that ran."""
    found = []
    for attempt in job.attempts:
        gpus = sum(len(place.gpus) for place in attempt.detail)
        if gpus and attempt.start_time is not None and attempt.end_time is not None:
            found.append((gpus, max(0.0, attempt.end_time - attempt.start_time)))
    return found


def _check(attempts: list[tuple[int, float]], place: str) -> None:
    """Raise TraceError for a job that no replay comes to the end of."""
    workers = max(gpus for gpus, _ in attempts)
    if workers > _MOST_WORKERS:
        raise TraceError(f"{place}: an attempt had {workers} GPUs, {_MOST_WORKERS} are possible")
    seconds = sum(seconds for _, seconds in attempts)
    if seconds > _LONGEST_S:
        raise TraceError(f"{place}: its attempts ran {seconds:.4g} s in all, {_LONGEST_S:.4g} s are possible")


def _job(job: _Job, attempts: list[tuple[int, float]], begins_at: float) -> TraceJob:
    workers = attempts[-1][0]
    return TraceJob(
        id=job.jobid,
        at_s=(job.submitted_time or begins_at) - begins_at,
        sizes=WorkerSizes(workers, workers),
        resources={"GPU": 1.0, "CPU": CPUS_PER_GPU},
        work_s=sum(gpus * seconds for gpus, seconds in attempts),
        project=job.vc,
    )


#: The last moment of a trace, seconds since it began, as in our own format.
_LAST_S = 1e10


class _Metadata(BaseModel):
    gap_seconds: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class _File(BaseModel):
    metadata: _Metadata
    data: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(min_length=1)


def read_skypilot(text: str, offering: str, name: str = "trace") -> Trace:
    """Changes of one offering, named by its id.  Raises TraceError with the place of the bad number."""
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: {f'{field}: ' if field else ''}{first['msg'].rstrip('.')}") from None
    span_s = len(file.data) * file.metadata.gap_seconds
    if span_s > _LAST_S:
        raise TraceError(
            f"{name}: its {len(file.data)} numbers span {span_s:.4g} s, {_LAST_S:.4g} s are possible"
        )
    changes = []
    before: int | None = None
    for at, nodes in enumerate(file.data):
        if nodes != before:
            changes.append(MarketChange(at_s=at * file.metadata.gap_seconds, offering=offering, nodes=nodes))
        before = nodes
    return Trace(changes=tuple(changes))

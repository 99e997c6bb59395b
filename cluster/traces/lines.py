"""Traces in Remora's own format: JSON lines, one per job, offering, quota or change of the market."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule
from cluster.traces.trace import PROVISIONING_S, MarketChange, Trace, TraceError, TraceJob
from remora.spec import sections as spec_sections
from remora.spec.fields import MAX_WORKERS
from remora.spec.problems import short
from remora.spec.worker_sizes import NoSizePossible, WorkerSizes

Second = Annotated[float, Field(ge=0, le=1e10)]
Duration = Annotated[float, Field(ge=0, le=1e9)]
Price = Annotated[float, Field(ge=0, le=1e6)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Amounts = dict[Name, Annotated[float, Field(ge=0, le=1e15)]]

#: What no line says of an offering: labels are of a cluster, scarcity is of a moment, not of a market, and who said a
#: price does not matter to a replay.
_OMITTED = frozenset({"labels", "is_scarce", "is_price_assumed"})


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _World(_Line):
    kind: Literal["world"]
    begins_at: Second = 0.0
    provisioning_s: Duration = PROVISIONING_S


class _Offering(_Line):
    kind: Literal["offering"]
    size: Name
    zone: Name | None = None
    capacity: CapacityType
    resources: Amounts
    price_per_hour: Price
    evictions_per_hour: Annotated[float, Field(ge=0, le=3600)] = 0.0
    quota: str = ""
    quota_units: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    has_fabric: bool = False


class _Quota(_Line):
    kind: Literal["quota"]
    name: Name
    units: Annotated[int, Field(ge=0, le=1_000_000_000)]


class _Workers(_Line):
    min: Count
    max: Count
    multiple_of: Count = 1
    #: What is divided equally among the copies of the model: only sizes that do so are possible.
    divided: Annotated[int, Field(ge=1, le=2**31)] | None = None


class _Job(_Line):
    kind: Literal["job"]
    id: Name
    at_s: Second
    workers: Count | _Workers = 1
    resources: Amounts = Field(min_length=1)
    work_s: Duration
    checkpoint_s: Annotated[float, Field(gt=0, le=1e9)] = 600.0
    resume_s: Duration = 30.0
    resize_s: Duration = 5.0
    project: Name = "default"
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    deadline_s: Second | None = None
    budget: Annotated[float, Field(gt=0, le=1e12)] | None = None
    #: As a job's specification has it.
    placement: spec_sections.Placement | None = None


class _Change(_Line):
    kind: Literal["market"]
    at_s: Second
    offering: Name
    nodes: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    price_per_hour: Price | None = None


_AnyLine = _World | _Offering | _Quota | _Job | _Change
_LINE: TypeAdapter[_AnyLine] = TypeAdapter(Annotated[_AnyLine, Field(discriminator="kind")])


def read_lines(text: str, name: str = "trace") -> Trace:
    """A trace of JSON lines.  Raises TraceError with the line and the field that cannot be read."""
    world = _World(kind="world")
    offerings: list[Offering] = []
    jobs: list[TraceJob] = []
    changes: list[MarketChange] = []
    quotas: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match _parsed(line, f"{name}, line {number}"):
            case _Job() as job:
                jobs.append(_job(job, f"{name}, line {number}"))
            case _Change() as change:
                changes.append(MarketChange(**change.model_dump(exclude={"kind"})))
            case _Offering() as offering:
                offerings.append(Offering(**offering.model_dump(exclude={"kind"})))
            case _Quota() as quota:
                if quota.name.lower() in quotas:
                    raise TraceError(
                        f"{name}, line {number}: the quota {quota.name!r} stands twice in the trace"
                    )
                quotas[quota.name.lower()] = quota.units
            case _World() as found:
                world = found
    return Trace(
        offerings=tuple(offerings),
        jobs=tuple(jobs),
        changes=tuple(changes),
        quotas=quotas,
        begins_at=world.begins_at,
        provisioning_s=world.provisioning_s,
    )


def _parsed(line: str, place: str) -> _AnyLine:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        kinds = ("world", "offering", "quota", "job", "market", "_Workers", "constrained-int", "int")
        field = ".".join(str(part) for part in first["loc"] if part not in kinds)
        said = first["msg"].rstrip(".").removeprefix("Value error,").strip().replace("Input should", "should")
        if not said:  # fields of a specification leave it to their description
            name = next(part for part in reversed(first["loc"]) if isinstance(part, str))
            form = spec_sections.Placement.model_fields[name].description
            said = f"{short(first['input'])} given, expected {form}"
        raise TraceError(f"{place}: {f'{field}: ' if field else ''}{said}") from None


def _job(line: _Job, place: str) -> TraceJob:
    workers = line.workers
    if isinstance(workers, int):
        workers = _Workers(min=workers, max=workers)
    return TraceJob(
        id=line.id,
        at_s=line.at_s,
        sizes=_sizes(workers, place),
        resources=line.resources,
        work_s=line.work_s,
        checkpoint_s=line.checkpoint_s,
        resume_s=line.resume_s,
        resize_s=line.resize_s,
        project=line.project,
        priority=line.priority,
        deadline_s=line.deadline_s,
        budget=line.budget,
        placement=_placement(line.placement),
    )


def _sizes(workers: _Workers, place: str) -> WorkerSizes:
    least, most, multiple_of = workers.min, workers.max, workers.multiple_of
    if least > most:
        raise TraceError(f"{place}: workers.min is {least} and above workers.max, which is {most}")
    if least % multiple_of or most % multiple_of:
        said = f"workers.min is {least} and workers.max is {most}; both have to be multiples of {multiple_of}"
        raise TraceError(f"{place}: {said}")
    if workers.divided is not None and most > MAX_WORKERS:
        raise TraceError(
            f"{place}: workers.max is {most}, and jobs that divide something equally have {MAX_WORKERS} at most"
        )
    try:
        return WorkerSizes(least, most, multiple_of, workers.divided)
    except NoSizePossible as error:
        raise TraceError(f"{place}: workers: {error}") from None


def _placement(asked: spec_sections.Placement | None) -> Placement:
    if asked is None:
        return ANYWHERE
    found = Placement(
        pools=asked.pools,
        zones=asked.zones,
        capacity=None if asked.capacity is None else CapacityRule(asked.capacity),
        needs_fabric=asked.fabric == "infiniband",
    )
    return ANYWHERE if found == ANYWHERE else found  # replays know by identity who asks for nothing


def write_lines(trace: Trace) -> Iterator[str]:
    """The lines of a trace, without line ends; `read_lines` makes the same trace of them."""
    world = {"kind": "world", "begins_at": trace.begins_at, "provisioning_s": trace.provisioning_s}
    yield json.dumps(world)
    for offering in trace.offerings:
        values = {
            one.name: getattr(offering, one.name) for one in fields(offering) if one.name not in _OMITTED
        }
        yield json.dumps({"kind": "offering", **values, "resources": dict(offering.resources)})
    for name, units in trace.quotas.items():
        yield json.dumps({"kind": "quota", "name": name, "units": units})
    for change in trace.changes:
        yield json.dumps({"kind": "market", **_set(change, "at_s", "offering", "nodes", "price_per_hour")})
    for job in trace.jobs:
        yield json.dumps(_job_line(job))


def _job_line(job: TraceJob) -> dict[str, Any]:
    sizes = job.sizes
    workers: int | dict[str, int] = sizes.min
    if job.is_elastic or sizes.multiple_of > 1 or sizes.divided is not None:
        workers = {"min": sizes.min, "max": sizes.max}
        if sizes.multiple_of > 1:
            workers["multiple_of"] = sizes.multiple_of
        if sizes.divided is not None:
            workers["divided"] = sizes.divided
    names = ("work_s", "checkpoint_s", "resume_s", "resize_s", "project", "priority", "deadline_s", "budget")
    fields = {"workers": workers, "resources": dict(job.resources), **_set(job, *names)}
    if placement := asked_by(job.placement):
        fields["placement"] = placement
    return {"kind": "job", "id": job.id, "at_s": job.at_s, **fields}


def asked_by(placement: Placement) -> dict[str, Any]:
    """The placement as a job's specification says it, without what asks for nothing."""
    asked = {
        "pools": list(placement.pools),
        "zones": list(placement.zones),
        "capacity": None if placement.capacity is None else placement.capacity.value,
        "fabric": "infiniband" if placement.needs_fabric else None,
    }
    return {name: value for name, value in asked.items() if value}


def _set(value: object, *names: str) -> dict[str, Any]:
    return {name: found for name in names if (found := getattr(value, name)) is not None}

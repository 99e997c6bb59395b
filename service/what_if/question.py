"""Reads and checks a what-if request: which traces are replayed, under which policies (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.documents import read_document
from cluster.policies.policies import Policies
from cluster.policies.policy_problems import PoliciesRefused
from cluster.traces.files import TraceFile, read_files
from cluster.traces.trace import Trace, TraceError

Name = Annotated[str, Field(min_length=1, max_length=300)]
#: Jobs of one replay.
MOST_JOBS = 200_000
MOST_NODES = 5_000
#: From the begin of a trace to its last moment.  Schedules are looked at minute by minute, so that more takes hours.
MOST_DAYS = 3 * 366


class Refused(ValueError):
    """The question cannot be answered; `field` is the part of the request that has to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    text: str
    offering: Name | None = None


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    text: str


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    traces: Annotated[list[_File], Field(min_length=1, max_length=64)]
    policies: Annotated[list[_Document], Field(min_length=1, max_length=2)]
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    look_s: Annotated[float, Field(ge=1, le=3600)] = 60.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """A trace, and one or two policies by the names of their files."""

    trace: Trace
    policies: Mapping[str, Policies]
    seed: int = 0
    look_s: float = 60.0


def read_question(body: object) -> Question:
    """The question of a request's body.  Raises Refused with one sentence about the first thing that is wrong."""
    try:
        asked = _Body.model_validate(body)
    except ValidationError as error:
        raise _refused(error) from None
    try:
        files = [TraceFile(name=one.name, text=one.text, offering=one.offering) for one in asked.traces]
        trace = read_files(files)
    except TraceError as error:
        raise Refused("traces", str(error)) from None
    if not trace.jobs:
        raise Refused("traces", "the traces have no job: name a file with jobs")
    if len(trace.jobs) > MOST_JOBS:
        raise Refused("traces", f"the traces have {len(trace.jobs)} jobs, {MOST_JOBS} are possible: cut them")
    _check_span(trace)
    policies = {one.name: _policies(one, trace) for one in asked.policies}
    if len(policies) < len(asked.policies):
        raise Refused("policies", f"two policies are named {asked.policies[0].name!r}: name them differently")
    for name, policy in policies.items():
        _check(name, policy)
    return Question(trace=trace, policies=policies, seed=asked.seed, look_s=asked.look_s)


def _check_span(trace: Trace) -> None:
    """Refuse a trace whose replay would not come to its end."""
    most_s = MOST_DAYS * 86_400.0
    for job in trace.jobs:
        if (ends_s := job.at_s + job.work_s / job.max_workers) > most_s:
            said = f"the job {job.id[:80]!r} ends {ends_s / 86_400:.0f} days after the trace began at the earliest"
            raise Refused("traces", f"{said}, {MOST_DAYS} are possible: cut it")
    if trace.changes and trace.changes[-1].at_s > most_s:
        said = f"the market changes {trace.changes[-1].at_s / 86_400:.0f} days after the trace began"
        raise Refused("traces", f"{said}, {MOST_DAYS} are possible: cut it")


def _refused(error: ValidationError) -> Refused:
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).rstrip(".").replace("Input should", "it should")
    return Refused(field, f"{field}: {message}" if field else message)


def _policies(document: _Document, trace: Trace) -> Policies:
    """As an operator would apply them, where nothing but what the trace sells is for sale."""
    try:
        return read_document(document.text, ClusterFacts(catalogue=trace.offerings))
    except PoliciesRefused as error:
        first, more = error.problems[0], len(error.problems) - 1
        others = f" (and {more} more, see `remora policy check`)" if more else ""
        raise Refused("policies", f"{document.name}: {first}{others}") from None


def _check(name: str, policies: Policies) -> None:
    """Refuse what cannot lead to a replay worth reading."""
    if not policies.pools:
        raise Refused("policies", f"{name}: it has no pool")
    clusters = {pool.cluster for pool in policies.pools.values()}
    if len(clusters) > 1:
        said = f"it has pools of the clusters {', '.join(sorted(clusters))}, and a replay is of one"
        raise Refused("policies", f"{name}: {said}; leave out those of the others")
    for pool, policy in policies.pools.items():
        if policy.max_nodes > MOST_NODES:
            said = f"pool {pool!r} may have {policy.max_nodes} nodes, {MOST_NODES} are possible in a replay"
            raise Refused("policies", f"{name}: {said}")

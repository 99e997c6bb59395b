"""Every request of the API as a value: what to send, how to read the answer, whether it may be sent twice.  Pure.

One function per call; `Client` and `AsyncClient` send the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from remora.budget_views import Budget
from remora.errors import ApiError, ConfigurationError, NotFound, SpecProblem, api_error_class
from remora.spec.spec import JobSpec
from remora.views import (
    Attempt,
    Checkpoint,
    ClusterEvent,
    ClusterLedger,
    CostReport,
    Drill,
    DryRun,
    Event,
    GoodputReport,
    Health,
    Job,
    JobArray,
    JobPhase,
    Ledger,
    LogLine,
    MetricPoint,
    ModelVersion,
    Node,
    NodeEvent,
    NodeLoad,
    OutputFile,
    Page,
    Policy,
    PolicyCheck,
    PolicyVersion,
    Pool,
    Problem,
    Profile,
    Project,
    Pruned,
    RayRequest,
    RecordedTrace,
    Schedule,
    ScheduleRun,
    Secret,
    SecretsRotation,
    ShellExchange,
    ShellSession,
    WhatIf,
    WorkerLoad,
)

T = TypeVar("T")

#: Items asked for at once.
PAGE_ITEMS = 500
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_KEY = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back: the status, headers with lower-case names, the whole body."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Request(Generic[T]):
    """One request and how to read its answer."""

    method: str
    path: str
    #: Reads an answer of status 2xx or one of `also_expected`; ValueError means: not an answer of Remora.
    parse: Callable[[Answer], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    #: A file sent as the body, read while it is sent.
    body_file: Path | None = None
    #: A file that takes the answer's body, which is then empty in `Answer`.
    save_to: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    also_expected: frozenset[int] = frozenset()
    #: Doing it twice equals doing it once, although its method does not say so.
    is_repeatable: bool = False

    @property
    def is_safe_to_retry(self) -> bool:
        """True when doing it twice equals doing it once."""
        return self.method != "POST" or self.is_repeatable or "Idempotency-Key" in self.headers

    def result(self, answer: Answer) -> T:
        """The typed result.  Raises ApiError for an error answer, and for one that Remora would not give."""
        if not 200 <= answer.status < 300 and answer.status not in self.also_expected:
            raise error_of(answer)
        try:
            return self.parse(answer)
        except ValueError as error:
            raise unexpected(answer.status) from error


@dataclass(frozen=True, kw_only=True)
class Stream(Generic[T]):
    """A live stream of server-sent events and how to read its items."""

    path: str
    #: Name of the events that carry items.
    event: str
    parse: Callable[[str], T]
    #: Position of an item; the stream resumes after the last one taken.
    seq: Callable[[T], int]
    after: int = 0
    params: Mapping[str, str] = field(default_factory=dict)
    #: Parameters that only the first connection sends, because a resumed one knows its place.
    first_params: Mapping[str, str] = field(default_factory=dict)


def error_of(answer: Answer) -> ApiError:
    """The error that a problem document, or any other error answer, stands for."""
    kind = api_error_class(answer.status)
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        text = f"the service answered {answer.status} without saying why"
        return kind(answer.status, "unknown", text, hint="look into its log")
    fields = [SpecProblem(one.field, one.message) for one in problem.errors]
    return kind(
        answer.status,
        problem.code,
        problem.detail,
        hint=problem.hint,
        errors=fields,
        request_id=problem.request_id,
    )


def unexpected(status: int) -> ApiError:
    """The error for an answer that does not look like Remora's."""
    detail = "what answers at this address does not speak Remora's API"
    return ApiError(status, "unexpected_answer", detail, hint="check --server or REMORA_SERVER")


def job_path(job_id: str, *rest: str) -> str:
    """Path of a job.  Raises NotFound for a text that cannot be an id."""
    if not _ID.fullmatch(job_id):
        raise NotFound(404, "job_not_found", f"there is no job {job_id[:80]!r}")
    return "/".join(("/v1/jobs", job_id, *rest))


def create_job(spec: JobSpec, idempotency_key: str) -> Request[Job]:
    """Submit a job whose code, if any, is uploaded already.  Raises ConfigurationError for an impossible key."""
    headers = _key(idempotency_key)
    return Request(method="POST", path="/v1/jobs", json=spec.to_mapping(), headers=headers, parse=_one(Job))


def try_job(spec: JobSpec) -> Request[DryRun]:
    """What would become of a job if it were submitted; nothing is stored."""
    return Request(
        method="POST", path="/v1/jobs", params={"dry_run": "true"}, json=spec.to_mapping(), parse=_one(DryRun)
    )


def _key(idempotency_key: str) -> dict[str, str]:
    if not _KEY.fullmatch(idempotency_key):
        raise ConfigurationError("an idempotency key is 1 to 128 printable ASCII characters without spaces")
    return {"Idempotency-Key": idempotency_key}


def create_array(spec: JobSpec, idempotency_key: str) -> Request[JobArray]:
    """Submit many jobs by one specification.  Raises ConfigurationError for an impossible key."""
    headers = _key(idempotency_key)
    return Request(
        method="POST", path="/v1/arrays", json=spec.to_mapping(), headers=headers, parse=_one(JobArray)
    )


def list_arrays(cursor: str | None = None) -> Request[Page[JobArray]]:
    """One page of arrays, newest first."""
    return Request(method="GET", path="/v1/arrays", params=_params(cursor=cursor), parse=_one(Page[JobArray]))


def get_array(array_id: str) -> Request[JobArray]:
    """One array."""
    return Request(method="GET", path=_array_path(array_id), parse=_one(JobArray))


def cancel_array(array_id: str) -> Request[JobArray]:
    """Ask for the end of all jobs of an array."""
    return Request(method="POST", path=f"{_array_path(array_id)}/cancel", parse=_one(JobArray))


def _array_path(array_id: str) -> str:
    if not _ID.fullmatch(array_id):
        hint = "remora arrays lists them"
        raise NotFound(404, "array_not_found", f"there is no array {array_id[:80]!r}", hint=hint)
    return f"/v1/arrays/{array_id}"


def create_schedule(spec: JobSpec, idempotency_key: str) -> Request[Schedule]:
    """Store a specification with a schedule.  Raises ConfigurationError for an impossible key."""
    headers = _key(idempotency_key)
    return Request(
        method="POST", path="/v1/schedules", json=spec.to_mapping(), headers=headers, parse=_one(Schedule)
    )


def list_schedules(cursor: str | None = None) -> Request[Page[Schedule]]:
    """One page of schedules, newest first."""
    params = _params(cursor=cursor)
    return Request(method="GET", path="/v1/schedules", params=params, parse=_one(Page[Schedule]))


def get_schedule(schedule_id: str) -> Request[Schedule]:
    """One schedule."""
    return Request(method="GET", path=_schedule_path(schedule_id), parse=_one(Schedule))


def list_runs(schedule_id: str, cursor: str | None = None) -> Request[Page[ScheduleRun]]:
    """One page of what became of the times of a schedule, newest first."""
    path, params = f"{_schedule_path(schedule_id)}/runs", _params(cursor=cursor)
    return Request(method="GET", path=path, params=params, parse=_one(Page[ScheduleRun]))


def delete_schedule(schedule_id: str) -> Request[Schedule]:
    """Delete a schedule; what it has submitted stays."""
    return Request(method="DELETE", path=_schedule_path(schedule_id), parse=_one(Schedule))


def _schedule_path(schedule_id: str) -> str:
    if not _ID.fullmatch(schedule_id):
        hint = "remora schedules lists them"
        raise NotFound(404, "schedule_not_found", f"there is no schedule {schedule_id[:80]!r}", hint=hint)
    return f"/v1/schedules/{schedule_id}"


def list_projects(cursor: str | None = None) -> Request[Page[Project]]:
    """A page of projects, with what is kept of each."""
    return Request(
        method="GET", path="/v1/projects", parse=_one(Page[Project]), params=_params(cursor=cursor)
    )


def list_budgets(cursor: str | None = None) -> Request[Page[Budget]]:
    """A page of budgets, with what is spent of each."""
    return Request(method="GET", path="/v1/budgets", parse=_one(Page[Budget]), params=_params(cursor=cursor))


def list_secrets(project: str) -> Request[Page[Secret]]:
    """The secrets of a project, without their values."""
    return Request(method="GET", path=f"{_project_path(project)}/secrets", parse=_one(Page[Secret]))


def set_secret(
    project: str, name: str, *, value: str | None, key_vault: str | None, author: str
) -> Request[Secret]:
    """Store a secret: its value, or the address of a secret in a key vault."""
    content = {"value": value} if key_vault is None else {"key_vault": key_vault}
    path = _secret_path(project, name)
    return Request(method="PUT", path=path, json={**content, "author": author}, parse=_one(Secret))


def delete_secret(project: str, name: str) -> Request[Secret]:
    """Delete a secret."""
    return Request(method="DELETE", path=_secret_path(project, name), parse=_one(Secret))


def rotate_secrets() -> Request[SecretsRotation]:
    """Encrypt all secrets with a new key."""
    return Request(method="POST", path="/v1/secrets/rotate", parse=_one(SecretsRotation))


def _project_path(project: str) -> str:
    return f"/v1/projects/{_part(project, 'the name of the project')}"


def _secret_path(project: str, name: str) -> str:
    return f"{_project_path(project)}/secrets/{_part(name, 'the name of the secret')}"


def clone_job(job_id: str, values: Mapping[str, Any], idempotency_key: str) -> Request[Job]:
    """Submit a job again with other values for some fields.  Raises ConfigurationError for an impossible key."""
    path, body = job_path(job_id, "clone"), {"set": dict(values)}
    return Request(method="POST", path=path, json=body, headers=_key(idempotency_key), parse=_one(Job))


def list_jobs(
    *,
    state: str | None = None,
    project: str | None = None,
    labels: Mapping[str, str | None] | None = None,
    array: str | None = None,
    limit: int = PAGE_ITEMS,
    cursor: str | None = None,
) -> Request[Page[Job]]:
    """One page of jobs, newest first; those with all of the labels, of which None stands for any value."""
    params: dict[str, Any] = _params(state=state, project=project, array=array, limit=limit, cursor=cursor)
    if labels:
        params["label"] = [name if value is None else f"{name}={value}" for name, value in labels.items()]
    return Request(method="GET", path="/v1/jobs", params=params, parse=_one(Page[Job]))


def get_job(job_id: str) -> Request[Job]:
    """One job."""
    return Request(method="GET", path=job_path(job_id), parse=_one(Job))


def cancel_job(job_id: str) -> Request[Job]:
    """Ask for a job's end."""
    return Request(method="POST", path=job_path(job_id, "cancel"), parse=_one(Job))


def pause_job(job_id: str) -> Request[Job]:
    """Keep a job from running until it is resumed."""
    return Request(method="POST", path=job_path(job_id, "pause"), parse=_one(Job))


def resume_job(job_id: str) -> Request[Job]:
    """Let a paused job go on."""
    return Request(method="POST", path=job_path(job_id, "resume"), parse=_one(Job))


def resize_job(job_id: str, least: int | None, most: int | None) -> Request[Job]:
    """Change how many workers a job may have; None leaves an end as it is."""
    ends = {"min": least, "max": most}
    body = {name: count for name, count in ends.items() if count is not None}
    return Request(method="POST", path=job_path(job_id, "resize"), json=body, parse=_one(Job))


def request_stacks(job_id: str) -> Request[Job]:
    """Ask what the workers of a running job are doing."""
    return Request(method="POST", path=job_path(job_id, "stacks"), parse=_one(Job))


def request_profile(job_id: str, steps: int, rank: int) -> Request[Profile]:
    """Ask for a profile of the next steps of a rank of a running job."""
    body = {"steps": steps, "rank": rank}
    return Request(method="POST", path=job_path(job_id, "profiles"), json=body, parse=_one(Profile))


def list_profiles(job_id: str) -> Request[Page[Profile]]:
    """The profiles of a job."""
    return Request(method="GET", path=job_path(job_id, "profiles"), parse=_one(Page[Profile]))


def open_shell(
    job_id: str, rank: int, command: Sequence[str], size: tuple[int, int] | None, term: str
) -> Request[ShellSession]:
    """Open a shell in a rank of a running job."""
    body: dict[str, Any] = {"rank": rank, "command": list(command), "term": term}
    if size is not None:
        body |= {"rows": size[0], "columns": size[1]}
    return Request(method="POST", path=job_path(job_id, "shells"), json=body, parse=_one(ShellSession))


def list_shells(job_id: str) -> Request[Page[ShellSession]]:
    """The newest shells of a job."""
    return Request(method="GET", path=job_path(job_id, "shells"), parse=_one(Page[ShellSession]))


def exchange_shell(job_id: str, number: int, said: Mapping[str, Any]) -> Request[ShellExchange]:
    """Type into a shell and read from it; what is numbered may be sent twice."""
    path = job_path(job_id, "shells", str(number), "exchange")
    body = {name: value for name, value in said.items() if value is not None}
    return Request(method="POST", path=path, json=body, parse=_one(ShellExchange), is_repeatable=True)


def close_shell(job_id: str, number: int) -> Request[ShellSession]:
    """Ask for the end of a shell."""
    path = job_path(job_id, "shells", str(number))
    return Request(method="DELETE", path=path, parse=_one(ShellSession))


def get_profile_content(job_id: str, number: int, save_to: Path) -> Request[None]:
    """The compressed trace of a profile, written to `save_to`."""
    path = job_path(job_id, "profiles", str(number), "content")
    return Request(method="GET", path=path, save_to=save_to, parse=_nothing)


def label_job(job_id: str, labels: Mapping[str, str | None]) -> Request[Job]:
    """Set labels of a job, and remove those whose value is None."""
    return Request(method="PATCH", path=job_path(job_id, "labels"), json=dict(labels), parse=_one(Job))


def delete_job(job_id: str) -> Request[Job]:
    """Delete an ended job with its files."""
    return Request(method="DELETE", path=job_path(job_id), parse=_one(Job))


def list_attempts(job_id: str, cursor: str | None = None) -> Request[Page[Attempt]]:
    """One page of a job's attempts, oldest first."""
    params = _params(cursor=cursor)
    return Request(method="GET", path=job_path(job_id, "attempts"), params=params, parse=_one(Page[Attempt]))


def list_phases(job_id: str, cursor: str | None = None) -> Request[Page[JobPhase]]:
    """One page of what a job's attempts did, the newest first."""
    params = _params(cursor=cursor, limit=PAGE_ITEMS)
    return Request(method="GET", path=job_path(job_id, "phases"), params=params, parse=_one(Page[JobPhase]))


def list_events(
    job_id: str,
    *,
    after: int,
    limit: int = PAGE_ITEMS,
    tail: int | None = None,
    kinds: Sequence[str] = (),
) -> Request[Page[Event]]:
    """Events after a sequence number, oldest first; with `tail` only the last ones, with `kinds` only those."""
    params = _params(after=after, limit=limit, tail=tail, kind=",".join(kinds) or None)
    return Request(method="GET", path=job_path(job_id, "events"), params=params, parse=_one(Page[Event]))


def list_logs(
    job_id: str,
    *,
    after: int,
    limit: int = PAGE_ITEMS,
    rank: int | None = None,
    attempt: int | None = None,
    tail: int | None = None,
    contains: str | None = None,
) -> Request[Page[LogLine]]:
    """Log lines after a sequence number, oldest first; with `tail` only the last lines, at most that many."""
    params = _params(after=after, limit=limit, rank=rank, attempt=attempt, tail=tail, contains=contains)
    return Request(method="GET", path=job_path(job_id, "logs"), params=params, parse=_one(Page[LogLine]))


def list_metrics(
    job_id: str,
    *,
    after_step: int | None = None,
    limit: int = PAGE_ITEMS,
    cursor: str | None = None,
    points: int | None = None,
) -> Request[Page[MetricPoint]]:
    """One page of metric points by step; with `points` at most that many, which stand for all."""
    params = _params(after_step=after_step, limit=limit, cursor=cursor, points=points)
    path = job_path(job_id, "metrics")
    return Request(method="GET", path=path, params=params, parse=_one(Page[MetricPoint]))


def show_ledger(job_id: str) -> Request[Ledger]:
    """What a job has cost so far."""
    return Request(method="GET", path=job_path(job_id, "ledger"), parse=_one(Ledger))


def list_checkpoints(job_id: str, cursor: str | None = None) -> Request[Page[Checkpoint]]:
    """One page of a job's committed checkpoints."""
    path = job_path(job_id, "checkpoints")
    return Request(method="GET", path=path, params=_params(cursor=cursor), parse=_one(Page[Checkpoint]))


def get_checkpoint_content(job_id: str, step: int, save_to: Path) -> Request[None]:
    """A checkpoint's files as a tar archive, written to `save_to`."""
    path = job_path(job_id, "checkpoints", str(step), "content")
    return Request(method="GET", path=path, save_to=save_to, parse=_nothing)


def list_outputs(job_id: str, cursor: str | None = None) -> Request[Page[OutputFile]]:
    """One page of the files in a job's outputs."""
    path = job_path(job_id, "outputs")
    return Request(method="GET", path=path, params=_params(cursor=cursor), parse=_one(Page[OutputFile]))


def get_output(job_id: str, name: str, save_to: Path) -> Request[None]:
    """The content of an output, written to `save_to`."""
    if not name:
        raise ConfigurationError("the name of the output is empty: name it")
    path = job_path(job_id, "outputs", quote(name))
    return Request(method="GET", path=path, save_to=save_to, parse=_nothing)


def list_models(cursor: str | None = None) -> Request[Page[ModelVersion]]:
    """One page of models, the newest version of each."""
    return Request(
        method="GET", path="/v1/models", params=_params(cursor=cursor), parse=_one(Page[ModelVersion])
    )


def list_model_versions(
    name: str, cursor: str | None = None, limit: int | None = None
) -> Request[Page[ModelVersion]]:
    """One page of a model's versions, newest first.  Raises NotFound for a text that cannot be a name."""
    return Request(
        method="GET",
        path=f"{_model_path(name)}/versions",
        params=_params(cursor=cursor, limit=limit),
        parse=_one(Page[ModelVersion]),
    )


def get_model_file(name: str, version: int, file: str, save_to: Path) -> Request[None]:
    """The content of a model's file, written to `save_to`."""
    path = f"{_model_path(name)}/versions/{version}/files/{quote(file)}"
    return Request(method="GET", path=path, save_to=save_to, parse=_nothing)


def _model_path(name: str) -> str:
    if not _MODEL.fullmatch(name):
        hint = "remora models lists them"
        raise NotFound(404, "model_not_found", f"there is no model {name[:80]!r}", hint=hint)
    return f"/v1/models/{name}"


def has_bundle(digest: str) -> Request[bool]:
    """True when the service holds the bundle."""
    return Request(
        method="HEAD",
        path=_bundle_path(digest),
        also_expected=frozenset({404}),
        parse=lambda answer: answer.status != 404,
    )


def put_bundle(digest: str, file: Path) -> Request[None]:
    """Upload a bundle."""
    headers = {"Content-Type": "application/zip", "Content-Length": str(file.stat().st_size)}
    return Request(method="PUT", path=_bundle_path(digest), body_file=file, headers=headers, parse=_nothing)


def list_worker_loads(job_id: str, cursor: str | None = None) -> Request[Page[WorkerLoad]]:
    """One page of how busy the workers of a job are."""
    path, params = job_path(job_id, "loads"), _params(cursor=cursor)
    return Request(method="GET", path=path, params=params, parse=_one(Page[WorkerLoad]))


def list_node_loads(cursor: str | None = None) -> Request[Page[NodeLoad]]:
    """One page of how busy workers keep nodes."""
    return Request(method="GET", path="/v1/loads", params=_params(cursor=cursor), parse=_one(Page[NodeLoad]))


def list_nodes(cursor: str | None = None, state: str | None = None) -> Request[Page[Node]]:
    """One page of the cluster's nodes, in one of these states (with commas between them) or in all."""
    params = _params(cursor=cursor, state=state)
    return Request(method="GET", path="/v1/nodes", params=params, parse=_one(Page[Node]))


def show_cluster_ledger(since: float | None, until: float | None) -> Request[ClusterLedger]:
    """Who pays for what the cloud bills between two times."""
    params = _params(since=since, until=until)
    return Request(method="GET", path="/v1/ledger", params=params, parse=_one(ClusterLedger))


def show_costs(
    by: Sequence[str], job_id: str | None, since: float | None, until: float | None, cursor: str | None = None
) -> Request[CostReport]:
    """One page of what nodes were paid for between two times."""
    params = _params(by=",".join(by), job=job_id, since=since, until=until, cursor=cursor)
    return Request(method="GET", path="/v1/costs", params=params, parse=_one(CostReport))


def export_costs(job_id: str | None, since: float | None, until: float | None) -> Request[str]:
    """What nodes were paid for between two times, as CSV in the form of FOCUS."""
    params = _params(format="focus", job=job_id, since=since, until=until)
    return Request(
        method="GET", path="/v1/costs", params=params, parse=lambda answer: answer.content.decode()
    )


def show_goodput(job_id: str | None, since: float | None, until: float | None) -> Request[GoodputReport]:
    """Which part of the time paid between two times trained."""
    params = _params(job=job_id, since=since, until=until)
    return Request(method="GET", path="/v1/goodput", params=params, parse=_one(GoodputReport))


def prune(older_than_s: float | None = None, keep_jobs: int | None = None) -> Request[Pruned]:
    """Delete some of what is old."""
    params = _params(older_than_s=older_than_s, keep_jobs=keep_jobs)
    return Request(method="POST", path="/v1/prune", params=params, parse=_one(Pruned))


def list_ray_requests(cursor: str | None = None) -> Request[Page[RayRequest]]:
    """What Ray programs that are no jobs wait for."""
    return Request(
        method="GET", path="/v1/ray-requests", params=_params(cursor=cursor), parse=_one(Page[RayRequest])
    )


def list_pools(cursor: str | None = None) -> Request[Page[Pool]]:
    """The node pools as they are now."""
    return Request(method="GET", path="/v1/pools", params=_params(cursor=cursor), parse=_one(Page[Pool]))


def list_policies(cursor: str | None = None, limit: int | None = None) -> Request[Page[PolicyVersion]]:
    """One page of the versions of the policies, newest first."""
    params = _params(cursor=cursor, limit=limit)
    return Request(method="GET", path="/v1/policies", params=params, parse=_one(Page[PolicyVersion]))


def get_policy(version: int | None = None) -> Request[Policy]:
    """One version of the policies; None: the one in force."""
    path = f"/v1/policies/{'newest' if version is None else version}"
    return Request(method="GET", path=path, parse=_one(Policy))


def check_policy(document: str) -> Request[PolicyCheck]:
    """What the service would say to a policy document; nothing is stored."""
    body = {"document": document}
    return Request(method="POST", path="/v1/policies/check", json=body, parse=_one(PolicyCheck))


def apply_policy(document: str, *, based_on: int, author: str, comment: str) -> Request[Policy]:
    """Put a policy document in force that was made from version `based_on`."""
    body = {"document": document, "based_on": based_on, "author": author, "comment": comment}
    return Request(method="POST", path="/v1/policies", json=body, parse=_one(Policy))


def roll_back_policy(version: int, *, based_on: int, author: str, comment: str) -> Request[Policy]:
    """Put the document of an earlier version in force again."""
    body = {"restores": version, "based_on": based_on, "author": author, "comment": comment}
    return Request(method="POST", path="/v1/policies", json=body, parse=_one(Policy))


def list_cluster_events(*, after: int = 0, cursor: str | None = None) -> Request[Page[ClusterEvent]]:
    """One page of the events of the whole cluster."""
    params = _params(after=after, cursor=cursor)
    return Request(method="GET", path="/v1/events", params=params, parse=_one(Page[ClusterEvent]))


def get_node(node_id: str) -> Request[Node]:
    """One node, also after its end."""
    return Request(method="GET", path=node_path(node_id), parse=_one(Node))


def list_node_events(node_id: str, cursor: str | None = None) -> Request[Page[NodeEvent]]:
    """One page of what happened to a node, oldest first."""
    path = node_path(node_id, "events")
    return Request(method="GET", path=path, params=_params(cursor=cursor), parse=_one(Page[NodeEvent]))


def drill_node(node_id: str, notice_s: float | None) -> Request[Drill]:
    """Ask for the rehearsed preemption of a node; without a notice when `notice_s` is None."""
    path = node_path(node_id, "drill")
    return Request(method="POST", path=path, json=_drill_order(notice_s), parse=_one(Drill))


def _part(text: str, what: str) -> str:
    """A part of a path.  Raises ConfigurationError for an empty one, with which the path would be another route's."""
    if not text.strip():
        raise ConfigurationError(f"{what} is empty: name it")
    return quote(text, safe="")


def drill_pool(pool: str, notice_s: float | None) -> Request[Drill]:
    """The same for every ready node of a pool at once."""
    path = f"/v1/pools/{_part(pool, 'the name of the pool')}/drill"
    return Request(method="POST", path=path, json=_drill_order(notice_s), parse=_one(Drill))


def reopen_pool(pool: str) -> Request[Pool]:
    """Ask again at once for what a pool was refused."""
    path = f"/v1/pools/{_part(pool, 'the name of the pool')}/reopen"
    return Request(method="POST", path=path, parse=_one(Pool))


def _drill_order(notice_s: float | None) -> dict[str, Any]:
    return {"silent": True} if notice_s is None else {"notice_s": notice_s}


def get_drill(drill_id: str) -> Request[Drill]:
    """How a drill goes."""
    if not _ID.fullmatch(drill_id):
        raise NotFound(404, "drill_not_found", f"there is no drill {drill_id[:80]!r}")
    return Request(method="GET", path=f"/v1/drills/{drill_id}", parse=_one(Drill))


def node_path(node_id: str, *rest: str) -> str:
    """Path of a node.  Raises NotFound for a text that cannot be an id."""
    if not _ID.fullmatch(node_id):
        raise NotFound(404, "node_not_found", f"there is no node {node_id[:80]!r}")
    return "/".join(("/v1/nodes", node_id, *rest))


def create_plan(body: Mapping[str, Any]) -> Request[WhatIf]:
    """Begin a replay; refused while another one runs."""
    return Request(method="POST", path="/v1/plans", json=dict(body), parse=_one(WhatIf))


def get_plan(plan_id: str, wait_s: float) -> Request[WhatIf]:
    """How far a replay is, with its next change or after `wait_s` seconds."""
    params = {"wait_s": f"{wait_s:g}"}
    return Request(
        method="GET",
        path=f"/v1/plans/{_part(plan_id, 'the id of the plan')}",
        params=params,
        parse=_one(WhatIf),
    )


def cancel_plan(plan_id: str) -> Request[WhatIf]:
    """End a replay; one that is over stays as it is."""
    return Request(
        method="DELETE", path=f"/v1/plans/{_part(plan_id, 'the id of the plan')}", parse=_one(WhatIf)
    )


def export_trace(since: float, cluster: str) -> Request[RecordedTrace]:
    """What happened on a cluster since then, seconds since 1970, as a trace."""
    params = _params(since=repr(since), cluster=cluster)
    return Request(method="GET", path="/v1/trace", params=params, parse=_one(RecordedTrace))


def get_health() -> Request[Health]:
    """Whether the service's process answers."""
    return Request(method="GET", path="/healthz", parse=_one(Health))


def follow_events(
    job_id: str, *, after: int = 0, tail: int | None = None, kinds: Sequence[str] = ()
) -> Stream[Event]:
    """A job's events until it has ended."""
    return Stream(
        path=job_path(job_id, "events"),
        event="event",
        parse=Event.model_validate_json,
        seq=lambda event: event.seq,
        after=after,
        params=_params(kind=",".join(kinds) or None),
        first_params=_params(tail=tail),
    )


def follow_logs(
    job_id: str,
    *,
    after: int = 0,
    rank: int | None = None,
    attempt: int | None = None,
    tail: int | None = None,
    contains: str | None = None,
) -> Stream[LogLine]:
    """A job's log lines until it has ended."""
    return Stream(
        path=job_path(job_id, "logs"),
        event="log",
        parse=LogLine.model_validate_json,
        seq=lambda line: line.seq,
        after=after,
        params=_params(rank=rank, attempt=attempt, contains=contains),
        first_params=_params(tail=tail),
    )


def _bundle_path(digest: str) -> str:
    return f"/v1/bundles/{quote(digest, safe=':')}"


def _params(**values: str | float | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _one(view: type[T]) -> Callable[[Answer], T]:
    def parse(answer: Answer) -> T:
        parsed: T = view.model_validate(json.loads(answer.content))  # type: ignore[attr-defined]
        return parsed

    return parse


def _nothing(_answer: Answer) -> None:
    return None

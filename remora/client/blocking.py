"""The blocking Python client.

    with remora.Client() as client:
        job = client.submit({"command": "python train.py", "code": ".", "workers": 2})
        job = job.wait()

Every method raises ApiError when the service refuses and ConnectionFailed when it does not answer.

This module is generated from `remora.client.asynchronous`: run `make client` after a change there.

Both clients are thin shells: what is sent is in `requests`, calls of several requests in `flows`, when to send
again in `retries`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import httpx2
from pydantic import PrivateAttr

from remora.alert_kinds import AlertKind, Channel
from remora.alert_views import Alert, NewAlert, Notification
from remora.budget_views import Budget
from remora.client import alert_requests, flows, identity_requests, pipeline_flow, requests, what_if
from remora.client.credentials import TokenSource
from remora.client.flows import Flow, Paging, Work
from remora.client.requests import Answer, Request, Stream
from remora.client.retries import Following
from remora.client.shell import (
    CHUNK,
    POLL_S,
    Shell,
    answer_of,
    check_deadline,
    deadline_after,
    item_of,
    within,
)
from remora.clusters import DEFAULT_CLUSTER
from remora.errors import ApiError, ConnectionFailed, NotFound
from remora.identity_views import AuditEntry, Grant, NewToken, Token, WhoAmI
from remora.roles import Role
from remora.spec.pipeline_steps import PipelineStep
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
    Policy,
    PolicyCheck,
    PolicyVersion,
    Pool,
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
    SignInWays,
    WhatIf,
    WorkerLoad,
)

T = TypeVar("T")


class Client(Shell):
    """The blocking client.  Close it, or use it in a `with` statement."""

    def __init__(
        self,
        server: str | None = None,
        *,
        token: TokenSource | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        resume_s: float = 300.0,
    ) -> None:
        """Talk to `server`, or to the one that `find_server` finds, as who `token` proves or `find_token` finds.

        A function as `token` is asked for the one that is good now, before each request; an empty text sends none.
        `timeout_s` bounds each network operation, `retry_s` how long a failing request is sent again, `resume_s` how
        long a broken stream (and `wait`) outlasts a service that is away.
        """
        super().__init__(server, token, timeout_s, retry_s, resume_s)
        self._http = httpx2.Client(**self._http_options())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def submit(
        self, job: JobSpec | Mapping[str, Any] | str | Path, *, idempotency_key: str | None = None
    ) -> ClientJob:
        """Submit a specification, a mapping, or a YAML file by its path; the code is packed and uploaded once.

        The same `idempotency_key` with the same job returns the first answer.  Raises SpecError and BundleError before
        anything is sent.
        """
        return self._bound(self._run(flows.submit(job, idempotency_key)))

    def dry_run(self, job: JobSpec | Mapping[str, Any] | str | Path) -> DryRun:
        """What would become of a job, an array or a schedule if it were submitted now; nothing is stored or uploaded.

        Raises SpecError and BundleError for what is found before the service is asked.
        """
        return self._run(flows.dry_run(job))

    def submit_array(
        self, job: JobSpec | Mapping[str, Any] | str | Path, *, idempotency_key: str | None = None
    ) -> JobArray:
        """Submit many jobs by one specification with an `array`, all of them or none; raises as `submit` does."""
        return self._run(flows.submit_array(job, idempotency_key))

    def submit_pipeline(
        self,
        steps: Sequence[PipelineStep],
        *,
        idempotency_key: str | None = None,
        on_submitted: Callable[[str, Job | JobArray], None] | None = None,
    ) -> dict[str, ClientJob | JobArray]:
        """Submit several jobs, of which some read what others write; returns them by the names of their steps.

        Nothing is submitted unless all are right.  The same call after an interruption goes on where that was.
        `on_submitted` is called with each step's name and job as soon as the job exists.  Raises as `submit` does.
        """
        created = self._run(pipeline_flow.submit_pipeline(steps, idempotency_key, on_submitted))
        return {name: one if isinstance(one, JobArray) else self._bound(one) for name, one in created.items()}

    def dry_run_pipeline(self, steps: Sequence[PipelineStep]) -> dict[str, DryRun]:
        """A dry run of each step, as if those that it needs were submitted; raises as `dry_run` does."""
        return self._run(pipeline_flow.dry_run_pipeline(steps))

    def arrays(self) -> list[JobArray]:
        """Arrays, newest first."""
        return self._run(flows.all_pages(requests.list_arrays))

    def array(self, array_id: str) -> JobArray:
        """One array: its jobs by state, and what they have cost."""
        return self._send(requests.get_array(array_id))

    def cancel_array(self, array_id: str) -> JobArray:
        """Ask for the end of all jobs of an array."""
        return self._send(requests.cancel_array(array_id))

    def submit_schedule(
        self, job: JobSpec | Mapping[str, Any] | str | Path, *, idempotency_key: str | None = None
    ) -> Schedule:
        """Store a specification with a `schedule`, whose job is submitted at each time; raises as `submit` does."""
        return self._run(flows.submit_schedule(job, idempotency_key))

    def schedules(self) -> list[Schedule]:
        """Schedules, newest first, each with its newest run."""
        return self._run(flows.all_pages(requests.list_schedules))

    def schedule(self, schedule_id: str) -> Schedule:
        """One schedule with its newest run."""
        return self._send(requests.get_schedule(schedule_id))

    def runs(self, schedule_id: str, *, limit: int | None = None) -> list[ScheduleRun]:
        """What became of the times of a schedule, newest first."""
        return self._run(flows.all_pages(lambda cursor: requests.list_runs(schedule_id, cursor), limit))

    def delete_schedule(self, schedule_id: str) -> Schedule:
        """Delete a schedule: it submits nothing any more.  Jobs that it has submitted stay."""
        return self._send(requests.delete_schedule(schedule_id))

    def create_alert(
        self,
        kinds: Sequence[AlertKind | str],
        *,
        project: str | None,
        webhook: str | None = None,
        slack: str | None = None,
        email: str | None = None,
        all_jobs: bool = False,
        wait_s: float | None = None,
        budget_percents: Sequence[int] | None = None,
        slow_factor: float | None = None,
    ) -> NewAlert:
        """Have the service notify a URL or an address of your jobs, or of all jobs of a project; None: of the cluster.

        The secret that signs the requests of a webhook is in this answer alone.  Raises Invalid, ConfigurationError.
        """
        channel, target = alert_requests.target_of(
            {Channel.WEBHOOK: webhook, Channel.SLACK: slack, Channel.EMAIL: email}
        )
        options = {
            "wait_s": wait_s,
            "budget_percents": None if budget_percents is None else list(budget_percents),
            "slow_factor": slow_factor,
        }
        return self._send(
            alert_requests.create_alert(project, kinds, channel, target, all_jobs=all_jobs, options=options)
        )

    def alerts(self) -> list[Alert]:
        """Your alerts and those of the projects that you administer, newest first."""
        return self._run(flows.all_pages(alert_requests.list_alerts))

    def alert(self, alert_id: str) -> Alert:
        """One alert."""
        return self._send(alert_requests.get_alert(alert_id))

    def notifications(self, alert_id: str, *, limit: int | None = None) -> list[Notification]:
        """What an alert has reported, newest first, and what became of it."""
        return self._run(
            flows.all_pages(lambda cursor: alert_requests.list_notifications(alert_id, cursor), limit)
        )

    def test_alert(self, alert_id: str) -> Notification:
        """Have a notification sent that reports nothing.  Raises Conflict where the receiver is gone."""
        return self._send(alert_requests.test_alert(alert_id))

    def delete_alert(self, alert_id: str) -> Alert:
        """Delete an alert: what was not sent yet is not sent any more."""
        return self._send(alert_requests.delete_alert(alert_id))

    def clone(
        self, job_id: str, values: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> ClientJob:
        """Submit a job again, with its code, and other `values` for some fields by their dotted names.

        Raises Invalid with every problem of the changed specification.
        """
        return self._bound(self._run(flows.clone(job_id, values, idempotency_key)))

    def jobs(
        self,
        *,
        state: str | None = None,
        project: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        array: str | None = None,
        limit: int | None = None,
    ) -> list[ClientJob]:
        """Jobs, newest first; of an array, or with all of the `labels`, of which None stands for any value."""
        found = self._run(flows.jobs(state, project, limit, labels, array))
        return [self._bound(job) for job in found]

    def job(self, job_id: str) -> ClientJob:
        """One job by its full id."""
        return self._bound(self._send(requests.get_job(job_id)))

    def find(self, text: str) -> ClientJob:
        """One job by its id, by the beginning of its id, or the newest one by `last`."""
        return self._bound(self._run(flows.find_job(text)))

    def cancel(self, job_id: str) -> Job:
        """Ask for a job's end; it ends after its workers have stopped."""
        return self._send(requests.cancel_job(job_id))

    def pause(self, job_id: str) -> Job:
        """Keep a job from running until it is resumed; its workers end after a checkpoint.  Raises Conflict."""
        return self._send(requests.pause_job(job_id))

    def resume(self, job_id: str) -> Job:
        """Let a job go on that was paused, from its newest checkpoint.  Raises Conflict."""
        return self._send(requests.resume_job(job_id))

    def resize(self, job_id: str, *, min_workers: int | None = None, max_workers: int | None = None) -> Job:
        """Change how many workers a job may have: a running one grows, or becomes smaller at its next step.

        None leaves an end as it is.  Raises Invalid for what its specification excludes, and Conflict after its end.
        """
        return self._send(requests.resize_job(job_id, min_workers, max_workers))

    def request_stacks(self, job_id: str) -> Job:
        """Ask what the workers of a running job are doing: events `worker.stack` follow, one for each rank.

        Raises Conflict when it does not train.
        """
        return self._send(requests.request_stacks(job_id))

    def request_profile(self, job_id: str, *, steps: int = 10, rank: int = 0) -> Profile:
        """Ask for a profile of the next `steps` steps of a rank of a running job; `profiles` says how it goes.

        Raises Conflict when it does not train, and while another profile of it is under way.
        """
        return self._send(requests.request_profile(job_id, steps, rank))

    def profiles(self, job_id: str) -> list[Profile]:
        """The profiles that were asked for, the oldest first."""
        return (self._send(requests.list_profiles(job_id))).items

    def download_profile(self, job_id: str, number: int, target: str | Path) -> Profile:
        """Write the trace of a profile, in the format of Chrome's traces and compressed by gzip, to a new file.

        Raises NotFound without such a trace, and DownloadError when this machine does not take it.
        """
        return self._run(flows.download_profile(job_id, number, Path(target)))

    def open_shell(
        self,
        job_id: str,
        *,
        rank: int = 0,
        command: Sequence[str] = (),
        size: tuple[int, int] | None = None,
        term: str = "dumb",
    ) -> ShellSession:
        """Open a shell in a worker of a running job, or run a command there; its terminal has `size` rows and columns.

        Without `size` it has no terminal.  Raises Conflict when it does not run, Forbidden where shells are off.
        """
        return self._send(requests.open_shell(job_id, rank, command, size, term))

    def shells(self, job_id: str) -> list[ShellSession]:
        """The newest shells of a job, the oldest of them first."""
        return (self._send(requests.list_shells(job_id))).items

    def exchange_shell(
        self,
        job_id: str,
        number: int,
        *,
        seq: int | None = None,
        data: bytes = b"",
        size: tuple[int, int] | None = None,
        after: int = 0,
        wait_s: float = 0.0,
    ) -> ShellExchange:
        """Type `data` into a shell as its chunk `seq` (b"": the input ends), and read what follows the chunk `after`.

        Waits up to `wait_s` seconds, 20 at most, for output.  A chunk has 8 KiB at most, and is kept when `input_seq`
        of the answer is as high as `seq`; else it is sent again.
        """
        rows, columns = size or (None, None)
        said = {"seq": seq, "data": base64.b64encode(data).decode(), "after": after, "wait_s": wait_s}
        return self._send(requests.exchange_shell(job_id, number, {**said, "rows": rows, "columns": columns}))

    def close_shell(self, job_id: str, number: int) -> ShellSession:
        """Ask for the end of a shell."""
        return self._send(requests.close_shell(job_id, number))

    def label(self, job_id: str, labels: Mapping[str, str | None]) -> Job:
        """Set labels of a job, also after its end, and remove those whose value is None; others stay."""
        return self._send(requests.label_job(job_id, labels))

    def delete(self, job_id: str) -> Job:
        """Delete an ended job with its logs, metrics, checkpoints and outputs, for good.

        Raises Conflict while it has not ended, and when a model was made from its outputs.
        """
        return self._send(requests.delete_job(job_id))

    def attempts(self, job_id: str) -> list[Attempt]:
        """A job's attempts, oldest first."""
        return self._run(flows.all_pages(lambda cursor: requests.list_attempts(job_id, cursor)))

    def phases(self, job_id: str) -> list[JobPhase]:
        """What its attempts did with their nodes, from when until when, the newest first."""
        return self._run(flows.all_pages(lambda cursor: requests.list_phases(job_id, cursor)))

    def events(
        self,
        job_id: str,
        *,
        follow: bool = False,
        after: int = 0,
        tail: int | None = None,
        kinds: Sequence[str] = (),
    ) -> Iterator[Event]:
        """A job's events after a sequence number (or the last `tail`), of these kinds or of all.

        With `follow` also those to come, until the job has ended.
        """
        if follow:
            stream = requests.follow_events(job_id, after=after, tail=tail, kinds=kinds)
            return self._follow(stream, job_id)
        return self._pages(flows.events(job_id, after, tail, kinds))

    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        after: int = 0,
        rank: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        contains: str | None = None,
    ) -> Iterator[LogLine]:
        """A job's log lines after a sequence number (or the last `tail`), of one rank or attempt or of all.

        `contains`: only lines with this text in them; ASCII letters match in either case.
        """
        if follow:
            stream = requests.follow_logs(
                job_id, after=after, rank=rank, attempt=attempt, tail=tail, contains=contains
            )
            return self._follow(stream, job_id)
        return self._pages(flows.logs(job_id, after, rank, attempt, tail, contains))

    def metrics(
        self, job_id: str, *, after_step: int | None = None, points: int | None = None
    ) -> list[MetricPoint]:
        """A job's metric points, by step."""
        return self._run(flows.metrics(job_id, after_step, points))

    def follow_metrics(self, job_id: str, *, after_step: int | None = None) -> Iterator[MetricPoint]:
        """A job's metric points after a step, by step, and those to come until the job has ended; each step once."""
        while True:
            job = self.job(job_id)
            for point in self.metrics(job_id, after_step=after_step):
                after_step = point.step
                yield point
            if job.terminal:
                return
            time.sleep(POLL_S)

    def checkpoints(self, job_id: str) -> list[Checkpoint]:
        """A job's committed checkpoints."""
        return self._run(flows.all_pages(lambda cursor: requests.list_checkpoints(job_id, cursor)))

    def ledger(self, job_id: str) -> Ledger:
        """What a job has cost so far, by kind of node."""
        return self._send(requests.show_ledger(job_id))

    def cluster_ledger(self, since: float | None = None, until: float | None = None) -> ClusterLedger:
        """Who pays for what the cloud bills for all nodes; of the running month (UTC) by default.

        Times are seconds since 1970, at most 31 days apart.
        """
        return self._send(requests.show_cluster_ledger(since, until))

    def costs(
        self,
        by: Sequence[str] = ("cause",),
        *,
        job_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> CostReport:
        """What nodes were paid for: one line for each combination of what `by` names.

        That is one or several of `job`, `project`, `pool`, `capacity_type`, `cause` and `hour`; of one job with
        `job_id`.  Times are seconds since 1970, at most 31 days apart; the running month (UTC) by default.
        """
        return self._run(flows.costs(by, job_id, since, until))

    def export_costs(
        self, *, job_id: str | None = None, since: float | None = None, until: float | None = None
    ) -> str:
        """The same as CSV with the columns of FOCUS 1.0: a row for each node, hour, payer and cause."""
        return self._send(requests.export_costs(job_id, since, until))

    def goodput(
        self, job_id: str | None = None, *, since: float | None = None, until: float | None = None
    ) -> GoodputReport:
        """Which part of paid time trained, and what the rest cost: of a job, or of all of one's projects.

        Times are seconds since 1970, at most 31 days apart; by default the job's time, of which it is the last 31 days
        at most, or the running month (UTC).
        """
        return self._send(requests.show_goodput(job_id, since, until))

    def budgets(self) -> list[Budget]:
        """The budgets of the cluster and of projects, with what is spent of each and until when it lasts."""
        return self._run(flows.all_pages(requests.list_budgets))

    def download(self, job_id: str, target: str | Path, *, step: int | None = None) -> Checkpoint:
        """Put the newest checkpoint's files (or those of `step`) into the folder `target`.

        `target` must be empty or not there.  Raises NotFound without such a checkpoint and DownloadError when this
        machine does not take it.
        """
        return self._run(flows.download(job_id, Path(target), step))

    def outputs(self, job_id: str) -> list[OutputFile]:
        """Files that a job's script left in its outputs folder, by name; also while it runs."""
        return self._run(flows.all_pages(lambda cursor: requests.list_outputs(job_id, cursor)))

    def download_outputs(
        self, job_id: str, target: str | Path, *, names: Collection[str] | None = None
    ) -> list[OutputFile]:
        """Put them, or only those of these names, into the folder `target`, which must be empty or not there.

        Raises NotFound while there are none, and DownloadError when this machine does not take them.
        """
        return self._run(flows.download_outputs(job_id, Path(target), names))

    def models(self) -> list[ModelVersion]:
        """The newest version of every model, by name."""
        return self._run(flows.all_pages(requests.list_models))

    def model_versions(self, name: str) -> list[ModelVersion]:
        """Versions of a model, newest first."""
        return self._run(flows.all_pages(lambda cursor: requests.list_model_versions(name, cursor)))

    def download_model(self, name: str, target: str | Path, *, version: int | None = None) -> ModelVersion:
        """Put the newest version of a model (or `version`) into the folder `target`, as `download_outputs` does."""
        return self._run(flows.download_model(name, Path(target), version))

    def nodes(self, *, state: str | None = None) -> list[Node]:
        """The cluster's nodes, in one of these states (with commas between them) or in all."""
        return self._run(flows.all_pages(lambda cursor: requests.list_nodes(cursor, state)))

    def worker_loads(self, job_id: str) -> list[WorkerLoad]:
        """How busy each worker of a running job was in the last ten minutes, by rank."""
        return self._run(flows.all_pages(lambda cursor: requests.list_worker_loads(job_id, cursor)))

    def node_loads(self) -> list[NodeLoad]:
        """How busy the workers on each node kept it in the last ten minutes, the newest node first."""
        return self._run(flows.all_pages(requests.list_node_loads))

    def ray_requests(self) -> list[RayRequest]:
        """What Ray programs that are no jobs ask for and do not have yet, the oldest first."""
        return self._run(flows.all_pages(requests.list_ray_requests))

    def pools(self) -> list[Pool]:
        """The node pools as they are now: limits, nodes by state, and what holds them up."""
        return self._run(flows.all_pages(requests.list_pools))

    def prune(self, *, older_than_s: float | None = None, keep_jobs: int | None = None) -> Pruned:
        """Delete what is old, as `older_than_s` and `keep_jobs` (ended jobs) say, or else the settings.  For good."""
        return self._run(flows.prune(older_than_s, keep_jobs))

    def reopen_pool(self, pool: str) -> Pool:
        """Have a pool ask again at once for what the cloud refused it or what failed there.  Raises NotFound."""
        return self._send(requests.reopen_pool(pool))

    def projects(self) -> list[Project]:
        """Projects by name, with what is kept of each and its limits."""
        return self._run(flows.all_pages(requests.list_projects))

    def secrets(self, project: str = "default") -> list[Secret]:
        """The secrets of a project by name, without their values."""
        return (self._send(requests.list_secrets(project))).items

    def set_secret(
        self,
        name: str,
        value: str | None = None,
        *,
        key_vault: str | None = None,
        project: str = "default",
        author: str = "",
    ) -> Secret:
        """Store a secret of a project: its `value`, or the address of a secret in Azure Key Vault.

        The attempts that start from now on use it.  Raises Invalid for a value that cannot be one.
        """
        sent = requests.set_secret(project, name, value=value, key_vault=key_vault, author=author)
        return self._send(sent)

    def delete_secret(self, name: str, *, project: str = "default") -> Secret:
        """Delete a secret of a project; jobs that use it cannot start any more.  Raises NotFound."""
        return self._send(requests.delete_secret(project, name))

    def rotate_secrets(self) -> SecretsRotation:
        """Encrypt the secrets of all projects with a new key."""
        return self._send(requests.rotate_secrets())

    def policy(self, version: int | None = None) -> Policy:
        """A version of the operators' policies, or the one in force.  Raises NotFound."""
        return self._send(requests.get_policy(version))

    def policy_versions(self) -> list[PolicyVersion]:
        """Every version of the policies, newest first; the last one is made from the service's settings."""
        return self._run(flows.all_pages(requests.list_policies))

    def check_policy(self, document: str) -> PolicyCheck:
        """What the service would say to a policy document (YAML or JSON text); nothing is stored."""
        return self._send(requests.check_policy(document))

    def apply_policy(self, document: str, *, based_on: int, author: str = "", comment: str = "") -> Policy:
        """Put a policy document in force that was made from version `based_on`.

        Raises Conflict when the policies have changed since, and Invalid with every problem.
        """
        return self._send(requests.apply_policy(document, based_on=based_on, author=author, comment=comment))

    def roll_back_policy(self, version: int, *, based_on: int, author: str = "", comment: str = "") -> Policy:
        """Put the document of an earlier version in force again, as a new version; raises as `apply_policy` does."""
        return self._send(
            requests.roll_back_policy(version, based_on=based_on, author=author, comment=comment)
        )

    def cluster_events(self, *, after: int = 0) -> list[ClusterEvent]:
        """What happened to the cluster as a whole after an event's number, oldest first."""
        return self._run(
            flows.all_pages(lambda cursor: requests.list_cluster_events(after=after, cursor=cursor))
        )

    def node(self, node_id: str) -> Node:
        """One node by its id, also after its end."""
        return self._send(requests.get_node(node_id))

    def node_events(self, node_id: str) -> list[NodeEvent]:
        """What happened to a node, oldest first."""
        return self._run(flows.all_pages(lambda cursor: requests.list_node_events(node_id, cursor)))

    def drill_node(self, node_id: str, *, notice_s: float | None) -> Drill:
        """Rehearse the preemption of a node, with a notice of `notice_s` seconds, or without one (None).

        The answer comes at once; `drill` returns its progress.  Raises Conflict when the node is not ready, or while
        another drill is under way.
        """
        return self._send(requests.drill_node(node_id, notice_s))

    def drill_pool(self, pool: str, *, notice_s: float | None) -> Drill:
        """The same for every ready node of a pool at once."""
        return self._send(requests.drill_pool(pool, notice_s))

    def drill(self, drill_id: str) -> Drill:
        """How a drill goes; over when it has `ended_at`."""
        return self._send(requests.get_drill(drill_id))

    def what_if(
        self,
        traces: Sequence[str | Path],
        policies: Sequence[str | Path],
        *,
        seed: int = 0,
        look_s: float = 60.0,
        on_progress: Callable[[float], None] | None = None,
    ) -> WhatIf:
        """Replay traces under one policy or two, and wait for the answer; look at its `state` and `message`.

        A trace is a file, or `OFFERING=FILE` for spot availability in SkyPilot's format; policies are YAML files.
        `on_progress` is called with the part that is done.  Raises ConfigurationError for a file that cannot be read.
        """
        return self._run(what_if.what_if(traces, policies, seed, look_s, on_progress))

    def export_trace(self, *, since: float = 0.0, cluster: str = DEFAULT_CLUSTER) -> RecordedTrace:
        """What happened on a cluster since then (seconds since 1970), as a trace for `what_if`."""
        return self._send(requests.export_trace(since, cluster))

    def health(self) -> Health:
        """Whether the service answers."""
        return self._send(requests.get_health())

    def sign_in_ways(self) -> SignInWays:
        """At which issuers people sign in, and whether they have to."""
        return self._send(identity_requests.sign_in_ways())

    def whoami(self) -> WhoAmI:
        """Who the service takes this client for, and its roles."""
        return self._send(identity_requests.whoami())

    def create_token(
        self,
        name: str,
        grants: Mapping[str, Role | str],
        *,
        expires_in_s: float | None = 90 * 86_400.0,
        owner: str | None = None,
    ) -> NewToken:
        """Create a token with roles by project, `{"vision": "submitter"}`, or `{"*": "operator"}`.

        Its text is in this answer only.  None as `expires_in_s`: it does not expire.  It stands for itself, or for
        `owner`.  Raises Forbidden for roles that one cannot give.
        """
        return self._send(identity_requests.create_token(name, grants, expires_in_s, owner))

    def tokens(self) -> list[Token]:
        """One's own tokens, and those of the projects that one administers, newest first."""
        return self._run(flows.all_pages(identity_requests.list_tokens))

    def revoke_token(self, token_id: str) -> Token:
        """Make a token good for nothing, within five seconds."""
        return self._send(identity_requests.revoke_token(token_id))

    def grants(self) -> list[Grant]:
        """Roles of users and groups in the projects that one administers."""
        return self._run(flows.all_pages(identity_requests.list_grants))

    def put_grant(self, subject: str, project: str, role: Role | str) -> Grant:
        """Give `user:NAME` or `group:NAME` a role in a project, in place of the one that it has there."""
        return self._send(identity_requests.put_grant(subject, project, role))

    def remove_grant(self, subject: str, project: str) -> Grant:
        """Take the role of a user or group in a project away.  Raises NotFound."""
        return self._send(identity_requests.remove_grant(subject, project))

    def audit(self, *, project: str | None = None, limit: int | None = None) -> list[AuditEntry]:
        """Writes of all or of one project, newest first; for operators and admins of projects."""
        most = requests.PAGE_ITEMS if limit is None else limit
        return self._run(
            flows.all_pages(lambda cursor: identity_requests.list_audit(project, most, cursor), limit)
        )

    def wait(self, job_id: str, timeout_s: float | None = None) -> ClientJob:
        """Wait until the job has ended, by its event stream.  Raises WaitTimeout; the job itself goes on."""
        deadline = deadline_after(timeout_s)
        after = 0
        while True:
            try:
                job = self._send(requests.get_job(job_id), deadline, self._resume_s)
            except ConnectionFailed:
                check_deadline(deadline, job_id)
                raise
            if job.terminal:
                return self._bound(job)
            try:
                stream = requests.follow_events(job_id, after=after)
                for event in self._follow(stream, job_id, deadline):
                    after = event.seq
            except NotFound:
                raise
            except ApiError:  # something between does not let streams through: look now and then
                check_deadline(deadline, job_id)
                time.sleep(POLL_S)

    def _bound(self, job: Job) -> ClientJob:
        return ClientJob.of(job, self)

    def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    match step:
                        case Work():
                            outcome = step.call()
                        case _:
                            outcome = self._send(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _pages(self, paging: Paging[T]) -> Iterator[T]:
        last: T | None = None
        while True:
            page = self._send(paging(last))
            yield from page.items
            if flows.is_last(page):
                return
            last = page.items[-1]

    def _send(self, request: Request[T], deadline: float | None = None, budget_s: float | None = None) -> T:
        patience = self._patience(deadline, self._retry_s if budget_s is None else budget_s)
        while True:
            try:
                answer = self._exchange(request)
            except httpx2.TransportError as error:
                time.sleep(self._after_error(request, error, patience))
                continue
            pause = self._after_answer(request, answer, patience)
            if pause is None:
                return request.result(answer)
            time.sleep(pause)

    def _exchange(self, request: Request[T]) -> Answer:
        content = _read_chunks(request.body_file) if request.body_file else None
        with self._http.stream(
            request.method,
            request.path,
            params=request.params,
            json=request.json,
            content=content,
            headers=request.headers,
        ) as response:
            if request.save_to is None or not response.is_success:
                body = response.read()
            else:
                with request.save_to.open("wb") as file:
                    for chunk in response.iter_bytes(CHUNK):
                        file.write(chunk)
                body = b""
            return Answer(status=response.status_code, headers=response.headers, content=body)

    def _follow(self, stream: Stream[T], job_id: str, deadline: float | None = None) -> Iterator[T]:
        following = Following(stream)
        patience = self._patience(deadline, self._retry_s)
        while not following.has_ended:
            check_deadline(deadline, job_id)
            is_open = False
            try:
                with self._http.stream(
                    "GET",
                    stream.path,
                    params=following.params(),
                    headers=following.headers(),
                    timeout=self._stream_timeout(deadline),
                ) as response:
                    if response.status_code != 200:
                        response.read()
                        pause = self._after_refusal(answer_of(response), patience)
                    else:
                        is_open = True
                        patience.budget_s = self._resume_s
                        for sent in httpx2.EventSource(response):
                            patience.reset()
                            item = item_of(following, sent)
                            if item is not None:
                                yield item
                            if following.has_ended:
                                return
                            check_deadline(deadline, job_id)
                        pause = self._after_break(None, patience)
            except httpx2.ReadTimeout as error:
                # an open stream that is only quiet is opened again at once
                pause = 0.0 if is_open else self._after_break(error, patience)
            except httpx2.SSEError as error:
                raise requests.unexpected(200) from error
            except httpx2.TransportError as error:
                pause = self._after_break(error, patience)
            time.sleep(within(deadline, pause))


class ClientJob(Job):
    """A job as it was when it was asked for, with the calls of its client for this job."""

    _client: Client = PrivateAttr()

    @classmethod
    def of(cls, job: Job, client: Client) -> ClientJob:
        """The job, for calls by that client."""
        bound = cls.model_construct(job.model_fields_set, **dict(job))
        bound._client = client
        return bound

    def __eq__(self, other: object) -> bool:
        """Equal to the same state of the job, with or without a client."""
        return isinstance(other, Job) and dict(self) == dict(other)

    def __hash__(self) -> int:
        """By the job and its version."""
        return hash((self.id, self.version))

    def refresh(self) -> ClientJob:
        """The job as it is now."""
        return self._client.job(self.id)

    def wait(self, timeout_s: float | None = None) -> ClientJob:
        """Wait until it has ended; returns it as it is then.  Raises WaitTimeout; the job itself goes on."""
        return self._client.wait(self.id, timeout_s)

    def cancel(self) -> Job:
        """Ask for its end; it ends after its workers have stopped."""
        return self._client.cancel(self.id)

    def pause(self) -> Job:
        """Keep it from running until it is resumed; its workers end after a checkpoint."""
        return self._client.pause(self.id)

    def resume(self) -> Job:
        """Let it go on that was paused."""
        return self._client.resume(self.id)

    def resize(self, *, min_workers: int | None = None, max_workers: int | None = None) -> Job:
        """Change how many workers it may have; None leaves an end as it is."""
        return self._client.resize(self.id, min_workers=min_workers, max_workers=max_workers)

    def label(self, labels: Mapping[str, str | None]) -> Job:
        """Set labels of it, and remove those whose value is None."""
        return self._client.label(self.id, labels)

    def delete(self) -> Job:
        """Delete it, after its end, with its logs, metrics, checkpoints and outputs."""
        return self._client.delete(self.id)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """What happened to it; with `follow` also what happens until it has ended."""
        return self._client.events(self.id, follow=follow)

    def logs(
        self, *, follow: bool = False, rank: int | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """What its workers printed, of one rank or of all; with `follow` also what they print until it has ended."""
        return self._client.logs(self.id, follow=follow, rank=rank, tail=tail)

    @overload
    def metrics(self, *, follow: Literal[False] = False) -> list[MetricPoint]: ...

    @overload
    def metrics(self, *, follow: Literal[True]) -> Iterator[MetricPoint]: ...

    def metrics(self, *, follow: bool = False) -> list[MetricPoint] | Iterator[MetricPoint]:
        """Its metric points, by step; with `follow` also those to come until it has ended."""
        return self._client.follow_metrics(self.id) if follow else self._client.metrics(self.id)

    def attempts(self) -> list[Attempt]:
        """Its attempts, oldest first."""
        return self._client.attempts(self.id)

    def checkpoints(self) -> list[Checkpoint]:
        """Its committed checkpoints."""
        return self._client.checkpoints(self.id)

    def outputs(self) -> list[OutputFile]:
        """Files that its script left in its outputs folder, by name."""
        return self._client.outputs(self.id)

    def download(self, target: str | Path, *, step: int | None = None) -> Checkpoint:
        """Put the files of its newest checkpoint (or that of `step`) into the folder `target`."""
        return self._client.download(self.id, target, step=step)

    def download_outputs(self, target: str | Path) -> list[OutputFile]:
        """Put the files of its outputs folder into the folder `target`."""
        return self._client.download_outputs(self.id, target)


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk

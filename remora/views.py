"""What the API answers, as typed values; the service builds them and the client parses them.

Unknown fields are ignored so that an older client reads a newer service.
Times are seconds since 1970 (UTC) as floats; durations end in `_s`; sizes in `_bytes`.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from remora.clusters import DEFAULT_CLUSTER
from remora.states import AttemptState, DrillState, EndReason, JobState, NodeState

T = TypeVar("T")


class View(BaseModel):
    """An immutable answer of the API."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Page(View, Generic[T]):
    """One page of a list."""

    items: list[T]
    #: Give it back as `cursor` for the next page; None on the last one.
    next_cursor: str | None = None


class Attempt(View):
    """One attempt of a job."""

    id: str
    job_id: str
    #: 1, 2, ...
    attempt: int
    state: AttemptState
    end_reason: EndReason | None = None
    #: One sentence for people.
    message: str | None = None
    #: Exit code of the first rank that failed, or None.
    exit_code: int | None = None
    #: Fabric domain that all of its workers are in; None: its job did not ask for one.
    fabric: str | None = None
    #: Workers now, 0 while there is no worker group.
    world_size: int = 0
    #: Step the attempt resumed from; None when it began at the beginning.
    resumed_from_step: int | None = None
    #: Digest of the Python environment that its workers have; None: that of the nodes, or none yet.
    environment: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


class JobPhase(View):
    """What an attempt did with its nodes, from when until when, by the clock of its driver."""

    attempt: int
    #: 1, 2, ... of the attempt's phases.
    number: int
    #: `starting`, `preparing`, `running`, `training`, `recomputing`, `checkpoint` or `draining`.
    phase: str
    began_at: float
    #: None: it goes on.
    ended_at: float | None = None


class ArrayElement(View):
    """Which job of an array it is."""

    array_id: str
    #: 0, 1, ...
    index: int
    #: The values in which the jobs of the array differ, by name.
    parameters: dict[str, str | int | float | bool]


class JobArray(View):
    """Many jobs that one specification describes."""

    id: str
    name: str
    project: str
    #: The JobSpec as accepted, with its array.
    spec: dict[str, Any]
    #: Jobs that it was made of, and how many of them may run at once; None: all.
    size: int
    most_at_once: int | None = None
    #: How many of its jobs are in which state; `deleted` ones are gone.
    jobs: dict[str, int] = Field(default_factory=dict)
    #: True when all of its jobs have ended.
    terminal: bool = False
    #: USD that its jobs have cost so far; None in a list.
    cost: float | None = None
    created_at: float
    submitted_by: str | None = None


class ScheduleRun(View):
    """One time of a schedule, and what became of it."""

    #: The time itself, and when it was decided about.
    at: float
    decided_at: float
    #: `submitted`, `overlapped`, `missed`, `refused` or `paused`.
    outcome: str
    #: One sentence for people.
    message: str
    #: What was submitted.
    job_id: str | None = None
    array_id: str | None = None


class Schedule(View):
    """A specification that is submitted again and again."""

    id: str
    name: str
    project: str
    #: The JobSpec as accepted, with its schedule.
    spec: dict[str, Any]
    #: Its time of cron, and the time zone in which it is meant.
    cron: str
    zone: str
    #: The next time at which it is submitted.
    next_at: float
    #: The newest time that has come; None: none yet.
    last_run: ScheduleRun | None = None
    created_at: float
    #: In whose name its jobs are submitted.
    submitted_by: str | None = None


class Job(View):
    """A job and its state."""

    id: str
    name: str
    project: str
    state: JobState
    #: True when nothing will change any more; trust this for states that you do not know.
    terminal: bool
    #: Why it waits or why it ended, as a stable word (an `EndReason`, or `waiting_for_nodes`, ...).
    reason: str | None = None
    #: The same for people.
    message: str | None = None
    priority: int
    #: As they are now; `spec` has those of the submission.
    labels: dict[str, str] = Field(default_factory=dict)
    #: Which job of an array it is; None: it is one alone.
    array: ArrayElement | None = None
    #: The JobSpec as accepted, `code` replaced by the bundle's digest.
    spec: dict[str, Any]
    #: Number of the newest attempt, 0 before the first.
    attempt: int = 0
    #: Newest step reported by rank 0, or None.
    step: int | None = None
    #: Total number of steps, when the script reported it.
    total_steps: int | None = None
    world_size: int = 0
    #: Why it has fewer workers than it could use while it runs, for people; None: nothing is in its way.
    why_short: str | None = None
    #: Steps that had to be done again after losses of nodes or processes.
    repeated_steps: int = 0
    #: Seconds between the loss of a worker and the next new step, summed over all losses.
    lost_s: float = 0.0
    #: Newest committed checkpoint's step.
    checkpoint_step: int | None = None
    cancel_requested_at: float | None = None
    #: When its owner asked to pause it, until it is resumed.
    pause_requested_at: float | None = None
    created_at: float
    started_at: float | None = None
    #: Since when its owner or a budget keeps it from running, while it is paused.
    paused_at: float | None = None
    ended_at: float | None = None
    #: The Ray cluster on which it runs.
    cluster: str = DEFAULT_CLUSTER
    #: Grows with every change; the ETag, together with the place in the line of a job that waits in the queue.
    version: int
    #: Id of the principal that submitted it; None: an older service did not say.
    submitted_by: str | None = None

    def __repr__(self) -> str:
        """In one line: which job it is, and how far."""
        steps = "" if self.step is None else f", step {self.step}"
        steps += "" if self.step is None or self.total_steps is None else f" of {self.total_steps}"
        return f"<Job {self.id} {self.name!r}: {self.state}{steps}>"

    __str__ = __repr__


class Event(View):
    """Something that happened to a job; never changed and never removed."""

    #: 1, 2, ... per job; the SSE id.
    seq: int
    job_id: str
    at: float
    #: Past tense, dotted: `job.queued`, `attempt.started`, `node.lost`, `checkpoint.committed`, ...
    kind: str
    #: One sentence for people.
    message: str
    attempt: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class LogLine(View):
    """One line that a worker printed."""

    #: 1, 2, ... per job; the SSE id.
    seq: int
    at: float
    attempt: int
    rank: int
    #: `stdout`, `stderr`, or `remora` for our own remarks (a cut line, a limit reached).
    stream: str
    text: str


class MetricPoint(View):
    """Values that a script reported for one step; a step that is done again replaces its values."""

    step: int
    at: float
    attempt: int
    world_size: int
    #: None stands for a value that is not finite.
    values: dict[str, float | None]
    #: Where `points` were asked for and this one stands for several steps: the least and the greatest finite value of
    #: each name among them; `values` then are the last of each name, and the rest is that of the last step.  Of a
    #: job with many steps these are of a sample.
    least: dict[str, float] | None = None
    greatest: dict[str, float] | None = None


class LoadPoint(View):
    """How busy something was at one time."""

    at: float
    #: Processors that were busy: 1.5 is one and a half of them.
    cpu: float
    #: The mean part of the time in which GPUs computed, 0 to 1; None: there are none, or they do not say it.
    gpu: float | None = None


class WorkerLoad(View):
    """How busy one worker of a running job was in the last ten minutes."""

    rank: int
    attempt: int
    #: Of its node.
    address: str
    #: GPUs that say how busy they are.
    gpus: int
    #: Every 20 s or more, the newest last.
    points: list[LoadPoint]


class NodeLoad(View):
    """How busy the workers of jobs kept a node in the last ten minutes."""

    node_id: str
    #: Of the jobs that have said it.
    workers: int
    gpus: int
    #: Every 20 s or more, the newest last; `cpu` is the sum of the workers.
    points: list[LoadPoint]


class Pruned(View):
    """What was deleted because it was old."""

    jobs: int
    nodes: int
    #: Log lines, events, metrics and other rows.
    rows: int
    #: There is more to delete: ask again.
    has_more: bool = False


class Checkpoint(View):
    """A complete saved state."""

    step: int
    attempt: int
    world_size: int
    committed_at: float
    size_bytes: int
    #: Where it lies: a URL, or a path when the store is a local directory.
    location: str
    #: Relative file names with their sizes in bytes.
    files: dict[str, int]


class LedgerLine(View):
    """What a job used of one kind of node."""

    pool: str
    #: The cloud's word for the kind of machine; empty when it is not known.
    size: str
    zone: str | None = None
    #: `spot`, `on-demand`, or None when it is not known.
    capacity: str | None = None
    #: Different nodes that its workers were on.
    nodes: int
    #: Seconds of whole nodes: half a node for an hour is 1800.
    node_s: float
    #: USD.
    cost: float


class Ledger(View):
    """What a job has cost: the parts of nodes that its workers held, while they held them."""

    job_id: str
    #: Up to when it is counted.
    at: float
    lines: list[LedgerLine]
    node_s: float
    #: USD.
    cost: float
    #: Seconds in which machines that were bought for the job started, and USD for them: paid for the job, and not part
    #: of `cost` nor of what `budget` counts.
    start_up_s: float = 0.0
    start_up_cost: float = 0.0
    #: USD that it may cost; None sets no limit.
    budget: float | None = None


class AccountLine(View):
    """What one payer pays for one purpose."""

    #: `job`, `project` or `cluster`.
    payer: str
    #: Id of the job, or name of the project; empty for the cluster, and for the line of all jobs that cost too little
    #: for a line of their own.
    name: str
    #: `work`, `start_up`, `idle` or `failed`.
    purpose: str
    #: Different nodes.
    nodes: int
    #: Seconds of whole nodes.
    node_s: float
    #: USD.
    cost: float


class ClusterLedger(View):
    """Who pays for what the cloud bills: every paid second of every node is in exactly one line."""

    #: Seconds since 1970.
    since: float
    until: float
    #: The dearest first.
    lines: list[AccountLine]
    node_s: float
    #: USD: the sum of the lines.
    cost: float


class CostLine(View):
    """What was paid for one combination of what was asked for."""

    #: The value of each name that was asked for: `job`, `project`, `pool`, `capacity_type`, `cause` or `hour`; empty
    #: where there is none, as the job of a node that no job pays for.
    of: dict[str, str]
    #: Seconds of whole nodes, and of GPUs; whole milliseconds.
    node_s: float
    gpu_s: float
    #: USD, in whole millionths.
    cost: float


class CostReport(View):
    """What nodes were paid for: every second of every node is in exactly one line, and the lines sum to the total."""

    #: Seconds since 1970.
    since: float
    until: float
    by: list[str]
    #: One page of them, in the order of their values.
    lines: list[CostLine]
    #: Of all pages.
    node_s: float
    gpu_s: float
    #: USD.
    cost: float
    #: The largest cost, and what would have saved some of it, in one sentence.
    sentence: str
    next_cursor: str | None = None


class GoodputLoss(View):
    """What one cause other than training cost."""

    cause: str
    node_s: float
    gpu_s: float
    #: USD.
    cost: float
    #: The part of it that would have been saved, in USD and in seconds of whole nodes, and by what.
    saved_cost: float
    saved_node_s: float
    by: str


class GoodputReport(View):
    """Which part of paid time trained, of one job, of some projects or of all; each figure from 0 to 1."""

    #: None: of all jobs of the projects.
    job_id: str | None = None
    since: float
    until: float
    #: The part of the time in which all that is needed was there; of several jobs, the part of paid time that jobs
    #: held.
    scheduling: float | None = None
    #: The part of held time that made new steps.
    runtime: float | None = None
    #: The mean rate of steps beside the best that the job sustained; None: too few steps are known, or several jobs.
    program: float | None = None
    #: The product of those that are known.
    goodput: float | None = None
    trained_node_s: float
    node_s: float
    gpu_s: float
    #: USD.
    cost: float
    #: The dearest first.
    losses: list[GoodputLoss]
    #: In one sentence.
    sentence: str


class Profile(View):
    """A profile of the next steps of one rank, made while its job runs."""

    #: 1, 2, ... of the job's profiles.
    number: int
    attempt: int
    rank: int
    #: How many steps were asked for.
    steps: int
    #: `requested`, `running`, `ready` or `failed`.
    state: str
    requested_at: float
    ended_at: float | None = None
    #: Why there is no trace, in one sentence.
    message: str | None = None
    #: How many steps the trace has.
    profiled_steps: int | None = None
    size_bytes: int | None = None
    #: Hexadecimal SHA-256 of the trace.
    sha256: str | None = None


class ShellSession(View):
    """A shell that was opened in one worker of a running job."""

    #: 1, 2, ... of the job's shells.
    number: int
    attempt: int
    rank: int
    #: Who has opened it.
    principal: str
    #: What runs there; empty: a shell.
    command: list[str]
    #: `requested`, `open` or `ended`.
    state: str
    requested_at: float
    opened_at: float | None = None
    ended_at: float | None = None
    #: Why it ended, in one sentence.
    message: str | None = None
    #: With which its process ended; 128 and more: by a signal.
    exit_code: int | None = None


class ShellOutput(View):
    """A chunk of what was printed in a shell."""

    seq: int
    #: `stdout` or `stderr`; with a terminal all is `stdout`.
    stream: str
    #: The bytes, in base64.
    data: str


class ShellExchange(View):
    """What a shell has printed, and how much of what was typed is kept."""

    shell: ShellSession
    #: The newest chunk of input that is kept; a later one has to be sent again.
    input_seq: int
    output: list[ShellOutput]


class OutputFile(View):
    """One file that a job's script left in its outputs folder."""

    #: Relative POSIX name.
    name: str
    size_bytes: int
    #: Hexadecimal SHA-256 of the content.
    sha256: str


class ModelVersion(View):
    """One version of a model: an output of a job that succeeded."""

    name: str
    #: 1, 2, ... per name.
    version: int
    #: `sha256:...`; equal for equal files.
    digest: str
    size_bytes: int
    #: Where it comes from: the job, its attempt, and the output.
    job_id: str
    attempt: int
    output: str
    #: Digest of the code that made it, and the command.
    code: str | None = None
    command: list[str] = Field(default_factory=list)
    created_at: float
    files: list[OutputFile] = Field(default_factory=list)


class NodePreflight(View):
    """What a node was found to be before it got work."""

    #: Name of its GPUs; `cpu` where it has none.
    device: str | None = None
    gpus: int = 0
    #: Of one GPU; of the machine where it has none.
    memory_bytes: int | None = None
    #: Seconds of a product of two matrices with 512 rows and columns.
    product_s: float | None = None
    #: The node with which a sum over both was measured, and MB (10^6 bytes) per second of it.
    neighbour: str | None = None
    mb_per_s: float | None = None


class Node(View):
    """One machine of the cluster."""

    id: str
    pool: str
    #: The Ray cluster that it joins.
    cluster: str = DEFAULT_CLUSTER
    state: NodeState
    address: str | None = None
    #: Ray resources it brings, e.g. {"CPU": 1.0}.
    resources: dict[str, float] = Field(default_factory=dict)
    message: str | None = None
    #: What it was bought as, `<size>/<zone or any>/<capacity type>`, and what an hour of it cost then, in USD.
    offering: str = ""
    price_per_hour: float = 0.0
    #: Fabric domain in which InfiniBand joins it to others; None: none.
    fabric: str | None = None
    #: What the newest plan does not do with it and why, and since when; None: it has no plans for it.
    reason: str | None = None
    reason_since: float | None = None
    #: Ids of jobs whose workers are on it now; those of projects that the reader does not see are left out.
    jobs: list[str] = Field(default_factory=list)
    #: What was measured before it got work; None: nothing was.
    preflight: NodePreflight | None = None
    created_at: float
    ready_at: float | None = None
    ended_at: float | None = None


class PoolWait(View):
    """Something that the newest plan does not do for a pool, and why."""

    #: One sentence for people.
    reason: str
    #: Since when it has been so.
    since: float


class RefusedOffering(View):
    """What a cloud has none of now, and is not asked for."""

    #: `SIZE/ZONE/CAPACITY`, `any` for no zone.
    offering: str
    #: When the cloud said it, and until when it is not asked again.
    at: float
    until: float
    #: Its number among refusals in a row, from 1: each closes the offering for twice as long as the one before.
    tries: int = 1
    #: The cloud's own words, in one sentence.
    reason: str = ""


class SoldOffering(View):
    """What a pool may buy, as the planner counts it."""

    #: `SIZE/ZONE/CAPACITY`, `any` for no zone.
    offering: str
    #: USD; assumed while the cloud's own list was not read, or lacks it.
    price_per_hour: float
    is_price_assumed: bool = False
    #: Chance that one node is preempted within an hour; None: the cloud does not take it back.
    evictions_per_hour: float | None = None
    #: Until when it is not asked for, as the cloud refused it; None: it is open.
    closed_until: float | None = None


class Pool(View):
    """One node pool as it is now."""

    name: str
    #: The Ray cluster that its nodes join; None once it was removed.
    cluster: str | None = DEFAULT_CLUSTER
    #: Numbers of nodes that it may have and keeps ready now, its schedules included; all 0 once it was removed.
    min_nodes: int = 0
    max_nodes: int = 0
    warm_nodes: int = 0
    #: When the maintenance window ends that holds now; None: there is none.
    maintenance_until: float | None = None
    #: How many nodes that have not ended are in each state; a state without any is missing.
    nodes: dict[NodeState, int] = Field(default_factory=dict)
    #: What holds it up; empty: nothing does.
    waits: list[PoolWait] = Field(default_factory=list)
    #: What it could buy and the cloud refuses now.
    refused: list[RefusedOffering] = Field(default_factory=list)
    #: What it may buy, by the newest record of its cluster's controller; empty while there is none.
    offerings: list[SoldOffering] = Field(default_factory=list)
    #: When that was recorded, seconds since 1970: its controller has found nothing else since then.
    offerings_at: float | None = None
    #: When an operator last reopened it, which takes such refusals back; None: never.
    reopened_at: float | None = None


class RayRequest(View):
    """Something that Ray programs which are no jobs ask for and do not have yet."""

    id: str
    #: The project that nodes for it are bought for.
    project: str
    #: `tasks` (and actors), `placement_group`, or `minimum`: what `request_resources` of Ray wants.
    kind: str
    #: Of a placement group: `PACK`, `SPREAD`, `STRICT_PACK` or `STRICT_SPREAD`.
    strategy: str | None = None
    #: Of one of them, e.g. `{"CPU": 1.0}`, and how many are asked for.
    resources: dict[str, float] = Field(default_factory=dict)
    count: int
    #: Since when, seconds since 1970.
    since: float
    #: Nothing is ever bought for it.
    is_refused: bool = False
    #: Why it waits, in one sentence.
    reason: str


class PolicyVersion(View):
    """One version of the operators' policies."""

    #: 1, 2, ...; 0 is made from the service's settings.
    version: int
    #: The version that its author had seen.
    based_on: int
    #: The version whose document it has, when it is a rollback.
    restores: int | None = None
    created_at: float
    #: As the client sent it; it is not checked yet.
    author: str = ""
    comment: str = ""
    #: `sha256:...`; equal for equal documents.
    digest: str


class ProjectUse(View):
    """How much there is of one kind in a project, and how much there may be."""

    used: int
    #: None: no limit.
    limit: int | None = None


class Project(View):
    """A project: its share, and what is used and kept of it, beside its limits in the policies."""

    name: str
    #: Its weight against other projects that want more than there is.
    share: float = 1.0
    #: The part that its running jobs, or Ray programs, hold of all that the complete pools of its cluster may bring: of
    #: the resource of which it holds most.  None: operators gave no project a share, or what the pools may buy is not
    #: known yet.
    share_held: float | None = None
    #: `jobs` that wait or run, `gpus` (rounded up) of those that run and of Ray programs, `bundle_bytes`,
    #: `output_bytes`, `log_lines`, `secrets`, `schedules`, `tokens`, `alerts`, and the `streams` that are open at the
    #: process that answered.
    uses: dict[str, ProjectUse]


class Secret(View):
    """A secret of a project, without its value."""

    project: str
    name: str
    #: 1, 2, ...: grows with each value.
    version: int
    #: `value`: it is stored here; `key_vault`: it is read from Azure Key Vault for each attempt.
    source: str
    created_at: float
    updated_at: float
    #: As the client sent it; it is not checked yet.
    updated_by: str = ""


class SecretsRotation(View):
    """What a rotation of the key of all secrets did."""

    key_id: str
    #: Secrets that were encrypted with the key.
    rewritten: int
    #: One that was interrupted was brought to its end, and no other key was made.
    is_resumed: bool = False
    #: `project/name` of those that cannot be decrypted, and stay as they are.
    unreadable: list[str] = Field(default_factory=list)


class Policy(PolicyVersion):
    """A version with what it says."""

    #: The YAML or JSON text as it was given.
    document: str
    #: The same with every default written out; None when this version of the service cannot read it any more.
    policies: dict[str, Any] | None = None


class ClusterEvent(View):
    """Something that happened to the cluster as a whole."""

    #: Grows with every event; there may be gaps.
    seq: int
    at: float
    #: Past tense, dotted: `policies.applied`, ...
    kind: str
    #: One sentence for people.
    message: str
    data: dict[str, Any] = Field(default_factory=dict)
    #: The Ray cluster that it happened to; `default` also for what concerns all of them.
    cluster: str = DEFAULT_CLUSTER


class NodeEvent(View):
    """Something that happened to a node; never changed and never removed."""

    #: 1, 2, ... per node.
    seq: int
    node_id: str
    at: float
    #: `node.requested`, `node.ready`, ...
    kind: str
    #: One sentence for people.
    message: str


class DrilledJob(View):
    """What a drill cost one job; seconds count from the notice, or from the nodes' end without one."""

    job_id: str
    name: str
    #: Workers when the drill began, the fewest since, and now.
    workers_before: int
    workers_least: int
    workers: int
    #: Steps that had to be done again.
    repeated_steps: int = 0
    #: To the first new step, after the loss if there was one; None while there is none.
    next_step_s: float | None = None
    #: The longest time without a new step.
    pause_s: float | None = None
    #: To the first step with as many workers as before; 0 when it never had fewer, None when it does not come.
    full_after_s: float | None = None


class Drill(View):
    """A rehearsed preemption of one node or of several at once."""

    id: str
    #: Trust `ended_at` for states that you do not know.
    state: DrillState
    node_ids: list[str]
    #: Seconds between the notice and the end of the nodes; None: they were taken without one.
    notice_s: float | None = None
    #: Why it was refused, or what is missing, for people.
    message: str | None = None
    requested_at: float
    struck_at: float | None = None
    #: When the nodes had been taken.
    taken_at: float | None = None
    ended_at: float | None = None
    #: The jobs that lost workers by it, as far as is known by now.
    jobs: list[DrilledJob] = Field(default_factory=list)


class ReplayReport(View):
    """A trace replayed under one policy; money in USD."""

    #: Name of the policy's file.
    policy: str
    jobs: int
    succeeded: int
    #: Jobs that fit on no node, that were lost too often, or for which nothing ever came.
    failed: int
    #: Those of the failed that never began.
    never_ran: int = 0
    cost_usd: float
    spot_usd: float
    on_demand_usd: float
    #: From a submission to the first start.
    wait_p50_s: float
    wait_p95_s: float
    #: From a submission to the end.
    completion_p50_s: float
    completion_p95_s: float
    completion_mean_s: float
    #: From the first submission to the end of the last job.
    makespan_s: float
    #: Part of the workers' time that was work which was not lost.
    goodput: float
    #: Part of the paid capacity that workers held.
    used: float
    preemptions: int
    #: Attempts that ended with a node, and times that a job went on with fewer workers instead.
    losses: int
    shrinks: int
    #: Part of the node-seconds that were spot.
    spot_share: float
    launches: int
    #: Launches for which the cloud had no node.
    refused: int
    #: Days and months that cost more than the cluster's budget for them.
    budget_violations: int
    #: Days and months in which a project spent more than its policy allows; each counts by itself.
    project_budget_violations: int = 0
    deadlines_missed: int


class RecordedTrace(View):
    """What happened on a service, as a trace that can be replayed."""

    #: JSON lines, see `docs/what-if.md`.
    text: str
    #: Jobs of the trace, and jobs that are left out because they never trained.
    jobs: int
    left_out: int


class WhatIf(View):
    """A replay of a trace under one policy or two, and its state."""

    id: str
    #: `running`, `done`, `failed` or `cancelled`.
    state: str
    #: True when nothing will change any more.
    terminal: bool
    #: Part of it that is done, 0 to 1.
    progress: float = 0.0
    #: Why it failed, one sentence for people.
    message: str | None = None
    #: Jobs of the trace.
    jobs: int
    #: Names of the policies' files, in the order of the request.
    policies: list[str]
    #: One for each policy, once it is done.
    reports: list[ReplayReport] = Field(default_factory=list)
    #: What of the trace was left out, and which site rules were passed over, and why.
    notes: list[str] = Field(default_factory=list)
    #: An SVG of nodes and waiting jobs over time, once it is done.
    plot: str | None = None
    created_at: float
    ended_at: float | None = None


class FieldProblem(View):
    """One refused field."""

    #: Dotted path in the request, e.g. `workers.min`.
    field: str
    message: str
    #: Where it stands in a document that was sent as text, 1 and up; two lines that contradict each other.
    lines: list[int] = Field(default_factory=list)


class DryRun(View):
    """What would become of a specification if it were submitted now; nothing is stored."""

    project: str
    #: Jobs that it would make; of a schedule those of one of its times.
    jobs: int
    #: The JobSpec as it would be accepted, with all defaults.
    spec: dict[str, Any]
    #: Why it would be refused: every reason.
    problems: list[FieldProblem]
    #: Why it would wait for ever: no pool could hold it.  None: one could, or the sizes are not known.
    never: str | None = None


class PolicyCheck(View):
    """What the service would say to a policy document."""

    #: Every problem; empty when it can be applied.
    problems: list[FieldProblem] = Field(default_factory=list)
    #: The document with every default written out, unless there is a problem.
    policies: dict[str, Any] | None = None
    #: True when it is in force already.
    is_in_force: bool = False
    #: What to know before it is applied, one sentence each: no budget, or a quota that is too small.
    notes: list[str] = Field(default_factory=list)


class Problem(View):
    """An error answer (RFC 9457) with a stable code."""

    type: str = "about:blank"
    title: str
    status: int
    #: Stable word for programs, e.g. `job_not_found`.
    code: str
    detail: str
    #: What to do about it.
    hint: str | None = None
    request_id: str | None = None
    errors: list[FieldProblem] = Field(default_factory=list)


class SignInIssuer(View):
    """An issuer of OpenID Connect at whose page people sign in, by its operator's name."""

    name: str
    #: URL, without a last slash.
    issuer: str
    #: What `remora login` calls itself there.
    client_id: str
    scopes: list[str] = Field(default_factory=list)
    #: Which of the issuer's tokens the service accepts.
    accepts: Literal["access_token", "id_token"] = "access_token"
    #: People sign in there on the web page, too.
    pages: bool = False


class SignInWays(View):
    """How to prove to the service who one is."""

    #: False: every program of its machine is the operator `local`.
    is_required: bool
    issuers: list[SignInIssuer] = Field(default_factory=list)


class Session(View):
    """A session of a browser that has begun."""

    principal: str
    name: str
    #: Value of the header `X-CSRF-Token` of writes.
    csrf_token: str


class Health(View):
    """Answer of `/healthz` and `/readyz`."""

    status: str
    version: str
    #: Seconds since the controller last renewed its lease, of several clusters the longest; None when one has none.
    controller_age_s: float | None = None

"""What the service remembers about jobs, attempts and nodes, as frozen values.

The store reads and writes them column by column; the functions beside this module decide on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cluster.lazy_property import lazy
from cluster.policies.policies import BudgetStep
from remora.clusters import DEFAULT_CLUSTER
from remora.states import AttemptState, DrillState, EndReason, JobState, NodeState
from service.queue.specification import JobFacts, facts_of


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job; times are seconds since 1970, durations end in `_s`."""

    id: str
    name: str
    project: str
    priority: int
    #: The JobSpec as accepted.
    spec: dict[str, Any]
    #: What the queue needs of the spec, as numbers; which worker groups are possible between the two, its facts say.
    min_workers: int
    max_workers: int
    #: Ray resources of one worker.
    worker_resources: dict[str, float]
    retry_limit: int
    backoff_s: float
    run_time_s: float | None
    wait_time_s: float | None
    created_at: float
    state: JobState = JobState.QUEUED
    reason: str | None = None
    message: str | None = None
    #: Number of the newest attempt, 0 before the first.
    attempt: int = 0
    #: Ended attempts that count against `retry_limit`.
    user_failures: int = 0
    #: Ended attempts that do not count.
    losses: int = 0
    #: Losses since training last made a new step.
    loss_streak: int = 0
    #: Attempts that were lost on nodes that lived, since its last progress: `service.queue.retry`.
    fruitless: int = 0
    #: No attempt starts before this time; infinite while it waits for other jobs, or is held back by its array.
    not_before: float = 0.0
    #: From when `wait_time_s` counts; infinite while it waits for other jobs.
    waits_from: float | None = None
    #: Newest step reported, and the highest one ever.
    step: int | None = None
    max_step: int | None = None
    #: When the highest step was reported; after a loss, when it was done again.
    step_at: float | None = None
    total_steps: int | None = None
    world_size: int = 0
    repeated_steps: int = 0
    lost_s: float = 0.0
    #: Since when an ended attempt keeps it from new steps; None while nothing is being lost.
    lost_since: float | None = None
    #: Seconds that ended attempts trained.
    trained_s: float = 0.0
    checkpoint_step: int | None = None
    cancel_requested_at: float | None = None
    #: When its owner last changed how many workers it may have; None: never.
    resized_at: float | None = None
    #: When its owner last asked what its workers are doing; None: never.
    stacks_requested_at: float | None = None
    #: When its owner asked to pause it, until it is resumed.
    pause_requested_at: float | None = None
    #: Since when its owner or a budget keeps it from running; None: neither does.
    paused_at: float | None = None
    #: The last step of the cluster's budget that an event reported to its owner.
    budget_step: BudgetStep | None = None
    #: Why it has fewer workers than it could use while it runs, as the planner said last; None: nothing is in its way.
    why_short: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    version: int = 1
    #: Numbers of the newest event and of the newest log line.
    event_seq: int = 0
    log_seq: int = 0
    #: The array that it belongs to, its number there, and its values.
    array_id: str | None = None
    array_index: int | None = None
    parameters: dict[str, Any] | None = None
    #: How its array stops jobs early, as `StopEarly` of the specification; None: it stops none.
    stop_rule: dict[str, Any] | None = None
    #: The next step at which it is compared with the others, its best value so far, and why it is stopped.
    compared_at: int | None = None
    best_value: float | None = None
    #: Steps at which it has reported the metric, the sum of its values there, and the newest of these steps.
    metric_reports: int = 0
    metric_sum: float = 0.0
    metric_step: int | None = None
    stopped_early: str | None = None
    #: As many other jobs of its array as may run at once have not ended; it is not in the queue.
    is_held: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    #: When its owner asked to delete it, and when that was done; from the request on it is hidden.
    delete_requested_at: float | None = None
    deleted_at: float | None = None
    #: When all of it was deleted that is not kept for ever: `service.store.pruning`.
    pruned_at: float | None = None
    #: Id of the principal that submitted it; None: before there were principals.
    submitted_by: str | None = None
    #: The W3C trace context of the request that submitted it; None: there was none.
    traceparent: str | None = None
    #: The Ray cluster on which it runs, from its acceptance to its end.
    cluster: str = DEFAULT_CLUSTER

    @lazy
    def facts(self) -> JobFacts:
        """What it asks for."""
        asked = JobFacts(
            job_id=self.id,
            spec=self.spec,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            worker_resources=self.worker_resources,
        )
        return facts_of(asked)


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One try at a job."""

    id: str
    job_id: str
    #: 1, 2, ...
    attempt: int
    created_at: float
    state: AttemptState = AttemptState.STARTING
    end_reason: EndReason | None = None
    message: str | None = None
    exit_code: int | None = None
    world_size: int = 0
    #: Fabric domain in which all of its workers are; None: wherever they may be.
    fabric: str | None = None
    #: True when all of its workers are on on-demand nodes, as the deadline of its job was near when it began.
    on_demand: bool = False
    #: Workers by the address of their node, as the driver reported last.
    workers: dict[str, int] = field(default_factory=dict)
    #: Since when it has had fewer workers than `max_workers`; None while it has all, and once it has ended.
    short_since: float | None = None
    step: int | None = None
    resumed_from_step: int | None = None
    #: Digest of the environment that its workers have; None: that of the nodes, or none yet.
    environment: str | None = None
    #: Totals that the driver reported.
    repeated_steps: int = 0
    lost_s: float = 0.0
    #: The first text of `retry.on_log_patterns` that a line of its log had; None: none so far.
    log_match: str | None = None
    #: Log lines that were deleted while it ran, because its project has as many as it may.
    dropped_lines: int = 0
    #: Everything up to this record is stored.
    last_record_seq: int = 0
    #: Why and since when it is being stopped.
    stop_reason: EndReason | None = None
    stop_requested_at: float | None = None
    #: Which change of the number of workers its driver knows: `JobRow.resized_at`; None: that of its plan.
    resized_at: float | None = None
    #: Which request for stacks its driver knows: `JobRow.stacks_requested_at`; None: none.
    stacks_requested_at: float | None = None
    #: Its end, which waits until it is known whether a node of it is sick: `{at, body}` of its record; None: none.
    held_end: dict[str, Any] | None = None
    #: What it does now, and since when; None: it began before that was recorded.
    phase: WorkPhase | None = None
    phase_at: float | None = None
    #: How many phases of it are recorded.
    phase_number: int = 0
    #: When its first step was reported.
    trained_at: float | None = None
    #: Seconds that its training loop waited for checkpoints, as far as a phase says so.
    stalled_s: float = 0.0
    #: When its driver was started; None: a crash may have come between, start it again.
    launched_at: float | None = None
    #: When it was made sure that nothing of it runs; no later attempt starts before.
    released_at: float | None = None
    #: When its job's list of checkpoints was made to agree with the storage, once it had ended.
    listed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    #: Until when its spans were sent to the collector: `service.queue.spans`.
    traced_at: float | None = None
    #: Its end was sent, too, so that nothing of it is left.
    is_traced: bool = False
    #: That of its job.
    cluster: str = DEFAULT_CLUSTER


class WorkPhase(StrEnum):
    """What an attempt does with the nodes that it holds."""

    #: It gathers its nodes, or the next worker group.
    STARTING = "starting"
    #: The job's environment is built, or its image fetched.
    PREPARING = "preparing"
    #: Its command runs and has reported no step yet.
    RUNNING = "running"
    #: New steps.
    TRAINING = "training"
    #: Steps that were done before.
    RECOMPUTING = "recomputing"
    #: The training loop waits for a checkpoint.
    CHECKPOINT = "checkpoint"
    #: Its workers are being ended.
    DRAINING = "draining"


@dataclass(frozen=True, kw_only=True)
class PhaseRow:
    """From when an attempt did what: until its next phase, in the order of time and number."""

    job_id: str
    attempt: int
    #: 1, 2, ... for each attempt.
    number: int
    began_at: float
    phase: WorkPhase


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One machine, from the request for it to its end."""

    id: str
    pool: str
    created_at: float
    state: NodeState = NodeState.REQUESTED
    address: str | None = None
    resources: dict[str, float] = field(default_factory=dict)
    message: str | None = None
    #: True when it goes before it was of any use.
    is_failure: bool = False
    #: True when it was a member, and Ray lost it while its machine ran.
    is_cut_off: bool = False
    #: `Offering.id` of what it was bought as, and what an hour of it cost then, in USD.
    offering: str = ""
    price_per_hour: float = 0.0
    #: That is what the catalogue assumes, as the cloud's own prices were not read yet.
    is_price_assumed: bool = False
    #: Fabric domain in which it was launched.
    fabric: str | None = None
    #: The job that it was bought for, or what Ray programs asked for.
    bought_for: str | None = None
    #: Of the latter: the project of Ray programs, which pays for it.
    project: str | None = None
    #: Since when it has been ready and nothing has run on it.
    idle_since: float | None = None
    #: When its drain or termination began.
    leaving_since: float | None = None
    #: While draining: when it has to be gone.
    deadline_at: float | None = None
    #: The last sign of life of its agent, by the machine's own clock, once the agent is found silent.
    agent_silent_since: float | None = None
    #: When its agent was first found to say that its machine is sick.
    sick_since: float | None = None
    #: When its preflight began, and what that has found (`service.queue.preflights.Result`); None: it was not measured.
    preflight_since: float | None = None
    preflight: dict[str, Any] | None = None
    #: When the provider was first asked for it and gave no clear answer, and how many times it has given none.
    unanswered_since: float | None = None
    unanswered: int = 0
    #: When the provider was first found to have a machine for it.
    launched_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    #: Number of the newest event of this node.
    event_seq: int = 0
    #: The Ray cluster that it joins.
    cluster: str = DEFAULT_CLUSTER


@dataclass(frozen=True, kw_only=True)
class DrilledJob:
    """How a drill goes for one job that ran when it began; seconds count from that moment."""

    job_id: str
    name: str
    #: Workers when it began, the fewest since, and now.
    workers_before: int
    workers_least: int
    workers: int
    #: Steps that had been repeated before it began.
    repeated_before: int
    #: Everything up to this step and this event is in the account.
    step: int | None
    event_seq: int
    #: It lost a node by the drill, or got a notice.
    was_hit: bool = False
    #: It had fewer workers for some time.
    was_smaller: bool = False
    #: Steps repeated since.
    repeated_steps: int = 0
    #: To the first new step, after the loss if there was one.
    next_step_s: float | None = None
    #: Longest time without a new step.
    pause_s: float | None = None
    #: To the first step with as many workers as before; 0 when it never had fewer.
    full_after_s: float | None = None
    #: When its newest step was done, seconds since 1970.
    newest_at: float | None = None
    has_ended: bool = False


@dataclass(frozen=True, kw_only=True)
class DrillRow:
    """One rehearsed preemption of one node or of several at once."""

    id: str
    node_ids: list[str]
    requested_at: float
    #: Seconds between the notice and the end of the nodes; None: without a notice.
    notice_s: float | None = None
    state: DrillState = DrillState.REQUESTED
    message: str | None = None
    struck_at: float | None = None
    deadline_at: float | None = None
    #: When the nodes had the notice, and when they had been taken.
    noticed_at: float | None = None
    taken_at: float | None = None
    ended_at: float | None = None
    jobs: list[DrilledJob] = field(default_factory=list)
    #: That of its nodes.
    cluster: str = DEFAULT_CLUSTER


class WaitKind(StrEnum):
    """What a plan waits with something for."""

    POOL = "pool"
    NODE = "node"


@dataclass(frozen=True, kw_only=True)
class WaitRow:
    """Something that the newest plan does not do for a pool or a node, and why."""

    kind: WaitKind
    #: The pool's name, or the node's id.
    about: str
    #: 0, 1, ... for each of them.
    place: int
    #: Since when it has been so.
    since: float
    #: One sentence for people.
    reason: str
    #: Whose plan it was.
    cluster: str = DEFAULT_CLUSTER


#: The kind of a row that says what Ray programs hold of one node.
HELD = "held"


@dataclass(frozen=True, kw_only=True)
class RayRequestRow:
    """Something that Ray programs ask for and do not have yet, or all that they hold of one node."""

    id: str
    #: The project that nodes for it are bought for.
    project: str
    #: `tasks`, `placement_group` or `minimum` (`cluster.scheduling.ray_programs.Kind`), or `HELD`.
    kind: str
    #: Of a placement group.
    strategy: str | None = None
    #: Of one of them, and how many are asked for.
    resources: dict[str, float] = field(default_factory=dict)
    count: int
    since: float
    #: Nothing is ever bought for it.
    is_refused: bool = False
    #: Why it waits, for people.
    reason: str
    #: That on which the programs run.
    cluster: str = DEFAULT_CLUSTER


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event to append; the store numbers it."""

    at: float
    #: Past tense, dotted.
    kind: str
    #: One sentence for people.
    message: str
    attempt: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

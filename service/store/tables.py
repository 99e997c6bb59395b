"""The tables, as SQLAlchemy Core; `migrations/` builds the same (a test compares them on both databases).

Times are seconds since 1970.  Counters are 64-bit because scripts choose them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from cluster.policies.policies import BudgetStep
from remora.alert_kinds import AlertKind, Channel, DeliveryState
from remora.clusters import DEFAULT_CLUSTER
from remora.roles import Role
from remora.states import AttemptState, DrillState, EndReason, JobState, NodeState
from service.queue.rows import WaitKind, WorkPhase
from service.queue.secrets import SecretSource

metadata = sa.MetaData()


class Word(sa.types.TypeDecorator[Any]):
    """A closed enum, stored as its word."""

    impl = sa.String(32)
    cache_ok = True

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__()
        self.words = words

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else str(self.words(value).value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        """From the database."""
        return None if value is None else self.words(value)


#: Conditions of partial indexes; a query uses them literally, a bound parameter would miss the index.
ACTIVE_JOBS = sa.text("state IN ('queued', 'admitted', 'running', 'paused')")
QUEUED_JOBS = sa.text("state = 'queued'")
PAUSED_JOBS = sa.text("state = 'paused'")
QUEUED_AGAIN = sa.text("state = 'queued' AND attempt > 0")
WAITING_FOR_THEIR_FIRST = sa.text("state = 'queued' AND attempt = 0 AND wait_time_s IS NOT NULL")
KEPT_JOBS = sa.text("ended_at IS NOT NULL AND pruned_at IS NULL")
ARRAYS_WITH_NEWS = sa.text("has_news")
#: Jobs of an array that count among those that may run at once.
ACTIVE_IN_ARRAY = sa.text(
    "NOT is_held AND (state IN ('queued', 'admitted', 'running') OR (state = 'paused' AND pause_requested_at IS NULL))"
)
IN_ARRAYS = sa.text("array_id IS NOT NULL")
GOING_JOBS = sa.text("delete_requested_at IS NOT NULL AND deleted_at IS NULL")
LIVE_ATTEMPTS = sa.text("state IN ('starting', 'running', 'draining')")
UNRELEASED_ATTEMPTS = sa.text("released_at IS NULL")
UNLISTED_ATTEMPTS = sa.text("state = 'ended' AND released_at IS NOT NULL AND listed_at IS NULL")
UNTRACED_ATTEMPTS = sa.text("state = 'ended' AND NOT is_traced")
ENDED_DEPENDENCIES = sa.text("ended_as IS NOT NULL")
LIVE_NODES = sa.text("ended_at IS NULL")
OPEN_DRILLS = sa.text("ended_at IS NULL")
OPEN_USES = sa.text("ended_at IS NULL")
DUE_ALERTS = sa.text("due_at IS NOT NULL")
PENDING_NOTIFICATIONS = sa.text("state = 'pending'")


def _partial(
    name: str,
    *columns: str | sa.TextClause | sa.ColumnElement[Any],
    where: sa.TextClause,
    unique: bool = False,
) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _cluster() -> sa.Column[str]:
    """The cluster whose controller reads and writes the row."""
    return sa.Column("cluster", sa.String(40), nullable=False, server_default=DEFAULT_CLUSTER)


#: When a job has waited for its first attempt for as long as its owner allowed.
OVERDUE_AT = sa.text("(waits_from + wait_time_s)")

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("min_workers", sa.Integer, nullable=False),
    sa.Column("max_workers", sa.Integer, nullable=False),
    sa.Column("worker_resources", sa.JSON, nullable=False),
    sa.Column("retry_limit", sa.Integer, nullable=False),
    sa.Column("backoff_s", sa.Double, nullable=False),
    sa.Column("run_time_s", sa.Double),
    sa.Column("wait_time_s", sa.Double),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("state", Word(JobState), nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("message", sa.Text),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("user_failures", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("loss_streak", sa.Integer, nullable=False),
    sa.Column("fruitless", sa.Integer, nullable=False, server_default="0"),
    sa.Column("not_before", sa.Double, nullable=False),
    sa.Column("waits_from", sa.Double),
    sa.Column("step", sa.BigInteger),
    sa.Column("max_step", sa.BigInteger),
    sa.Column("step_at", sa.Double),
    sa.Column("total_steps", sa.BigInteger),
    sa.Column("world_size", sa.BigInteger, nullable=False),
    sa.Column("repeated_steps", sa.BigInteger, nullable=False),
    sa.Column("lost_s", sa.Double, nullable=False),
    sa.Column("lost_since", sa.Double),
    sa.Column("trained_s", sa.Double, nullable=False),
    sa.Column("checkpoint_step", sa.BigInteger),
    sa.Column("cancel_requested_at", sa.Double),
    sa.Column("resized_at", sa.Double),
    sa.Column("stacks_requested_at", sa.Double),
    sa.Column("pause_requested_at", sa.Double),
    sa.Column("paused_at", sa.Double),
    sa.Column("budget_step", Word(BudgetStep)),
    sa.Column("why_short", sa.Text),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("event_seq", sa.BigInteger, nullable=False),
    sa.Column("log_seq", sa.BigInteger, nullable=False),
    sa.Column("array_id", sa.String(40)),
    sa.Column("array_index", sa.Integer),
    sa.Column("parameters", sa.JSON),
    sa.Column("stop_rule", sa.JSON),
    sa.Column("compared_at", sa.BigInteger),
    sa.Column("best_value", sa.Double),
    sa.Column("metric_reports", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("metric_sum", sa.Double, nullable=False, server_default="0"),
    sa.Column("metric_step", sa.BigInteger),
    sa.Column("stopped_early", sa.Text),
    sa.Column("is_held", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("labels", sa.JSON, nullable=False, server_default="{}"),
    sa.Column("delete_requested_at", sa.Double),
    sa.Column("deleted_at", sa.Double),
    # When all of it was deleted that is not kept for ever; nothing else than retention reads or writes it.
    sa.Column("pruned_at", sa.Double),
    # Id of the principal that submitted it; none: before there were principals.
    sa.Column("submitted_by", sa.Text),
    # The W3C trace context of the request that submitted it.
    sa.Column("traceparent", sa.String(55)),
    _cluster(),
    _partial("ix_jobs_kept", "ended_at", where=KEPT_JOBS),
    sa.Index("ix_jobs_project_id", "project", "id"),
    sa.Index("ix_jobs_state_id", "state", "id"),
    _partial("ix_jobs_active", "id", where=ACTIVE_JOBS),
    _partial("ix_jobs_overdue", "cluster", OVERDUE_AT, where=WAITING_FOR_THEIR_FIRST),
)

# The queue order, with all columns that are read of waiting jobs: queries of the index read no row.
_LINE = (jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id, jobs.c.reason, jobs.c.not_before)
_partial("ix_jobs_line", jobs.c.cluster, *_LINE, where=QUEUED_JOBS)
_partial("ix_jobs_line_of_project", jobs.c.cluster, jobs.c.project, *_LINE, where=QUEUED_JOBS)
_partial("ix_jobs_paused", jobs.c.cluster, jobs.c.id, where=PAUSED_JOBS)
_partial("ix_jobs_array", jobs.c.array_id, jobs.c.array_index, where=IN_ARRAYS)
_partial("ix_jobs_going", jobs.c.delete_requested_at, where=GOING_JOBS)
_partial("ix_jobs_queued_again", jobs.c.cluster, jobs.c.id, where=QUEUED_AGAIN)

# Many jobs that one specification describes: `service.queue.arrays`.
arrays = sa.Table(
    "arrays",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("most_at_once", sa.Integer),
    # Jobs of it have ended, or were paused or resumed, since it was last decided which follow.
    sa.Column("has_news", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("submitted_by", sa.Text),
    _partial("ix_arrays_news", "id", where=ARRAYS_WITH_NEWS),
    sa.Index("ix_arrays_project_id", "project", "id"),
)

# The best values of jobs at the steps at which jobs of an array are compared: `service.queue.early_stop`.
array_scores = sa.Table(
    "array_scores",
    metadata,
    sa.Column("array_id", sa.String(40), primary_key=True),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("job_id", sa.String(40), primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
)

# Specifications that are submitted again and again, and what became of their times: `service.queue.schedules`.
schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("key", sa.String(128)),
    sa.Column("body_digest", sa.String(64)),
    sa.Column("submitted_by", sa.Text),
    # By which token, or as a member of which groups, its submitter has the roles that its jobs need; groups are NULL
    # where they are not known.
    sa.Column("credential", sa.String(40)),
    sa.Column("groups", sa.JSON(none_as_null=True)),
    sa.UniqueConstraint("key", name="uq_schedules_key"),
    sa.Index("ix_schedules_project_id", "project", "id"),
    sa.Index("ix_schedules_next_at", "next_at"),
)

schedule_runs = sa.Table(
    "schedule_runs",
    metadata,
    sa.Column("schedule_id", sa.String(40), sa.ForeignKey("schedules.id"), primary_key=True),
    # The database itself refuses that one time is decided twice.
    sa.Column("at", sa.Double, primary_key=True),
    sa.Column("decided_at", sa.Double, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    # What was submitted may be deleted before this row.
    sa.Column("job_id", sa.String(40)),
    sa.Column("array_id", sa.String(40)),
)

# The labels of jobs, for those who look for jobs: `service.store.labels`.
job_labels = sa.Table(
    "job_labels",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("value", sa.String(200), nullable=False),
    sa.Index("ix_job_labels_name", "name", "value", "job_id"),
)

# Which jobs wait for which others: `service.queue.dependencies`.
dependencies = sa.Table(
    "dependencies",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    # The other one may be deleted before this one has noticed its end.
    sa.Column("other_id", sa.String(40), primary_key=True),
    sa.Column("other_name", sa.Text, nullable=False),
    sa.Column("wanted", sa.String(16), nullable=False),
    sa.Column("ended_as", Word(JobState)),
    sa.Index("ix_dependencies_other_id", "other_id"),
    _partial("ix_dependencies_ended", "job_id", where=ENDED_DEPENDENCIES),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("state", Word(AttemptState), nullable=False),
    sa.Column("end_reason", Word(EndReason)),
    sa.Column("message", sa.Text),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("fabric", sa.Text),
    sa.Column("on_demand", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("world_size", sa.BigInteger, nullable=False),
    sa.Column("workers", sa.JSON, nullable=False, server_default="{}"),
    sa.Column("short_since", sa.Double),
    sa.Column("step", sa.BigInteger),
    sa.Column("resumed_from_step", sa.BigInteger),
    sa.Column("environment", sa.Text),
    sa.Column("repeated_steps", sa.BigInteger, nullable=False),
    sa.Column("lost_s", sa.Double, nullable=False),
    sa.Column("log_match", sa.Text),
    sa.Column("dropped_lines", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_record_seq", sa.BigInteger, nullable=False),
    sa.Column("stop_reason", Word(EndReason)),
    sa.Column("stop_requested_at", sa.Double),
    sa.Column("resized_at", sa.Double),
    sa.Column("stacks_requested_at", sa.Double),
    sa.Column("held_end", sa.JSON(none_as_null=True)),
    sa.Column("phase", Word(WorkPhase)),
    sa.Column("phase_at", sa.Double),
    sa.Column("phase_number", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("trained_at", sa.Double),
    sa.Column("stalled_s", sa.Double, nullable=False, server_default="0"),
    sa.Column("launched_at", sa.Double),
    sa.Column("released_at", sa.Double),
    sa.Column("listed_at", sa.Double),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    # Until when its spans were sent, and whether its end was; `service.store.unsent_spans` alone writes them.
    sa.Column("traced_at", sa.Double),
    sa.Column("is_traced", sa.Boolean, nullable=False, server_default=sa.false()),
    _cluster(),
    sa.UniqueConstraint("job_id", "attempt", name="uq_attempts_job_id_attempt"),
    # The database itself refuses that a job runs twice.
    _partial("uq_attempts_live", "job_id", where=LIVE_ATTEMPTS, unique=True),
    _partial("ix_attempts_live", "cluster", "id", where=LIVE_ATTEMPTS),
    _partial("ix_attempts_unreleased", "cluster", "id", where=UNRELEASED_ATTEMPTS),
    _partial("ix_attempts_unlisted", "cluster", "id", where=UNLISTED_ATTEMPTS),
    _partial("ix_attempts_untraced", "ended_at", where=UNTRACED_ATTEMPTS),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer),
    sa.Column("data", sa.JSON, nullable=False),
)

log_lines = sa.Table(
    "log_lines",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.BigInteger, nullable=False),
    sa.Column("stream", sa.String(16), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)

metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("world_size", sa.BigInteger, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
)

loads = sa.Table(
    "loads",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # Its place among those of the rank, which are written round and round: what is old needs no deletion.
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("address", sa.String(200), nullable=False),
    sa.Column("cpu", sa.Double, nullable=False),
    sa.Column("gpu", sa.Double),
    sa.Column("gpus", sa.Integer, nullable=False),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("world_size", sa.BigInteger, nullable=False),
    sa.Column("committed_at", sa.Double, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("files", sa.JSON, nullable=False),
)

outputs = sa.Table(
    "outputs",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("committed_at", sa.Double, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    # By name: size in bytes, digest, and where it lies below the location.
    sa.Column("files", sa.JSON, nullable=False),
    # Of all of them.
    sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
)

profiles = sa.Table(
    "profiles",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("requested_at", sa.Double, nullable=False),
    sa.Column("taken_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("message", sa.Text),
    # The file in the storage, by its name there.
    sa.Column("file", sa.String(32)),
    sa.Column("profiled_steps", sa.Integer),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("sha256", sa.String(64)),
)
_UNDER_WAY = sa.text("ended_at IS NULL")
sa.Index(
    "ix_profiles_under_way",
    profiles.c.job_id,
    sqlite_where=_UNDER_WAY,
    postgresql_where=_UNDER_WAY,
)

shells = sa.Table(
    "shells",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("credential", sa.Text),
    sa.Column("command", sa.JSON, nullable=False),
    sa.Column("term", sa.String(64), nullable=False),
    sa.Column("rows", sa.Integer),
    sa.Column("columns", sa.Integer),
    sa.Column("requested_at", sa.Double, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("input_at", sa.Double, nullable=False),
    sa.Column("input_seq", sa.Integer, nullable=False),
    sa.Column("close_requested_at", sa.Double),
    sa.Column("opened_at", sa.Double),
    sa.Column("output_at", sa.Double),
    sa.Column("output_seq", sa.Integer, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.Column("message", sa.Text),
    sa.Column("exit_code", sa.Integer),
    sa.Column("cleared_at", sa.Double),
)
_NOT_CLEARED = sa.text("cleared_at IS NULL")
sa.Index(
    "ix_shells_under_way",
    shells.c.job_id,
    sqlite_where=_NOT_CLEARED,
    postgresql_where=_NOT_CLEARED,
)

# What was typed and is not in the worker yet, and what was printed and is not read yet.
shell_pieces = sa.Table(
    "shell_pieces",
    metadata,
    sa.Column("job_id", sa.String(40), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("is_output", sa.Boolean, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Integer, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["job_id", "number"], ["shells.job_id", "shells.number"]),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("output", sa.String(63), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("digest", sa.String(71), nullable=False),
    sa.Column("code", sa.String(71)),
    sa.Column("command", sa.JSON, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("files", sa.JSON, nullable=False),
    # That of its job.
    sa.Column("project", sa.Text, nullable=False, server_default=""),
    sa.Index("ix_models_job_id", "job_id"),
    sa.Index("ix_models_project_name", "project", "name", "version"),
)

# Code bundles in the storage: `service.store.bundles`.
bundles = sa.Table(
    "bundles",
    metadata,
    sa.Column("digest", sa.String(71), primary_key=True),
    sa.Column("used_at", sa.Double, nullable=False),
    # Since when its file is being deleted.
    sa.Column("gone_at", sa.Double),
    # 0: not known, of those that were uploaded before sizes were noted.
    sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("ix_bundles_used_at", "used_at"),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("state", Word(NodeState), nullable=False),
    sa.Column("address", sa.Text),
    sa.Column("resources", sa.JSON, nullable=False),
    sa.Column("message", sa.Text),
    sa.Column("is_failure", sa.Boolean, nullable=False),
    sa.Column("is_cut_off", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("offering", sa.Text, nullable=False, server_default=""),
    sa.Column("price_per_hour", sa.Double, nullable=False, server_default="0"),
    sa.Column("is_price_assumed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("fabric", sa.Text),
    sa.Column("bought_for", sa.String(40)),
    sa.Column("project", sa.String(63)),
    sa.Column("idle_since", sa.Double),
    sa.Column("leaving_since", sa.Double),
    sa.Column("deadline_at", sa.Double),
    sa.Column("agent_silent_since", sa.Double),
    sa.Column("sick_since", sa.Double),
    sa.Column("preflight_since", sa.Double),
    sa.Column("preflight", sa.JSON(none_as_null=True)),
    sa.Column("unanswered_since", sa.Double),
    sa.Column("unanswered", sa.Integer, nullable=False, server_default="0"),
    sa.Column("launched_at", sa.Double),
    sa.Column("ready_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("event_seq", sa.BigInteger, nullable=False),
    _cluster(),
    _partial("ix_nodes_live", "cluster", "id", where=LIVE_NODES),
    sa.Index("ix_nodes_ended_at", "ended_at"),
    sa.Index("ix_nodes_cluster_ended_at", "cluster", "ended_at"),
    sa.Index("ix_nodes_bought_for", "bought_for"),
)

node_events = sa.Table(
    "node_events",
    metadata,
    sa.Column("node_id", sa.String(40), sa.ForeignKey("nodes.id"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
)

# What attempts have said of nodes: until the node is drained for it, and for an hour more.
sick_reports = sa.Table(
    "sick_reports",
    metadata,
    sa.Column("attempt_id", sa.String(40), primary_key=True),
    sa.Column("address", sa.String(200), primary_key=True),
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("drained_at", sa.Double),
    _cluster(),
)

# Only ever appended to.
policies = sa.Table(
    "policies",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("based_on", sa.Integer, nullable=False),
    sa.Column("restores", sa.Integer),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("digest", sa.String(71), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)

cluster_events = sa.Table(
    "cluster_events",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    _cluster(),
    sa.Index("ix_cluster_events_kind", "kind", "seq"),
)

# What was counted of everything there ever was, so that nothing is counted again: `service.store.totals`.
totals = sa.Table(
    "totals",
    metadata,
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("word", sa.String(32), primary_key=True),
    sa.Column("amount", sa.Double, nullable=False),
)

drills = sa.Table(
    "drills",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("node_ids", sa.JSON, nullable=False),
    sa.Column("requested_at", sa.Double, nullable=False),
    sa.Column("notice_s", sa.Double),
    sa.Column("state", Word(DrillState), nullable=False),
    sa.Column("message", sa.Text),
    sa.Column("struck_at", sa.Double),
    sa.Column("deadline_at", sa.Double),
    sa.Column("noticed_at", sa.Double),
    sa.Column("taken_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    # What it cost each job: `service.queue.rows.DrilledJob`.
    sa.Column("jobs", sa.JSON, nullable=False),
    _cluster(),
    _partial("ix_drills_open", "id", where=OPEN_DRILLS),
)

# Which job used which part of which node.
uses = sa.Table(
    "uses",
    metadata,
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("node_id", sa.String(40), primary_key=True),
    sa.Column("began_at", sa.Double, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("workers", sa.Integer, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("offering", sa.Text, nullable=False),
    sa.Column("part", sa.Double, nullable=False),
    sa.Column("price_per_hour", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    _cluster(),
    _partial("ix_uses_open", "cluster", "job_id", where=OPEN_USES),
    sa.Index("ix_uses_node_id", "node_id"),
)

# What attempts did with the nodes that they held, from when on: kept as long as the uses of these nodes.
phases = sa.Table(
    "phases",
    metadata,
    # The release before deletes jobs and does not know this table.
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("began_at", sa.Double, nullable=False),
    sa.Column("phase", Word(WorkPhase), nullable=False),
)

# What the cloud had none of; kept for some time after its end.
refusals = sa.Table(
    "refusals",
    metadata,
    # Of a cluster that is not the first with its name before it: the release before knows this key alone.
    sa.Column("offering", sa.String(240), primary_key=True),
    sa.Column("until", sa.Double, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False, server_default="0"),
    # Its number among refusals in a row, from 1; 0: the row is over.
    sa.Column("tries", sa.Integer, nullable=False, server_default="1"),
    _cluster(),
)

# When operators took back what had closed offerings to a pool.
pool_reopenings = sa.Table(
    "pool_reopenings",
    metadata,
    sa.Column("pool", sa.String(200), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
)

# What is remembered of the cloud, in one row for each cluster.
cloud = sa.Table(
    "cloud",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # Before this it does not want to be asked for machines.
    sa.Column("paused_until", sa.Double),
    # Since when it, or Ray, does not say what there is.
    sa.Column("unseen_since", sa.Double),
    _cluster(),
    sa.Index("uq_cloud_cluster", "cluster", unique=True),
)

# The furthest step of the budget in a day (UTC, `2026-07-01`), and the figures of that budget.
budget_days = sa.Table(
    "budget_days",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("step", Word(BudgetStep), nullable=False),
    sa.Column("figures", sa.Text, nullable=False, server_default=""),
)

# What the newest plan does not do for pools and nodes, and why: `service.queue.plan_reasons`.
waits = sa.Table(
    "waits",
    metadata,
    sa.Column("kind", Word(WaitKind), primary_key=True),
    # The pool's name, or the node's id.
    sa.Column("about", sa.String(64), primary_key=True),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    _cluster(),
    sa.Index("ix_waits_cluster", "cluster"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("body_digest", sa.String(64), nullable=False),
    sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("ix_idempotency_created_at", "created_at"),
    sa.Index("ix_idempotency_job_id", "job_id"),
)

# Secrets of projects, encrypted: `service.secrets.encryption`.
ray_requests = sa.Table(
    "ray_requests",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("strategy", sa.String(32)),
    sa.Column("resources", sa.JSON, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("is_refused", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    _cluster(),
)

secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("project", sa.String(63), primary_key=True),
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("source", Word(SecretSource), nullable=False),
    sa.Column("key_id", sa.String(40), nullable=False),
    sa.Column("ciphertext", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("updated_by", sa.Text, nullable=False, server_default=""),
)

# The newest version that a secret of each name has or had: one that is set again goes on from there.
secret_versions = sa.Table(
    "secret_versions",
    metadata,
    sa.Column("project", sa.String(63), primary_key=True),
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("renewals", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("renewed_at", sa.Double, nullable=False),
    # Digests of what its owner's settings say, by their names, where that matters to others.
    sa.Column("settings", sa.JSON),
)

# Who has uploaded a bundle, and which projects use it: for others it is as if it were not there.
bundle_holders = sa.Table(
    "bundle_holders",
    metadata,
    sa.Column("digest", sa.String(71), primary_key=True),
    # The id of a principal, or `project:` with a name.
    sa.Column("holder", sa.String(300), primary_key=True),
)

# How much is kept of each project and of each principal: `service.store.kept_amounts`.
holdings = sa.Table(
    "holdings",
    metadata,
    # As in `bundle_holders`.
    sa.Column("holder", sa.String(300), primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("amount", sa.BigInteger, nullable=False),
)

# API tokens, of which only a digest is stored: `service.identities.tokens`.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("owner", sa.String(300), nullable=False),
    sa.Column("created_by", sa.String(300), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("last_used_at", sa.Double),
    sa.Index("ix_tokens_owner", "owner", "id"),
)

token_grants = sa.Table(
    "token_grants",
    metadata,
    sa.Column("token_id", sa.String(40), sa.ForeignKey("tokens.id"), primary_key=True),
    sa.Column("project", sa.String(63), primary_key=True),
    sa.Column("role", Word(Role), nullable=False),
    sa.Index("ix_token_grants_project", "project", "token_id"),
)

# Tokens of issuers whose sessions ended by a sign-out, by digest: `service.store.signed_out`.
signed_out = sa.Table(
    "signed_out",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    # Seconds since 1970 from which no such token is good anyway.
    sa.Column("until", sa.Double, nullable=False),
    sa.Index("ix_signed_out_until", "until"),
)

# Roles of users and of groups of users, who prove elsewhere who they are.
grants = sa.Table(
    "grants",
    metadata,
    sa.Column("subject", sa.String(300), primary_key=True),
    sa.Column("project", sa.String(63), primary_key=True),
    sa.Column("role", Word(Role), nullable=False),
    sa.Column("created_by", sa.String(300), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("ix_grants_project", "project", "subject"),
)

# Whom to notify of what, and where to: `service.queue.alerts`.
alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    # `*`: of the whole cluster.
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("owner", sa.String(300), nullable=False),
    # As in `schedules`.
    sa.Column("credential", sa.String(40)),
    sa.Column("groups", sa.JSON(none_as_null=True)),
    sa.Column("is_own_only", sa.Boolean, nullable=False),
    sa.Column("kinds", sa.JSON, nullable=False),
    sa.Column("channel", Word(Channel), nullable=False),
    sa.Column("address", sa.String(300), nullable=False),
    sa.Column("key_id", sa.String(40), nullable=False),
    sa.Column("ciphertext", sa.LargeBinary, nullable=False),
    sa.Column("wait_s", sa.Double, nullable=False),
    sa.Column("budget_percents", sa.JSON, nullable=False),
    sa.Column("slow_factor", sa.Double, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("due_at", sa.Double),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error", sa.Text),
    sa.Column("ended_at", sa.Double),
    sa.Index("ix_alerts_project_id", "project", "id"),
    _partial("ix_alerts_due", "due_at", where=DUE_ALERTS),
)

# What alerts may report, until the next tick has looked at it: written with the event that it is.
alert_facts = sa.Table(
    "alert_facts",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("kind", Word(AlertKind), nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("submitted_by", sa.Text),
    sa.Column("about", sa.String(40), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("event_seq", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
)

# What alerts look at from time to time: `service.queue.alert_watches`.
alert_watches = sa.Table(
    "alert_watches",
    metadata,
    sa.Column("alert_id", sa.String(40), sa.ForeignKey("alerts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("kind", Word(AlertKind), primary_key=True),
    sa.Column("about", sa.String(40), primary_key=True),
    sa.Column("due_at", sa.Double, nullable=False),
    sa.Column("state", sa.JSON, nullable=False),
    sa.Index("ix_alert_watches_due_at", "due_at"),
)

notifications = sa.Table(
    "notifications",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("id", sa.String(40), nullable=False),
    sa.Column("alert_id", sa.String(40), sa.ForeignKey("alerts.id", ondelete="CASCADE"), nullable=False),
    # The database itself refuses that an alert reports something twice.
    sa.Column("key", sa.String(200), nullable=False),
    # When it happened, and when this row was written.
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("state", Word(DeliveryState), nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error", sa.Text),
    sa.Column("settled_at", sa.Double),
    sa.UniqueConstraint("alert_id", "key", name="uq_notifications_alert_id_key"),
    _partial("ix_notifications_pending", "alert_id", "seq", where=PENDING_NOTIFICATIONS),
    sa.Index("ix_notifications_alert_id_seq", "alert_id", "seq"),
    sa.Index("ix_notifications_settled_at", "settled_at"),
)

# Who wrote what, when and from where: appended to in the transaction of each write, and deleted by age alone.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("principal", sa.String(300), nullable=False),
    # Id of the token that it used.
    sa.Column("credential", sa.String(40)),
    sa.Column("address", sa.String(64)),
    sa.Column("agent", sa.String(200)),
    sa.Column("operation", sa.String(64), nullable=False),
    sa.Column("project", sa.String(63)),
    sa.Column("object", sa.String(200)),
    sa.Column("before", sa.JSON),
    sa.Column("after", sa.JSON),
    sa.Column("request_id", sa.String(64)),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Index("ix_audit_project_id", "project", "id"),
)

"""What the service remembers about jobs, attempts and nodes, as frozen values.

The store reads and writes them column by column; the functions beside this module decide on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from remora.states import AttemptState, EndReason, JobState, NodeState


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job; times are seconds since 1970, durations end in `_s`."""

    id: str
    name: str
    project: str
    priority: int
    #: The JobSpec as accepted.
    spec: dict[str, Any]
    #: What the queue needs of the spec, as numbers.
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
    #: No attempt starts before this time.
    not_before: float = 0.0
    #: Newest step reported, and the highest one ever.
    step: int | None = None
    max_step: int | None = None
    #: When the highest step was reported.
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
    started_at: float | None = None
    ended_at: float | None = None
    version: int = 1
    #: Numbers of the newest event and of the newest log line.
    event_seq: int = 0
    log_seq: int = 0


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
    step: int | None = None
    resumed_from_step: int | None = None
    #: Totals that the driver reported.
    repeated_steps: int = 0
    lost_s: float = 0.0
    #: Everything up to this record is stored.
    last_record_seq: int = 0
    #: Why and since when it is being stopped.
    stop_reason: EndReason | None = None
    stop_requested_at: float | None = None
    #: When its driver was started; None: a crash may have come between, start it again.
    launched_at: float | None = None
    #: When it was made sure that nothing of it runs; no later attempt starts before.
    released_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One machine, from the wish for it to its end."""

    id: str
    pool: str
    created_at: float
    state: NodeState = NodeState.REQUESTED
    address: str | None = None
    resources: dict[str, float] = field(default_factory=dict)
    message: str | None = None
    #: True when it goes before it was of any use.
    is_failure: bool = False
    ready_at: float | None = None
    ended_at: float | None = None
    #: Number of the newest event of this node.
    event_seq: int = 0


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

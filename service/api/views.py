"""Rows as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from remora.states import JobState
from remora.views import (
    ArrayElement,
    Attempt,
    Drill,
    DrilledJob,
    Job,
    JobArray,
    Node,
    NodePreflight,
    Schedule,
    ScheduleRun,
)
from service.queue.arrays import ArrayRow, counted
from service.queue.rows import AttemptRow, DrillRow, JobRow, NodeRow, WaitRow
from service.queue.schedules import RunRow, ScheduleRow


def job_view(row: JobRow) -> Job:
    """A job for clients."""
    return Job(
        id=row.id,
        name=row.name,
        project=row.project,
        state=row.state,
        terminal=row.state.is_terminal,
        reason=row.reason,
        message=row.message,
        priority=row.priority,
        labels=row.labels,
        array=None if row.array_id is None else _element(row),
        spec=row.spec,
        attempt=row.attempt,
        step=row.step,
        total_steps=row.total_steps,
        world_size=row.world_size,
        why_short=row.why_short if row.state is JobState.RUNNING else None,
        repeated_steps=row.repeated_steps,
        lost_s=row.lost_s,
        checkpoint_step=row.checkpoint_step,
        cancel_requested_at=row.cancel_requested_at,
        pause_requested_at=row.pause_requested_at,
        created_at=row.created_at,
        started_at=row.started_at,
        paused_at=row.paused_at,
        ended_at=row.ended_at,
        version=row.version,
        submitted_by=row.submitted_by,
        cluster=row.cluster,
    )


def _element(row: JobRow) -> ArrayElement:
    return ArrayElement(
        array_id=row.array_id or "", index=row.array_index or 0, parameters=row.parameters or {}
    )


def array_view(row: ArrayRow, states: Mapping[str, int], cost: float | None = None) -> JobArray:
    """An array for clients, with how many of its jobs are in which state."""
    return JobArray(
        id=row.id,
        name=row.name,
        project=row.project,
        spec=row.spec,
        size=row.size,
        most_at_once=row.most_at_once,
        jobs=counted(states, row.size),
        terminal=all(JobState(state).is_terminal for state in states),
        cost=cost,
        created_at=row.created_at,
        submitted_by=row.submitted_by,
    )


def schedule_view(row: ScheduleRow, newest: RunRow | None = None) -> Schedule:
    """A schedule for clients."""
    return Schedule(
        id=row.id,
        name=row.name,
        project=row.project,
        spec=row.spec,
        cron=row.cron,
        zone=row.zone,
        next_at=row.next_at,
        last_run=None if newest is None else run_view(newest),
        created_at=row.created_at,
        submitted_by=row.submitted_by,
    )


def run_view(row: RunRow) -> ScheduleRun:
    """A time of a schedule for clients."""
    return ScheduleRun(
        at=row.at,
        decided_at=row.decided_at,
        outcome=row.outcome.value,
        message=row.message,
        job_id=row.job_id,
        array_id=row.array_id,
    )


def attempt_view(row: AttemptRow) -> Attempt:
    """An attempt for clients."""
    return Attempt(
        id=row.id,
        job_id=row.job_id,
        attempt=row.attempt,
        state=row.state,
        end_reason=row.end_reason,
        message=row.message,
        exit_code=row.exit_code,
        fabric=row.fabric,
        world_size=row.world_size,
        resumed_from_step=row.resumed_from_step,
        environment=row.environment,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def node_view(row: NodeRow, waits: Sequence[WaitRow] = (), jobs: Sequence[str] = ()) -> Node:
    """A node for clients, with what the newest plan says of it and the jobs that use it."""
    is_there = row.ended_at is None and bool(waits)
    return Node(
        id=row.id,
        pool=row.pool,
        cluster=row.cluster,
        state=row.state,
        address=row.address,
        resources=row.resources,
        message=row.message,
        offering=row.offering,
        price_per_hour=row.price_per_hour,
        fabric=row.fabric,
        reason="; ".join(wait.reason for wait in waits) if is_there else None,
        reason_since=min(wait.since for wait in waits) if is_there else None,
        jobs=list(jobs),
        preflight=NodePreflight(**row.preflight) if row.preflight is not None else None,
        created_at=row.created_at,
        ready_at=row.ready_at,
        ended_at=row.ended_at,
    )


def drill_view(row: DrillRow) -> Drill:
    """A drill for clients, with the jobs that it hit."""
    return Drill(
        id=row.id,
        state=row.state,
        node_ids=row.node_ids,
        notice_s=row.notice_s,
        message=row.message,
        requested_at=row.requested_at,
        struck_at=row.struck_at,
        taken_at=row.taken_at,
        ended_at=row.ended_at,
        jobs=[DrilledJob.model_validate(asdict(job)) for job in row.jobs if job.was_hit],
    )

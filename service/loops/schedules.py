"""Submits the jobs of schedules whose time has come: each time once, whichever controller dies where."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from remora.errors import SpecError
from remora.process_log import about
from remora.spec.array_elements import elements_of
from remora.spec.fields import MAX_LABELS
from remora.spec.spec import JobSpec
from service.identities.principals import EVERYTHING, LOCAL, Access
from service.loops.tick import Tick
from service.policies_in_force import limits_in_force
from service.queue.intake import LimitReached
from service.queue.rows import NewEvent
from service.queue.schedules import Outcome, RunRow, ScheduleRow, decide, refuse
from service.queue.specification import code_of
from service.store import audit, submissions
from service.store import schedules as store
from service.store.audit import AuditRow
from service.store.ids import new_id
from service.store.policies import append_cluster_event
from service.store.present_rights import Absent, access_now

log = logging.getLogger(__name__)

#: Schedules that are decided about in one tick; the others follow in the next ticks.
BATCH = 20
#: The label that jobs have with the id of their schedule.
LABEL = "schedule"


def run_schedules(tick: Tick, schedule_ids: Sequence[str]) -> None:
    """Decide about these schedules, whose time has come.  Raises Fenced."""
    for schedule_id in schedule_ids:
        _run(tick, schedule_id)


def _run(tick: Tick, schedule_id: str) -> None:
    def work(connection: sa.Connection) -> None:
        schedule = store.lock(connection, schedule_id)
        if schedule is None or schedule.next_at > tick.now:
            return
        last = store.last_submitted(connection, schedule_id)
        try:
            decision = decide(schedule, tick.now, is_active=store.is_active(connection, last))
        except ValueError as error:
            # Its time zone is not known on this machine any more.
            decision = refuse(schedule, str(error), tick.now)
        # The rows say what became of each time, in the transaction that submits: none comes twice.
        runs = list(decision.left_out)
        if decision.submit_at is not None:
            after = last.job_id if decision.waits and last is not None else None
            run = _submit(connection, tick, schedule, decision.submit_at, after)
            _record_pause(connection, schedule, run)
            runs.append(run)
        store.add_runs(connection, runs)
        store.move(connection, schedule_id, decision.next_at)
        store.forget_runs(connection, schedule_id)

    tick.apply(work)


@dataclass(frozen=True)
class _Submitted:
    job_id: str | None = None
    array_id: str | None = None
    message: str = "submitted"


def _submit(
    connection: sa.Connection, tick: Tick, schedule: ScheduleRow, at: float, after: str | None
) -> RunRow:
    """Submit for one time; a schedule whose job is refused stays, and tries it again at its next time."""
    access, why_not = _access(connection, tick, schedule)
    if why_not is not None:
        return _run_of(tick, schedule, at, Outcome.PAUSED, _Submitted(message=f"paused: {why_not}"))
    outcome = Outcome.SUBMITTED
    try:
        with connection.begin_nested():
            made = _make(connection, tick, schedule, access, after)
    except SpecError as error:
        outcome, made = Outcome.REFUSED, _Submitted(message=f"it cannot be submitted any more: {error}")
    except submissions.BundleMissing:
        outcome, made = Outcome.REFUSED, _Submitted(message="its code is not there any more; submit it again")
    except LimitReached as full:
        outcome, made = Outcome.REFUSED, _Submitted(message=str(full))
    if outcome is Outcome.REFUSED:
        log.warning(
            "the schedule %s submits nothing this time: %s",
            schedule.id,
            made.message,
            extra=about(project=schedule.project),
        )
    else:
        _note(connection, tick, schedule, made)
    return _run_of(tick, schedule, at, outcome, made)


def _note(connection: sa.Connection, tick: Tick, schedule: ScheduleRow, made: _Submitted) -> None:
    """Record in the audit in whose name something was submitted."""
    row = AuditRow(
        id=new_id("audit", tick.now),
        at=tick.now,
        principal=schedule.submitted_by or LOCAL.id,
        credential=schedule.credential,
        address=None,
        agent=None,
        operation="run_schedule",
        project=schedule.project,
        object=made.job_id or made.array_id,
        before=None,
        after={"schedule": schedule.id, "name": schedule.name, "code": code_of(schedule.spec)},
        request_id=None,
        outcome="done",
    )
    audit.append(connection, row)


def _access(connection: sa.Connection, tick: Tick, schedule: ScheduleRow) -> tuple[Access, str | None]:
    """What its submitter may do now, and why it may not submit any more; None: it may."""
    if tick.settings.authentication != "required":
        return EVERYTHING, None
    submitter = Absent(schedule.submitted_by, schedule.credential, schedule.groups)
    return access_now(connection, submitter, schedule.project, tick.now)


def _record_pause(connection: sa.Connection, schedule: ScheduleRow, run: RunRow) -> None:
    """An event when the times of a schedule begin to be left out for want of a right, and when they do no longer."""
    before = store.newest_runs(connection, [schedule.id]).get(schedule.id)
    was_paused = before is not None and before.outcome is Outcome.PAUSED
    is_paused = run.outcome is Outcome.PAUSED
    if was_paused is is_paused:
        return
    which = f"the schedule {schedule.id} of the project {schedule.project}"
    paused = NewEvent(
        at=run.decided_at,
        kind="schedule.paused",
        message=f"{which}: {run.message}",
        data={"schedule": schedule.id, "project": schedule.project},
    )
    resumed = NewEvent(
        at=run.decided_at,
        kind="schedule.resumed",
        message=f"{which}: its submitter may submit again",
        data={"schedule": schedule.id, "project": schedule.project},
    )
    append_cluster_event(connection, paused if is_paused else resumed)


def _run_of(tick: Tick, schedule: ScheduleRow, at: float, outcome: Outcome, made: _Submitted) -> RunRow:
    return RunRow(
        schedule_id=schedule.id,
        at=at,
        decided_at=tick.now,
        outcome=outcome,
        message=" ".join(made.message.split())[:1000],
        job_id=made.job_id,
        array_id=made.array_id,
    )


def _make(
    connection: sa.Connection, tick: Tick, schedule: ScheduleRow, access: Access, after: str | None
) -> _Submitted:
    labels = dict(schedule.spec["labels"])
    if len(labels) < MAX_LABELS:
        labels.setdefault(LABEL, schedule.id)
    others = [*schedule.spec["after"], *([{"job": after, "when": "any"}] if after else [])]
    spec = JobSpec.from_mapping({**schedule.spec, "schedule": None, "labels": labels, "after": others})
    limits = limits_in_force(connection, tick.settings)
    origin = f"by the schedule {schedule.id}"
    if spec.array is None:
        submissions.check_jobs(connection, spec.project, 1, limits)
        job = submissions.submit(
            connection,
            spec,
            tick.now,
            origin,
            access=access,
            by=schedule.submitted_by,
            policies=limits.policies,
        )
        return _Submitted(job_id=job.id)
    elements = elements_of(spec)
    submissions.check_jobs(connection, spec.project, len(elements), limits)
    array = submissions.submit_array(
        connection,
        spec,
        elements,
        tick.now,
        access=access,
        by=schedule.submitted_by,
        policies=limits.policies,
    )
    return _Submitted(array_id=array.id)

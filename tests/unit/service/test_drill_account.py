"""What a drill cost a job, read from what the job left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from remora.states import DrillState, JobState
from remora.views import Event, MetricPoint
from service.queue.drills import (
    NOTICE_PATIENCE_S,
    PATIENCE_S,
    QUIET_S,
    JobUpdate,
    TakenNode,
    end,
    follow_cloud,
    is_due,
    is_over,
    measure,
    notified,
    strike,
)
from service.queue.rows import DrilledJob, DrillRow, JobRow
from tests.service_fakes import job_row

#: When the drill begins, and how the job stands then: three workers, ten steps done, two of them twice.
STRUCK_AT = 2000.0
JOB = replace(
    job_row(1000.0),
    state=JobState.RUNNING,
    world_size=3,
    max_step=10,
    repeated_steps=2,
    event_seq=5,
)
ASKED = DrillRow(id="drill_1", node_ids=["node_a"], requested_at=STRUCK_AT - 1)
SILENT = strike(ASKED, [JOB], STRUCK_AT)
NOTICED = strike(replace(ASKED, notice_s=30.0), [JOB], STRUCK_AT)
(BEFORE,) = SILENT.jobs


def step(number: int, after_s: float, workers: int = 3) -> MetricPoint:
    return MetricPoint(step=number, at=STRUCK_AT + after_s, attempt=1, world_size=workers, values={})


def event(seq: int, kind: str, after_s: float, **data: Any) -> Event:
    return Event(seq=seq, job_id=JOB.id, at=STRUCK_AT + after_s, kind=kind, message="It happened.", data=data)


def account(*reported: MetricPoint | Event, job: JobRow = JOB, known: DrilledJob = BEFORE) -> DrilledJob:
    points = [one for one in reported if isinstance(one, MetricPoint)]
    events = [one for one in reported if isinstance(one, Event)]
    return measure(SILENT, known, JobUpdate(job=job, points=points, events=events))


def test_a_lost_node_costs_the_time_to_the_next_step_and_the_steps_done_again() -> None:
    cost = account(
        event(6, "node.lost", 4.0, ranks=[2]),
        event(7, "worker_group.regrouped", 5.0, world_size=2),
        step(11, 6.0, workers=2),
        step(12, 7.0, workers=2),
        event(8, "worker_group.regrouped", 19.0, world_size=3),
        step(13, 20.0),
        job=replace(JOB, repeated_steps=6),
    )
    assert cost.was_hit
    assert (cost.workers_before, cost.workers_least, cost.workers) == (3, 2, 3)
    assert (cost.repeated_steps, cost.next_step_s, cost.pause_s) == (4, 6.0, 13.0)
    assert cost.full_after_s == 20.0


def test_steps_done_before_the_strike_and_reported_after_it_are_no_next_step() -> None:
    cost = account(step(11, -0.1), step(12, 3.0))
    assert (cost.step, cost.next_step_s, cost.pause_s) == (12, 3.0, 3.0)


def test_a_last_step_with_all_workers_is_not_their_return() -> None:
    early = account(step(11, 0.25))
    assert (early.full_after_s, early.next_step_s) == (0.0, 0.25)
    later = account(event(6, "node.lost", 4.0), step(12, 6.0, workers=2), known=early)
    assert (later.full_after_s, later.next_step_s) == (None, 6.0)
    assert account(step(13, 15.0), known=later).full_after_s == 15.0


def test_it_does_not_matter_in_how_many_looks_it_is_read() -> None:
    reported = [
        event(6, "worker_group.drain", 0.2, deadline_at=STRUCK_AT + 30),
        step(11, 0.5),
        event(7, "worker_group.regrouped", 2.0, world_size=2),
        step(12, 3.0, workers=2),
        event(8, "worker_group.regrouped", 9.0, world_size=3),
        step(13, 9.5),
    ]
    once, bit_by_bit = account(*reported), BEFORE
    for one in reported:
        bit_by_bit = account(one, known=bit_by_bit)
    assert bit_by_bit == once
    assert (once.step, once.event_seq) == (13, 8), "what was read is not read again"
    assert account(known=once).event_seq == 8
    assert (once.workers_least, once.full_after_s, once.repeated_steps) == (2, 9.5, 0)


def test_a_job_of_a_fixed_size_is_whole_when_its_next_attempt_steps() -> None:
    waiting = account(
        event(6, "attempt.ended", 5.0, end_reason="node_lost"),
        job=replace(JOB, state=JobState.QUEUED, world_size=0),
    )
    assert (waiting.was_hit, waiting.workers_least, waiting.full_after_s) == (True, 0, None)
    again = account(step(11, 30.0), known=waiting)
    assert (again.full_after_s, again.next_step_s, again.workers_least) == (30.0, 30.0, 0)


def test_the_workers_of_now_are_counted_and_none_at_all_is_no_size() -> None:
    seen, known = [], BEFORE
    for size in (3, 2, 0, 1, 3):
        known = account(job=replace(JOB, world_size=size), known=known)
        seen.append((known.workers, known.workers_least))
    assert seen == [(3, 3), (2, 2), (0, 2), (1, 1), (3, 1)]


def test_a_script_that_reports_no_steps_is_followed_by_its_worker_groups() -> None:
    silent = replace(BEFORE, step=None)
    hit = account(
        event(6, "node.lost", 4.0), event(7, "worker_group.started", 6.0, world_size=2), known=silent
    )
    assert (hit.full_after_s, hit.workers_least) == (None, 2)
    assert account(event(8, "worker_group.started", 20.0, world_size=3), known=hit).full_after_s == 20.0


def test_an_end_of_its_own_is_no_hit() -> None:
    cost = account(
        event(6, "attempt.ended", 5.0, end_reason="exit_code"),
        job=replace(JOB, state=JobState.FAILED, world_size=0),
    )
    assert (cost.was_hit, cost.has_ended, cost.workers_least) == (False, True, 3)


class TestACloudThatGivesItsOwnNotice:
    """It was asked, and gives the notice when it likes; seconds count from the last look before that."""

    ASKED_AT = STRUCK_AT - 100.0
    WAITING = replace(
        strike(replace(ASKED, notice_s=30.0), [JOB], ASKED_AT, own_notice_s=30.0), noticed_at=ASKED_AT
    )
    UNNOTIFIED = TakenNode(id="node_a", has_heard=False, is_gone=False)

    def test_the_account_starts_again_until_a_node_has_the_notice(self) -> None:
        later = follow_cloud(self.WAITING, [self.UNNOTIFIED], [replace(JOB, max_step=90)], STRUCK_AT)
        assert (later.struck_at, later.deadline_at) == (STRUCK_AT, STRUCK_AT + 30.0)
        assert [job.step for job in later.jobs] == [90]
        heard = replace(self.UNNOTIFIED, has_heard=True)
        assert follow_cloud(later, [heard], [JOB], STRUCK_AT + 1) == later

    def test_what_happened_right_before_the_last_look_and_was_reported_after_it_is_of_the_notice(
        self,
    ) -> None:
        waiting = follow_cloud(self.WAITING, [self.UNNOTIFIED], [JOB], STRUCK_AT)
        reported = JobUpdate(job=JOB, events=[event(6, "worker_group.drain", -0.2)])
        hit = measure(waiting, waiting.jobs[0], reported)
        assert hit.was_hit
        after = replace(waiting, jobs=[hit])
        assert follow_cloud(after, [self.UNNOTIFIED], [JOB], STRUCK_AT + 1) == after
        assert not measure(SILENT, BEFORE, reported).was_hit, "one without a notice has nothing before it"

    def test_nodes_that_went_without_a_notice_are_named(self) -> None:
        gone = [
            TakenNode(id="node_a", has_heard=True, is_gone=True),
            TakenNode(id="node_b", has_heard=False, is_gone=True),
        ]
        taken = follow_cloud(self.WAITING, gone, [JOB], STRUCK_AT)
        assert (taken.taken_at, taken.message) == (STRUCK_AT, "node_b went without having heard of a notice")
        assert follow_cloud(self.WAITING, gone[:1], [JOB], STRUCK_AT).message is None
        one = follow_cloud(self.WAITING, [gone[1], replace(gone[0], is_gone=False)], [JOB], STRUCK_AT)
        assert one == self.WAITING, "the other one has heard and is there"

    def test_a_cloud_that_gives_none_is_waited_for_no_longer_than_said(self) -> None:
        last = self.ASKED_AT + NOTICE_PATIENCE_S
        assert follow_cloud(self.WAITING, [self.UNNOTIFIED], [JOB], last).ended_at is None
        over = follow_cloud(self.WAITING, [self.UNNOTIFIED], [JOB], last + 1.0)
        assert (over.state, over.ended_at, over.jobs) == (DrillState.ENDED, last + 1.0, [])
        assert str(over.message).startswith("the cloud has given no notice within")


class TestTheEnd:
    TAKEN = replace(SILENT, taken_at=STRUCK_AT)

    def over(self, job: DrilledJob, after_s: float) -> bool:
        return is_over(replace(self.TAKEN, jobs=[job]), STRUCK_AT + after_s)

    def test_comes_when_a_job_that_was_hit_steps_with_all_its_workers(self) -> None:
        hit = account(event(6, "node.lost", 4.0), step(11, 6.0, workers=2))
        assert not self.over(hit, 15.0)
        assert self.over(account(step(12, 16.0), known=hit), 17.0)

    def test_waits_for_jobs_that_may_not_have_noticed_yet(self) -> None:
        undisturbed = account(step(11, 1.0))
        assert not self.over(undisturbed, QUIET_S)
        assert self.over(undisturbed, QUIET_S + 1)

    def test_does_not_wait_without_any_job(self) -> None:
        assert is_over(replace(self.TAKEN, jobs=[]), STRUCK_AT)

    def test_does_not_come_before_the_nodes_are_gone(self) -> None:
        hit = account(event(6, "worker_group.drain", 0.2), step(11, 6.0, workers=2), step(12, 9.0))
        drill = replace(NOTICED, noticed_at=STRUCK_AT, jobs=[hit])
        assert not is_over(drill, STRUCK_AT + 10)
        assert not is_over(replace(drill, taken_at=STRUCK_AT + 30), STRUCK_AT + 30)
        for waiting, since in ((drill, STRUCK_AT + 30.0), (replace(SILENT, jobs=[hit]), STRUCK_AT)):
            assert not is_over(waiting, since + PATIENCE_S), "counted from their deadline, where there is one"
            assert is_over(waiting, since + PATIENCE_S + 1)

    def test_names_who_stayed_small_and_leaves_out_who_was_not_hit(self) -> None:
        hit = account(event(6, "node.lost", 4.0), step(11, 6.0, workers=2))
        assert not self.over(hit, PATIENCE_S)
        assert self.over(hit, PATIENCE_S + 1)
        ended = end(replace(self.TAKEN, jobs=[hit, replace(BEFORE, name="other")]), 3000.0)
        assert (ended.state, ended.ended_at, ended.jobs) == (DrillState.ENDED, 3000.0, [hit])
        assert ended.message == "digits had not as many workers as before after 600 s"


class TestActing:
    def test_without_a_notice_the_nodes_are_due_at_once_else_at_the_deadline(self) -> None:
        assert is_due(SILENT, STRUCK_AT)
        assert not is_due(NOTICED, STRUCK_AT + 29.9)
        assert is_due(NOTICED, STRUCK_AT + 30.0)
        assert not is_due(replace(NOTICED, taken_at=STRUCK_AT + 30.0), STRUCK_AT + 31.0)

    def test_nodes_that_cannot_be_notified_are_left_alone(self) -> None:
        two = replace(NOTICED, node_ids=["node_a", "node_b"])
        reported = notified(two, {"node_a": "it is not alive"}, STRUCK_AT)
        assert (reported.node_ids, reported.message, reported.noticed_at) == (
            ["node_b"],
            "it is not alive",
            STRUCK_AT,
        )
        none = notified(two, {"node_a": "it is not alive", "node_b": "nor is it"}, STRUCK_AT)
        assert (none.state, none.message) == (DrillState.REFUSED, "it is not alive; nor is it")
        assert none.ended_at == STRUCK_AT

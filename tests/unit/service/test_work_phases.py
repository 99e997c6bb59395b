"""What an attempt does with its nodes is recorded from when on it does it, as its driver says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remora.states import AttemptState, EndReason
from service.queue import driver_records, lifecycle, phases
from service.queue.driver_records import ProgressRecord
from service.queue.rows import AttemptRow, JobRow, PhaseRow, WorkPhase
from tests.service_fakes import job_row
from trainers.driver.journal import Journal

RUNNING, STARTING = AttemptState.RUNNING, AttemptState.STARTING


class Story:
    """One attempt, and the phases that were recorded of it."""

    def __init__(self) -> None:
        self.rows: list[PhaseRow] = []
        self.events: list[str] = []
        decision = lifecycle.start_attempt(job_row(), "att_1", 100.0)
        self.job: JobRow = decision.job
        self._take(decision)

    def _take(self, decision: lifecycle.Decision) -> None:
        assert decision.attempt is not None
        self.job, self.attempt = decision.job, decision.attempt
        self.rows += decision.phases
        self.events += [event.kind for event in decision.events]

    def hear(self, at: float, **progress: Any) -> Story:
        self._take(lifecycle.observe(self.job, self.attempt, ProgressRecord(**progress), at))
        return self

    def step(self, at: float, step: int) -> Story:
        self._take(lifecycle.observe_step(self.job, self.attempt, step, at))
        return self

    def stop(self, at: float) -> Story:
        self._take(lifecycle.request_stop(self.job, self.attempt, EndReason.CANCELLED, at))
        return self

    def changed_in_place(self, at: float, pause_s: float) -> Story:
        self._take(lifecycle.observe_pause(self.job, self.attempt, pause_s, at))
        return self

    def reported(self) -> list[tuple[float, str]]:
        assert [row.number for row in self.rows] == list(range(1, len(self.rows) + 1))
        return [(row.began_at, row.phase.value) for row in self.rows]


def test_an_attempt_starts_prepares_runs_trains_and_is_drained() -> None:
    story = Story().hear(110.0, preparing="2 of 7 packages").hear(115.0, preparing="7 of 7 packages")
    story.hear(120.0, state=RUNNING, world_size=2).hear(130.0, phase="training").step(130.0, 1).step(131.0, 2)
    story.stop(140.0).hear(141.0, step=3)
    assert story.reported() == [
        (100.0, "starting"), (110.0, "preparing"), (120.0, "running"), (130.0, "training"), (140.0, "draining"),
    ]  # fmt: skip
    assert story.events.count("training.began") == 1
    assert story.attempt.trained_at == 130.0


class Journalled(Story):
    """The same, with records that a driver's journal hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()

    def poll(self) -> None:
        for record in self.journal.after(self.attempt.last_record_seq, 1000):
            said = driver_records.read(record)
            if isinstance(said, driver_records.MetricRecord):
                self.step(record.at, said.step)
            else:
                assert isinstance(said, ProgressRecord)
                self._take(lifecycle.observe(self.job, self.attempt, said, record.at))
            self.attempt = replace(self.attempt, last_record_seq=record.seq)


def test_metrics_that_are_polled_behind_their_counters_repeat_nothing() -> None:
    story = Journalled()
    story.journal.append(110.0, "progress", {"state": "running", "world_size": 1, "workers": {}})
    story.journal.append(121.0, "progress", {"phase": "training"})
    for step in range(1, 31):
        story.journal.measure(120.0 + step, {"step": step, "world_size": 1, "values": {"loss": 1.0}})
        if step % 5 == 0:
            story.journal.count(120.0 + step, {"step": step})
            story.poll()
    assert story.reported() == [(100.0, "starting"), (110.0, "running"), (121.0, "training")]
    assert story.job.max_step == 30


def test_metrics_that_are_polled_late_do_not_make_a_start_training() -> None:
    story = Journalled()
    story.journal.append(110.0, "progress", {"state": "running"})
    story.journal.append(120.0, "progress", {"phase": "training"})
    story.poll()
    # A worker is lost at 200, and its group's last metrics are fetched when the next group runs.
    story.journal.measure(198.0, {"step": 7, "world_size": 1, "values": {"loss": 1.0}})
    story.journal.append(201.0, "progress", {"state": "starting"})
    story.journal.append(230.0, "progress", {"state": "running"})
    story.journal.count(231.0, {"step": 7})
    story.poll()
    story.journal.append(290.0, "progress", {"phase": "recomputing"})
    story.journal.append(300.0, "progress", {"phase": "training"})
    story.poll()
    assert story.reported()[2:] == [
        (120.0, "training"), (201.0, "starting"), (230.0, "running"), (290.0, "recomputing"), (300.0, "training"),
    ]  # fmt: skip


def test_what_a_driver_of_the_release_before_runs_has_a_first_step_and_no_phases_of_steps() -> None:
    story = Story().hear(110.0, state=RUNNING).step(120.0, 5).step(121.0, 6)
    assert story.reported() == [(100.0, "starting"), (110.0, "running")]
    assert story.events.count("training.began") == 1
    assert story.attempt.trained_at == 120.0


def test_a_driver_says_so_itself_where_no_metrics_do() -> None:
    story = Story().hear(110.0, state=RUNNING).hear(120.0, phase="recomputing").hear(125.0, repeated_steps=3)
    story.hear(130.0, phase="training").hear(131.0, step=9)
    assert story.reported()[-2:] == [(120.0, "recomputing"), (130.0, "training")]
    assert story.attempt.trained_at == 120.0


def test_short_stalls_are_collected_until_they_are_a_second() -> None:
    story = Story().hear(110.0, state=RUNNING).hear(120.0, phase="training")
    story.hear(130.0, stalled_s=0.4).hear(140.0, stalled_s=0.8)
    assert story.reported()[-1] == (120.0, "training")
    story.hear(150.0, stalled_s=1.3)
    assert story.reported()[-2:] == [(148.7, "checkpoint"), (150.0, "training")]
    assert story.attempt.stalled_s == 1.3
    story.hear(151.0, stalled_s=500.0)
    assert story.reported()[-2:] == [(150.0, "checkpoint"), (151.0, "training")], (
        "no longer than since the newest phase"
    )


def test_workers_that_are_changed_in_place_start_for_that_time() -> None:
    story = Story().hear(110.0, state=RUNNING).hear(120.0, phase="training")
    story.changed_in_place(140.0, 3.0)
    assert story.reported()[-2:] == [(137.0, "starting"), (140.0, "training")]
    before = story.reported()
    story.hear(150.0, state=STARTING).changed_in_place(151.0, 0.5)
    assert story.reported() == [*before, (150.0, "starting")], "what had not begun was not interrupted"


def test_an_attempt_has_a_bounded_number_of_phases_and_its_end_is_one_of_them() -> None:
    story = Story().hear(110.0, state=RUNNING).hear(120.0, phase="training")
    story.attempt = replace(story.attempt, phase_number=phases.MOST_PHASES - 1)
    story.rows.clear()
    story.hear(130.0, stalled_s=2.0).hear(140.0, phase="recomputing").hear(150.0, phase="training")
    story.hear(160.0, stalled_s=9.0).changed_in_place(170.0, 1.0).stop(180.0)
    assert [row.phase for row in story.rows] == [WorkPhase.RECOMPUTING, WorkPhase.DRAINING]


times = st.floats(0.0, 1000.0)


@given(st.lists(st.tuples(st.sampled_from(WorkPhase), times, st.one_of(st.none(), times))))
def test_phases_follow_each_other_in_time_whatever_clocks_say(
    said: list[tuple[WorkPhase, float, float | None]],
) -> None:
    attempt = AttemptRow(id="att_1", job_id="job_1", attempt=1, created_at=0.0)
    rows: list[PhaseRow] = []
    for phase, at, lasted_s in said:
        if lasted_s is None:
            attempt, more = phases.mark(attempt, phase, at)
        else:
            attempt, more = phases.mark_past(attempt, phase, lasted_s, at)
        rows += more
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert [row.began_at for row in rows] == sorted(row.began_at for row in rows)
    if rows:
        assert (attempt.phase, attempt.phase_at, attempt.phase_number) == (
            rows[-1].phase, rows[-1].began_at, len(rows),
        )  # fmt: skip

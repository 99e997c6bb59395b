"""What is decided when owners change their jobs, let them wait for others, or have them made again and again."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.policies import BudgetStep
from remora.spec.spec import JobSpec
from remora.states import JobState
from service.queue import lifecycle, owners_changes, schedules
from service.queue.arrays import ArrayQueue, counted, released
from service.queue.dependencies import Dependency, Wanted, dependencies_of, waits_for, why_impossible
from service.queue.rows import AttemptRow, JobRow
from service.queue.schedules import Outcome, ScheduleRow, decide
from tests.service_fakes import job_row

NOW = 1000.0
ENDS = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


def dependency(
    wanted: Wanted = Wanted.SUCCESS, ended_as: JobState | None = None, other: str = "job_b"
) -> Dependency:
    return Dependency(job_id="job_a", other_id=other, other_name="prepare", wanted=wanted, ended_as=ended_as)


class TestDependencies:
    @pytest.mark.parametrize(
        ("wanted", "met"),
        [
            (Wanted.SUCCESS, {JobState.SUCCEEDED}),
            (Wanted.FAILURE, {JobState.FAILED}),
            (Wanted.ANY, ENDS),
        ],
    )
    def test_an_end_is_the_wanted_one_or_never_will_be(self, wanted: Wanted, met: set[JobState]) -> None:
        for end in ENDS:
            one = dependency(wanted, end)
            assert (one.is_met, one.is_impossible) == (end in met, end not in met)
        open_one = dependency(wanted)
        assert (open_one.is_met, open_one.is_impossible) == (False, False)

    def test_they_are_read_from_the_specification(self) -> None:
        done, open_one = job_row(state=JobState.FAILED), job_row(state=JobState.RUNNING)
        named = [{"job": done.id, "when": "failure"}, {"job": open_one.id, "when": "any"}]
        job = job_row(spec={"after": named})
        first, second = dependencies_of(job, {done.id: done, open_one.id: open_one})
        assert (first.wanted, first.ended_as, first.other_name) == (Wanted.FAILURE, JobState.FAILED, "digits")
        assert (second.wanted, second.ended_as, second.job_id) == (Wanted.ANY, None, job.id)

    def test_at_most_three_are_named(self) -> None:
        open_ones = [dependency(other=f"job_{number}") for number in range(5)]
        said = waits_for(open_ones)
        assert said is not None
        assert said.endswith("the success of prepare (job_2), and 2 more")
        three = waits_for(open_ones[:3])
        assert three is not None
        assert "more" not in three
        assert waits_for([dependency(ended_as=JobState.SUCCEEDED)]) is None
        assert waits_for([dependency(Wanted.ANY)]) == "waits for the end of prepare (job_b)"

    def test_why_a_job_can_never_start_names_the_first_one(self) -> None:
        assert why_impossible([dependency(), dependency(ended_as=JobState.SUCCEEDED)]) is None
        said = why_impossible([dependency(ended_as=JobState.CANCELLED)])
        assert said == "it was to start after the success of prepare (job_b), which ended as cancelled"


class TestWaiting:
    def test_a_job_that_waits_for_others_is_not_in_the_queue(self) -> None:
        job = lifecycle.submit(job_row(), [dependency()]).job
        assert (job.reason, job.not_before, job.waits_from, job.is_held) == (
            "waiting_for_jobs",
            inf,
            inf,
            False,
        )
        released_job = lifecycle.others_ended(job, [dependency(ended_as=JobState.SUCCEEDED)], NOW).job
        assert (released_job.reason, released_job.not_before, released_job.waits_from) == (
            "waiting_for_turn", NOW, NOW
        )  # fmt: skip
        failed = lifecycle.others_ended(job, [dependency(ended_as=JobState.FAILED)], NOW).job
        assert (failed.state, failed.reason, failed.ended_at) == (JobState.FAILED, "dependency_unmet", NOW)

    def test_a_job_that_its_array_holds_back_waits_for_both(self) -> None:
        job = lifecycle.submit(job_row(array_id="array_1"), [dependency()], held="waits for its array").job
        assert (job.reason, job.is_held) == ("waiting_for_jobs", True)
        met = [dependency(ended_as=JobState.SUCCEEDED)]
        first = lifecycle.others_ended(job, met, NOW).job
        assert (first.reason, first.not_before) == ("waiting_for_array", inf)
        then = lifecycle.release_from_array(first, [], NOW).job
        assert (then.reason, then.not_before, then.is_held) == ("waiting_for_turn", NOW, False)
        other = lifecycle.release_from_array(job, [dependency()], NOW).job
        assert (other.reason, other.not_before, other.is_held) == ("waiting_for_jobs", inf, False)

    def test_without_either_it_waits_in_the_queue(self) -> None:
        job = lifecycle.submit(job_row(), [dependency(ended_as=JobState.SUCCEEDED)]).job
        assert (job.reason, job.not_before, job.waits_from) == ("waiting_for_turn", 0.0, job.created_at)
        (event,) = lifecycle.submit(job_row(), origin="a clone of job_1").events
        assert event.message == "job digits was accepted, a clone of job_1"


class TestPauses:
    def test_a_job_that_waits_is_paused_at_once_and_one_that_runs_when_its_attempt_has_ended(self) -> None:
        paused = lifecycle.request_pause(job_row(), NOW).job
        assert (paused.state, paused.paused_at, paused.pause_requested_at) == (JobState.PAUSED, NOW, NOW)
        running = job_row(state=JobState.RUNNING)
        asked = lifecycle.request_pause(running, NOW)
        assert (asked.job.state, asked.job.pause_requested_at) == (JobState.RUNNING, NOW)
        assert asked.job.message == "it is being paused"
        assert [event.kind for event in asked.events] == ["job.pause_requested"]

    @pytest.mark.parametrize("state", [JobState.QUEUED, JobState.ADMITTED, JobState.RUNNING])
    def test_a_paused_job_uses_nothing_and_loses_nothing(self, state: JobState) -> None:
        before = job_row(state=state, world_size=3, lost_since=5.0, why_short="no node is free")
        decision = lifecycle.pause(before, "the budget is spent", NOW)
        job = decision.job
        assert (job.state, job.reason, job.message) == (
            JobState.PAUSED,
            "waiting_for_budget",
            "the budget is spent",
        )
        assert (job.world_size, job.lost_since, job.paused_at) == (0, None, NOW)
        assert [(one.kind, one.attempt) for one in decision.events] == [("job.paused", None)]

    @pytest.mark.parametrize(
        "fields",
        [{"state": JobState.SUCCEEDED}, {"pause_requested_at": 1.0}, {"cancel_requested_at": 1.0}],
    )
    def test_nothing_follows_where_nothing_is_to_be_paused(self, fields: dict[str, Any]) -> None:
        job = job_row(**fields)
        assert lifecycle.request_pause(job, NOW) == lifecycle.Decision(job, None)

    def test_the_budgets_pause_becomes_the_owners(self) -> None:
        job = job_row(state=JobState.PAUSED, reason="waiting_for_budget", paused_at=1.0)
        both = lifecycle.request_pause(job, NOW).job
        assert (both.reason, both.pause_requested_at, both.paused_at) == ("paused_by_owner", NOW, 1.0)

    def test_a_resumed_job_starts_as_soon_as_it_may(self) -> None:
        paused = lifecycle.request_pause(job_row(not_before=NOW + 60.0), NOW).job
        again = lifecycle.request_resume(paused, (), NOW + 5.0).job
        assert (again.state, again.not_before, again.waits_from) == (JobState.QUEUED, NOW + 5.0, NOW + 5.0)
        waits = lifecycle.request_resume(paused, [dependency()], NOW).job
        assert (waits.reason, waits.not_before, waits.is_held) == ("waiting_for_jobs", inf, False)
        element = lifecycle.request_resume(replace(paused, array_id="array_1"), (), NOW).job
        assert (element.reason, element.not_before, element.is_held) == ("waiting_for_array", inf, True)
        assert lifecycle.request_resume(job_row(), (), NOW).events == ()

    def test_a_request_is_withdrawn_while_it_still_runs(self) -> None:
        job = job_row(state=JobState.RUNNING, pause_requested_at=1.0, message="it is being paused")
        decision = lifecycle.request_resume(job, (), NOW)
        assert (decision.job.pause_requested_at, decision.job.message) == (None, None)
        assert [event.kind for event in decision.events] == ["job.pause_withdrawn"]

    def test_a_paused_job_hears_when_all_others_have_ended(self) -> None:
        job = lifecycle.request_pause(lifecycle.submit(job_row(), [dependency()]).job, NOW).job
        assert lifecycle.others_ended(job, [dependency()], NOW).job == job
        met = lifecycle.others_ended(job, [dependency(ended_as=JobState.SUCCEEDED)], NOW).job
        assert (met.state, met.not_before) == (JobState.PAUSED, NOW)
        held = replace(job, is_held=True)
        assert lifecycle.others_ended(held, [dependency(ended_as=JobState.SUCCEEDED)], NOW).job == held

    @pytest.mark.parametrize("step_at", [None, 5.0])
    def test_a_job_that_goes_on_after_a_budget_is_paused_no_more_and_loses_time_from_now_on(
        self, step_at: float | None
    ) -> None:
        before = job_row(
            state=JobState.PAUSED, paused_at=1.0, budget_step=BudgetStep.PAUSE, step_at=step_at, attempt=3
        )
        decision = lifecycle.resume(before, NOW)
        job = decision.job
        assert (job.state, job.paused_at, job.budget_step) == (JobState.QUEUED, None, None)
        assert job.lost_since == (None if step_at is None else NOW), (
            "without a step there is nothing to win back"
        )
        assert [(one.kind, one.attempt, one.message) for one in decision.events] == [
            ("job.queued", 3, job.message)
        ]

    def test_what_the_budget_lets_go_on_may_still_be_held_back(self) -> None:
        job = job_row(state=JobState.PAUSED, paused_at=1.0, is_held=True)
        assert lifecycle.resume(job, NOW).job.reason == "waiting_for_array"
        assert lifecycle.resume(replace(job, is_held=False), NOW).job.reason == "waiting_for_turn"


class TestChanges:
    def test_labels_are_set_and_removed(self) -> None:
        job = job_row(labels={"a": "1", "b": "2"})
        decision = owners_changes.relabel(job, {"a": None, "c": "3", "x": None}, NOW)
        assert decision.job.labels == {"b": "2", "c": "3"}
        assert decision.events[0].data == {"labels": {"b": "2", "c": "3"}}
        assert owners_changes.relabel(job, {"a": "1"}, NOW) == lifecycle.Decision(job, None)
        full = job_row(labels={f"n{number}": "" for number in range(50)})
        assert len(owners_changes.relabel(full, {"n0": "x"}, NOW).job.labels) == 50
        with pytest.raises(owners_changes.ChangeRefused, match="51 labels, expected at most 50"):
            owners_changes.relabel(full, {"more": "x"}, NOW)
        with pytest.raises(owners_changes.ChangeRefused, match="is not a label's name"):
            owners_changes.relabel(job, {"": "x"}, NOW)

    def test_only_an_ended_job_is_deleted_and_none_that_is_a_model(self) -> None:
        ended = job_row(state=JobState.SUCCEEDED)
        assert owners_changes.request_deletion(ended, [], NOW).job.delete_requested_at == NOW
        asked = replace(ended, delete_requested_at=1.0)
        assert owners_changes.request_deletion(asked, [], NOW) == lifecycle.Decision(asked, None)
        with pytest.raises(owners_changes.ChangeRefused, match="the job is running; cancel it first"):
            owners_changes.request_deletion(job_row(state=JobState.RUNNING), [], NOW)
        with pytest.raises(owners_changes.ChangeRefused, match=r"a:1, b:2, c:3 and 1 more, and a job"):
            owners_changes.request_deletion(ended, ["a:1", "b:2", "c:3", "d:4"], NOW)
        with pytest.raises(owners_changes.ChangeRefused, match=r"its outputs are a:1, b:2, c:3, and a job"):
            owners_changes.request_deletion(ended, ["a:1", "b:2", "c:3"], NOW)

    def test_each_size_is_newer_than_the_one_before(self) -> None:
        def spec(least: int, most: int) -> JobSpec:
            return JobSpec.from_mapping({"command": "x", "workers": {"min": least, "max": most}})

        job = job_row(spec=spec(1, 2).to_mapping())
        first = owners_changes.resize(job, spec(1, 4), NOW)
        assert (first.job.min_workers, first.job.max_workers, first.job.resized_at) == (1, 4, NOW)
        assert first.events[0].message == "its owner gave it 1 to 4 workers"
        second = owners_changes.resize(first.job, spec(3, 3), NOW - 60.0)
        assert second.job.resized_at is not None
        assert second.job.resized_at > NOW
        assert second.events[0].message == "its owner gave it 3 workers"
        assert (second.job.min_workers, second.job.max_workers) == (3, 3)
        assert owners_changes.resize(job, spec(1, 2), NOW) == lifecycle.Decision(job, None)

    def test_the_batch_that_its_workers_made_becomes_part_of_the_specification(self) -> None:
        def row(**fields: Any) -> JobRow:
            spec = JobSpec.from_mapping({"command": "x", "workers": {"min": 1, "max": 3}, **fields})
            return job_row(spec=spec.to_mapping(), min_workers=spec.min_workers, max_workers=spec.max_workers)

        job = row(backend="deepspeed", elastic={"shards": 4})
        attempt = AttemptRow(
            id="att_a", job_id=job.id, attempt=1, created_at=0.0, world_size=2, short_since=5.0
        )
        kept = owners_changes.keep_batch(job, attempt, 8, NOW)
        assert kept.job.spec["elastic"]["global_batch"] == 8
        assert kept.job.spec["elastic"]["shards"] == 4
        assert (kept.job.min_workers, kept.job.max_workers) == (1, 2), "no third worker is bought"
        assert kept.job.facts.sizes.in_words() == "1 or 2"
        assert kept.attempt is not None
        assert kept.attempt.short_since is None, "it has all the workers that it can use"
        short = owners_changes.keep_batch(
            job, replace(attempt, world_size=1, short_since=None), 8, NOW
        ).attempt
        assert short is not None
        assert short.short_since == NOW
        for unchanged, samples in (
            (kept.job, 4),
            (row(), 8),
            (job, 3),
            (replace(row(backend="deepspeed", workers={"min": 3, "max": 3})), 8),
        ):
            assert owners_changes.keep_batch(unchanged, attempt, samples, NOW) == lifecycle.Decision(
                unchanged, attempt
            )

    @pytest.mark.parametrize(
        ("size", "most", "before", "after"),
        [
            (1, 3, None, NOW),
            (2, 3, None, NOW),
            (2, 3, 5.0, 5.0),
            (2, 2, 5.0, None),
            (3, 2, 5.0, None),
            (0, 2, None, None),
        ],
    )
    def test_a_driver_with_fewer_workers_than_it_may_have_waits_from_now(
        self, size: int, most: int, before: float | None, after: float | None
    ) -> None:
        job: JobRow = job_row(max_workers=most)
        attempt = AttemptRow(
            id="att",
            job_id=job.id,
            attempt=1,
            created_at=0.0,
            started_at=1.0,
            world_size=size,
            short_since=before,
        )
        taken = owners_changes.sizes_taken(job, attempt, 7.0, NOW).attempt
        assert taken is not None
        assert (taken.resized_at, taken.short_since) == (7.0, after)

    def test_what_has_ended_or_is_ending_is_not_changed(self) -> None:
        owners_changes.check_not_ended(job_row(), "paused")
        with pytest.raises(owners_changes.ChangeRefused, match="it cannot be paused"):
            owners_changes.check_not_ended(job_row(state=JobState.FAILED), "paused")
        with pytest.raises(owners_changes.ChangeRefused, match="is being cancelled; it cannot be resized"):
            owners_changes.check_not_ended(job_row(cancel_requested_at=1.0), "resized")
        owners_changes.check_is_owners_pause(job_row(state=JobState.PAUSED, pause_requested_at=1.0))
        owners_changes.check_is_owners_pause(job_row())
        with pytest.raises(owners_changes.ChangeRefused, match="its owner has not paused it: the budget"):
            owners_changes.check_is_owners_pause(job_row(state=JobState.PAUSED, message="the budget"))


class TestArrays:
    @given(st.integers(1, 5), st.integers(0, 8), st.integers(0, 8))
    def test_no_more_than_may_run_at_once_are_released(self, most: int, active: int, held: int) -> None:
        ids = [str(number) for number in range(held)]
        found = released([ArrayQueue(array_id="a", most_at_once=most, active=active, held=ids)])
        assert found == ids[: len(found)]
        assert len(found) == min(held, max(0, most - active))

    def test_deleted_jobs_are_counted(self) -> None:
        assert counted({"failed": 2}, 5) == {"failed": 2, "deleted": 3}
        assert counted({"failed": 2}, 2) == {"failed": 2}


HOUR = 3600.0


def schedule(next_at: float = HOUR, **rules: str) -> ScheduleRow:
    spec = JobSpec.from_mapping({"command": "x", "schedule": {"cron": "0 * * * *", **rules}})
    return ScheduleRow(
        id="sched_1", name="x", project="default", created_at=0.0, spec=spec.to_mapping(), next_at=next_at
    )


class TestSchedules:
    def test_a_time_that_has_come_is_submitted_once(self) -> None:
        decision = decide(schedule(), HOUR + 1.0, is_active=False)
        assert (decision.left_out, decision.submit_at, decision.next_at) == ((), HOUR, 2 * HOUR)

    @pytest.mark.parametrize("late_s", [schedules.MISSED_AFTER_S, schedules.MISSED_AFTER_S + 1.0])
    @pytest.mark.parametrize("missed", ["latest", "skip"])
    def test_one_that_was_missed(self, late_s: float, missed: str) -> None:
        decision = decide(schedule(missed=missed), HOUR + late_s, is_active=False)
        is_left_out = missed == "skip" and late_s > schedules.MISSED_AFTER_S
        assert decision.submit_at == (None if is_left_out else HOUR)
        assert [row.outcome for row in decision.left_out] == ([Outcome.MISSED] if is_left_out else [])

    def test_many_that_were_missed_are_one_row(self) -> None:
        decision = decide(schedule(), 1000 * HOUR + 60.0, is_active=False)
        (row,) = decision.left_out
        assert (row.at, row.outcome, decision.submit_at) == (HOUR, Outcome.MISSED, 1000 * HOUR)
        assert row.message == "no controller ran at this time, nor at others before 1970-02-11 16:00:00 UTC"
        assert decision.next_at == 1001 * HOUR

    @pytest.mark.parametrize(
        ("overlap", "submits", "waits"),
        [("skip", False, False), ("wait", True, True), ("allow", True, False)],
    )
    def test_one_that_overlaps(self, overlap: str, submits: bool, waits: bool) -> None:
        decision = decide(schedule(overlap=overlap), HOUR, is_active=True)
        assert (decision.submit_at is not None, decision.waits) == (submits, waits)
        assert [row.outcome for row in decision.left_out] == ([] if submits else [Outcome.OVERLAPPED])
        assert not decide(schedule(overlap=overlap), HOUR, is_active=False).waits

    def test_a_schedule_whose_time_does_not_come_again_is_looked_at_again_later(self) -> None:
        rules = {**schedule().spec["schedule"], "cron": "0 0 30 2 *"}
        last = decide(replace(schedule(), spec={"schedule": rules}), HOUR + 5.0, is_active=False)
        assert (last.submit_at, last.next_at) == (HOUR, HOUR + 5.0 + schedules.RETRY_S)

    def test_times_that_cannot_be_found_are_looked_for_again(self) -> None:
        decision = schedules.refuse(schedule(), "no such zone", HOUR)
        assert (decision.submit_at, decision.next_at) == (None, HOUR + schedules.RETRY_S)
        assert [(row.at, row.outcome, row.message) for row in decision.left_out] == [
            (HOUR, Outcome.REFUSED, "no such zone")
        ]

    @given(
        st.integers(0, 10**6), st.sampled_from(["latest", "skip"]), st.sampled_from(["skip", "wait", "allow"])
    )
    def test_what_is_decided_lies_before_what_is_next(self, late_s: int, missed: str, overlap: str) -> None:
        now = HOUR + late_s
        for is_active in (False, True):
            decision = decide(schedule(missed=missed, overlap=overlap), now, is_active=is_active)
            decided = [row.at for row in decision.left_out] + (
                [] if decision.submit_at is None else [decision.submit_at]
            )
            assert decided
            assert len(set(decided)) == len(decided), "no time is decided twice"
            assert max(decided) <= now < decision.next_at
            assert decision.next_at - max(decided) == HOUR


def test_each_request_for_stacks_is_later_than_the_one_before() -> None:
    job = job_row(state=JobState.RUNNING, stacks_requested_at=NOW + 60.0)
    later = owners_changes.request_stacks(job, NOW).job.stacks_requested_at
    assert later is not None
    assert later > NOW + 60.0, "the clock was set back"
    assert owners_changes.request_stacks(job_row(state=JobState.RUNNING), NOW).job.stacks_requested_at == NOW
    with pytest.raises(owners_changes.ChangeRefused, match="no workers that train now"):
        owners_changes.request_stacks(job_row(state=JobState.QUEUED), NOW)

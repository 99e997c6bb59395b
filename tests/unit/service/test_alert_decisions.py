"""Which notifications follow from facts and looks, and what follows from tries: pure functions."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.alert_kinds import AlertKind, Channel, DeliveryState
from remora.states import JobState, NodeState
from service.queue import deliveries
from service.queue.alert_watches import (
    LAST_S,
    LOOK_S,
    MOST_DAYS,
    SLOW_LOOKS,
    Look,
    Spent,
    Watch,
    budget_watch,
    look_at_budgets,
    look_at_pace,
    look_at_wait,
    unseen_ends,
    watch_from,
)
from service.queue.alerts import (
    LONGEST_DATA,
    LONGEST_MESSAGE,
    AlertRow,
    Fact,
    concerns,
    fact_of_node,
    facts_of,
    key_of,
    message_of,
)
from service.queue.deliveries import Try, TryResult, after_tries, pause_s
from service.queue.rows import JobRow, NewEvent, NodeRow
from tests.service_fakes import job_row


def alert_of(*kinds: AlertKind, **fields: Any) -> AlertRow:
    values: dict[str, Any] = {
        "id": "alert_1",
        "project": "vision",
        "owner": "user:ann",
        "is_own_only": False,
        "kinds": [kind.value for kind in kinds],
        "channel": Channel.WEBHOOK,
        "address": "https://example.com",
        "key_id": "key",
        "ciphertext": b"x",
        "wait_s": 600.0,
        "budget_percents": [50, 80, 100],
        "slow_factor": 2.0,
        "created_at": 0.0,
    }
    return AlertRow(**{**values, **fields})


def job_of(**fields: Any) -> JobRow:
    return job_row(**{"project": "vision", "submitted_by": "user:ann", **fields})


def event_of(kind: str, message: str = "It happened.", **data: Any) -> NewEvent:
    return NewEvent(at=1000.0, kind=kind, message=message, attempt=2, data=data)


def fact_of(kind: str, message: str = "It happened.", **data: Any) -> Fact:
    (fact,) = facts_of(job_of(), 7, [event_of(kind, message, **data)])
    return fact


class TestFacts:
    @pytest.mark.parametrize(
        ("kind", "data", "reported"),
        [
            ("job.succeeded", {}, AlertKind.JOB_ENDED),
            ("job.failed", {}, AlertKind.JOB_ENDED),
            ("job.cancelled", {}, AlertKind.JOB_ENDED),
            ("worker.straggles", {"rank": 3}, AlertKind.STRAGGLER),
            ("worker_group.hung", {"quiet_s": 61.0}, AlertKind.HANG),
            ("job.budget", {"step": "shrink"}, AlertKind.BUDGET),
            ("worker.miscomputed", {}, AlertKind.NODE_SICK),
            ("worker.gpu_failed", {}, AlertKind.NODE_SICK),
            ("worker.misread", {}, AlertKind.NODE_SICK),
            ("checkpoint.refused", {}, AlertKind.CHECKPOINT_MISSED),
            ("checkpoint.abandoned", {}, AlertKind.CHECKPOINT_MISSED),
            ("checkpoint.incomplete", {}, AlertKind.CHECKPOINT_MISSED),
            ("checkpoint.ignored", {}, AlertKind.CHECKPOINT_MISSED),
        ],
    )
    def test_are_events_in_their_own_words(
        self, kind: str, data: dict[str, Any], reported: AlertKind
    ) -> None:
        (fact,) = facts_of(job_of(), 7, [event_of("job.waiting"), event_of(kind, "Rank 3\n is it.", **data)])
        assert (fact.kind, fact.event, fact.event_seq, fact.attempt) == (reported, kind, 8, 2)
        message = message_of(alert_of(reported), fact)
        assert message is not None
        assert message.message == f"job digits ({fact.about}): Rank 3 is it."
        assert (message.kind, message.at) == (reported, 1000.0)
        assert message.data["job_id"] == fact.about
        assert message.data["project"] == "vision"
        others = [one for one in AlertKind if one not in (reported, AlertKind.JOB_FAILED)]
        assert message_of(alert_of(*others), fact) is None

    @pytest.mark.parametrize(
        ("kind", "data"),
        [
            ("attempt.ended", {"end_reason": "completed"}),
            ("attempt.ended", {}),
            ("job.budget", {"step": None}),
            ("checkpoint.committed", {}),
            ("worker.stack", {}),
        ],
    )
    def test_are_not_all_events(self, kind: str, data: dict[str, Any]) -> None:
        assert facts_of(job_of(), 1, [event_of(kind, **data)]) == []

    def test_of_failures_alone(self) -> None:
        failures = alert_of(AlertKind.JOB_FAILED)
        assert message_of(failures, fact_of("job.failed")) is not None
        assert message_of(failures, fact_of("job.succeeded")) is None
        both = alert_of(AlertKind.JOB_FAILED, AlertKind.JOB_ENDED)
        assert message_of(both, fact_of("job.succeeded")) is not None

    def test_are_those_of_the_alerts_project_and_jobs(self) -> None:
        fact = fact_of("job.failed")
        alert = alert_of(AlertKind.JOB_ENDED)
        assert concerns(alert, fact)
        assert not concerns(replace(alert, project="other"), fact)
        assert concerns(replace(alert, project="*"), fact)
        assert concerns(replace(alert, is_own_only=True), fact)
        assert not concerns(replace(alert, is_own_only=True, owner="user:eve"), fact)
        assert not concerns(replace(alert, is_own_only=True), replace(fact, submitted_by=None))
        assert not concerns(replace(alert, ended_at=1.0), fact)

    def test_of_a_node_are_its_first_sickness(self) -> None:
        node = NodeRow(id="node_1", pool="gpu", created_at=1.0, state=NodeState.READY)
        sick = replace(node, sick_since=5.0, event_seq=4, message="this machine is sick")
        said = NewEvent(at=5.0, kind="node.draining", message="this machine is sick: rank 3")
        fact = fact_of_node(node, sick, [said])
        assert fact is not None
        message = message_of(alert_of(AlertKind.NODE_SICK, project="*"), fact)
        assert message is not None
        assert message.message == "node node_1: this machine is sick: rank 3"
        assert message.data["node_id"] == "node_1"
        assert fact_of_node(sick, replace(sick, message="still"), [said]) is None
        assert fact_of_node(node, node, [said]) is None
        assert message_of(alert_of(AlertKind.NODE_SICK), fact) is None, "a node is of no project"

    def test_have_one_key_where_one_notification_is_enough(self) -> None:
        slow = fact_of("worker.straggles", rank=3)
        assert key_of(slow) == key_of(replace(slow, event_seq=9, at=2000.0))
        assert key_of(slow) != key_of(replace(slow, data={"rank": 4}))
        assert key_of(slow) != key_of(replace(slow, attempt=3))
        missed = fact_of("checkpoint.refused", step=7)
        assert key_of(missed) == key_of(replace(missed, event_seq=9))
        assert key_of(missed) != key_of(replace(missed, data={"step": 8}))
        assert key_of(fact_of("checkpoint.ignored")) != key_of(
            replace(fact_of("checkpoint.ignored"), event_seq=9)
        )
        step = fact_of("job.budget", step="shrink")
        assert key_of(step) == key_of(replace(step, about="job_2", at=2000.0))
        assert key_of(step) != key_of(replace(step, at=90_000.0)), "the next day"
        assert key_of(step) != key_of(replace(step, data={"step": "pause"}))
        ended = fact_of("job.failed")
        assert key_of(ended) != key_of(replace(ended, about="job_2"))

    @given(st.dictionaries(st.text(max_size=20), st.text(max_size=6000), max_size=20), st.text(max_size=9000))
    def test_are_bounded_whatever_a_driver_sends(self, data: dict[str, str], text: str) -> None:
        (fact,) = facts_of(
            job_of(), 1, [event_of("worker.straggles", text, **{f"_{n}": v for n, v in data.items()})]
        )
        message = message_of(alert_of(AlertKind.STRAGGLER), fact)
        assert message is not None
        assert len(message.message) <= LONGEST_MESSAGE
        assert "\n" not in message.message
        assert len(str(message.data)) < 30_000
        assert len(message.key) <= 200


class TestWaits:
    def watch(self, alert: AlertRow, at: float = 1000.0, attempt: int | None = None) -> Watch:
        fact = Fact(
            kind=AlertKind.JOB_WAITS,
            at=at,
            project="vision",
            submitted_by="user:ann",
            about="job_1",
            event="job.queued",
            event_seq=3,
            attempt=attempt,
            message="",
        )
        found = watch_from(alert, fact)
        assert found is not None
        return found

    def test_are_looked_at_when_they_are_too_long_and_reported_once(self) -> None:
        alert = alert_of(AlertKind.JOB_WAITS)
        watch = self.watch(alert)
        assert watch.due_at == 1600.0
        job = job_of(message="waits for nodes", waits_from=1000.0)
        found = look_at_wait(alert, watch, job, 1600.0)
        (message,) = found.messages
        assert found.watch is None
        assert message.message == f"job digits ({job.id}) has waited for 10 min: waits for nodes"

    @pytest.mark.parametrize(
        "fields", [{"state": JobState.RUNNING}, {"state": JobState.PAUSED}, {"attempt": 1}]
    )
    def test_that_are_over_are_not_reported(self, fields: dict[str, Any]) -> None:
        alert = alert_of(AlertKind.JOB_WAITS)
        assert look_at_wait(alert, self.watch(alert), job_of(**fields), 9e9) == Look(None)

    def test_of_jobs_that_are_gone_are_over(self) -> None:
        alert = alert_of(AlertKind.JOB_WAITS)
        assert look_at_wait(alert, self.watch(alert), None, 9e9) == Look(None)

    @given(st.floats(0.0, 5000.0))
    def test_for_other_jobs_do_not_count_and_no_look_comes_late(self, met_after_s: float) -> None:
        """However long it waits for others, its own wait is reported as soon as it is too long."""
        alert = alert_of(AlertKind.JOB_WAITS)
        watch: Watch | None = self.watch(alert)
        met_at = 1000.0 + met_after_s
        reported: list[float] = []
        while watch is not None:
            now = watch.due_at
            job = job_of(message="waits", waits_from=met_at if now >= met_at else inf)
            found = look_at_wait(alert, watch, job, now)
            reported += [message.at for message in found.messages]
            assert found.watch is None or found.watch.due_at > now
            watch = found.watch
        assert reported == [pytest.approx(met_at + 600.0)]

    def test_after_an_attempt_count_from_its_end(self) -> None:
        alert = alert_of(AlertKind.JOB_WAITS)
        watch = self.watch(alert, at=5000.0, attempt=1)
        job = job_of(attempt=1, waits_from=1000.0)
        assert look_at_wait(alert, watch, job, 5100.0).watch == replace(watch, due_at=5600.0)
        assert len(look_at_wait(alert, watch, job, 5600.0).messages) == 1


class TestPace:
    def run(self, paces: list[int], **changes: Any) -> list[tuple[int, str]]:
        """Minutes at which something is reported, and its key, of a job with these steps in each minute."""
        alert, step = alert_of(AlertKind.JOB_SLOW), 0
        watch: Watch | None = Watch(
            alert_id="alert_1", kind=AlertKind.JOB_SLOW, about="job_1", due_at=0.0, state={"seq": 5}
        )
        found: list[tuple[int, str]] = []
        for minute, pace in enumerate(paces):
            step += pace
            job = job_of(state=JobState.RUNNING, attempt=1, max_step=step, world_size=4, **changes)
            assert watch is not None
            look = look_at_pace(alert, watch, job, minute * LOOK_S)
            found += [(minute, message.key.partition(":")[2].partition(":")[2]) for message in look.messages]
            watch = look.watch
        return found

    def test_that_halves_is_reported_once_until_it_is_as_before(self) -> None:
        assert self.run([60] * 20 + [20] * 10) == [(20 + SLOW_LOOKS - 1, "5:1")]
        twice = self.run([60] * 20 + [20] * 10 + [60] * 5 + [20] * 5)
        assert [key for _, key in twice] == ["5:1", "5:2"]

    def test_that_is_usual_is_not_reported(self) -> None:
        assert self.run([60] * 100) == []
        assert self.run([60, 40] * 50) == []
        assert self.run([60] * 20 + [20] * (SLOW_LOOKS - 1) + [60] * 20) == []

    def test_is_not_known_at_first(self) -> None:
        assert self.run([60] * 5 + [10] * 5) == []

    def test_of_no_step_at_all_is_slow_too(self) -> None:
        assert [key for _, key in self.run([60] * 20 + [0] * 200)] == ["5:1"]

    def test_of_few_steps_is_measured_over_more_than_one_look(self) -> None:
        """A step of five minutes is usual where each takes that long."""
        assert self.run([0, 0, 0, 0, 1] * 40) == []

    def test_while_a_loss_is_made_up_for_is_not_looked_at(self) -> None:
        assert self.run([60] * 20 + [1] * 20, lost_since=1.0) == []

    def test_ends_with_the_worker_group(self) -> None:
        alert = alert_of(AlertKind.JOB_SLOW)
        watch = Watch(alert_id="a", kind=AlertKind.JOB_SLOW, about="j", due_at=0.0, state={"seq": 5})
        assert look_at_pace(alert, watch, job_of(state=JobState.QUEUED), 60.0) == Look(None)
        assert look_at_pace(alert, watch, None, 60.0) == Look(None)


class TestBudgets:
    @given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 150.0)), max_size=40))
    def test_report_each_part_once_in_each_period_and_the_furthest_first(
        self, days: list[tuple[int, float]]
    ) -> None:
        alert = alert_of(AlertKind.BUDGET)
        watch = budget_watch(alert)
        assert watch is not None
        reported: list[str] = []
        furthest: dict[int, float] = {}
        day = 0
        for later, usd in days:
            day += later
            furthest[day] = max(furthest.get(day, 0.0), usd)
            look = look_at_budgets(alert, watch, {"day": Spent(f"day {day}", usd, 100.0)}, 10.0)
            assert look.watch is not None
            watch = look.watch
            assert watch.due_at == 10.0 + LOOK_S
            reported += [message.key for message in look.messages]
        assert len(set(reported)) == len(reported)
        for one, usd in furthest.items():
            parts = [part for part in (50, 80, 100) if usd >= part]
            mine = [int(key.rpartition(":")[2]) for key in reported if key.startswith(f"budget:day {one}:")]
            assert mine == sorted(mine)
            assert mine[-1:] == parts[-1:]

    def test_what_was_spent_before_midnight_is_looked_at_after_it(self) -> None:
        day = 86_400.0
        watch = budget_watch(alert_of(AlertKind.BUDGET))
        assert watch is not None
        assert unseen_ends(watch, 9.5 * day) == [], "a new alert reports nothing of the days before it"
        watch = replace(watch, state={"at": 9.2 * day})
        assert unseen_ends(watch, 9.9 * day) == []
        assert unseen_ends(watch, 10.0 * day + 5.0) == [10.0 * day - LAST_S]
        assert unseen_ends(watch, 12.3 * day) == [number * day - LAST_S for number in (10, 11, 12)]
        assert len(unseen_ends(watch, 900.0 * day)) == MOST_DAYS

    def test_are_named(self) -> None:
        watch = budget_watch(alert_of(AlertKind.BUDGET, project="*"))
        assert watch is not None
        alert = alert_of(AlertKind.BUDGET, project="*")
        (message,) = look_at_budgets(
            alert, watch, {"month": Spent("month 2026-07", 81.5, 100.0)}, 1.0
        ).messages
        assert (
            message.message == "the cluster has spent 81.50 of 100.00 USD of the month 2026-07, 80 % or more"
        )
        assert budget_watch(alert_of(AlertKind.JOB_ENDED)) is None
        assert Spent("day", 1.0, 0.0).percent == 100.0


class TestTries:
    def test_that_fail_are_made_again_later_and_later(self) -> None:
        refused = [Try("ntf_1", TryResult.REFUSED, "no\nthanks")]
        found = after_tries(0, refused, 100.0)
        assert (found.failures, found.next_at, found.error) == (1, 105.0, "no thanks")
        assert found.settled[0].state is DeliveryState.PENDING
        assert [pause_s(number) for number in (1, 2, 3, 11, 10_000)] == [5.0, 10.0, 20.0, 3600.0, 3600.0]

    def test_that_are_taken_end_the_row_of_failures(self) -> None:
        found = after_tries(4, [Try("ntf_1", TryResult.TAKEN), Try("ntf_2", TryResult.REFUSED, "no")], 100.0)
        assert [one.state for one in found.settled] == [DeliveryState.DELIVERED, DeliveryState.PENDING]
        assert (found.failures, found.next_at) == (1, 105.0)
        assert after_tries(4, [Try("ntf_1", TryResult.TAKEN)], 100.0).next_at == 100.0
        assert after_tries(4, [Try("ntf_1", TryResult.TAKEN)], 100.0).error is None

    def test_by_a_receiver_that_is_gone_are_the_last(self) -> None:
        found = after_tries(0, [Try("ntf_1", TryResult.GONE, "410"), Try("ntf_2", TryResult.TAKEN)], 100.0)
        assert found.has_ended
        assert [one.id for one in found.settled] == ["ntf_1"]

    def test_say_no_more_than_fits(self) -> None:
        error = after_tries(0, [Try("ntf_1", TryResult.REFUSED, "x" * 5000)], 1.0).error
        assert error is not None
        assert len(error) == deliveries.LONGEST_ERROR


@pytest.mark.parametrize(("more", "is_kept"), [(0, True), (1, False)])
def test_the_fields_of_an_event_are_left_out_where_they_are_longer_than_what_is_sent(
    more: int, is_kept: bool
) -> None:
    data = {"name": "x" * (LONGEST_DATA - len("name") + more), "list": ["no plain value"]}
    event = NewEvent(at=1.0, kind="job.failed", message="it failed", data=data)
    (fact,) = facts_of(job_row(), 1, [event])
    assert ("name" in fact.data) is is_kept
    assert "list" not in fact.data

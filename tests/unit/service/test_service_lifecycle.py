"""The life cycle allows exactly what its tables say, and every change makes an event."""

from __future__ import annotations

import string
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.ray.heartbeats import SILENT_S, UNANSWERED_S, AgentStatus, Heartbeat
from cluster.scheduling.health import DRAIN_S
from remora.states import AttemptState, EndReason, JobState, NodeState
from service.queue import lifecycle, retry
from service.queue.driver_records import ProgressRecord
from service.queue.lifecycle import (
    ATTEMPT_EDGES,
    JOB_EDGES,
    NODE_EDGES,
    Decision,
    NodeObservation,
    TransitionError,
)
from service.queue.rows import AttemptRow, JobRow, NewEvent, NodeRow
from tests.service_fakes import job_row

NOW = 1000.0


def started(**fields: Any) -> tuple[JobRow, AttemptRow]:
    decision = lifecycle.start_attempt(job_row(**fields), "att_1", NOW)
    assert decision.attempt is not None
    return decision.job, decision.attempt


def running(**fields: Any) -> tuple[JobRow, AttemptRow]:
    job, attempt = started(**fields)
    decision = lifecycle.observe(
        job, attempt, ProgressRecord(state=AttemptState.RUNNING, world_size=2), NOW + 1
    )
    assert decision.attempt is not None
    return decision.job, decision.attempt


def lost_and_started_again(at_step: int, lost_at: float) -> tuple[JobRow, AttemptRow]:
    """A job whose first attempt was lost after a step, in its second one."""
    stepped = lifecycle.observe_step(*running(), at_step, lost_at)
    assert stepped.attempt is not None
    ended = lifecycle.end_attempt(stepped.job, stepped.attempt, EndReason.NODE_LOST, "lost", lost_at + 1)
    again = lifecycle.start_attempt(ended.job, "att_2", lost_at + 2)
    assert again.attempt is not None
    return again.job, again.attempt


READY = NodeRow(id="n", pool="p", created_at=NOW, state=NodeState.READY)


def hear(
    node: NodeRow, *, heartbeat_at: float, unchanged_s: float, is_alive: bool = True
) -> lifecycle.NodeDecision:
    """What becomes of a node whose agent's newest sign of life is this old."""
    agent = AgentStatus(heartbeat=Heartbeat(at=heartbeat_at), unchanged_s=unchanged_s)
    return lifecycle.observe_node(
        node, NodeObservation(is_provided=True, is_alive=is_alive, agent=agent), NOW
    )


def _reachable(edges: Mapping[Any, str], first: Any) -> set[Any]:
    seen, waiting = {first}, deque([first])
    while waiting:
        here = waiting.popleft()
        for old, new in edges:
            if old == here and new not in seen:
                seen.add(new)
                waiting.append(new)
    return seen


class TestTables:
    def test_every_state_can_be_reached(self) -> None:
        assert _reachable(JOB_EDGES, JobState.QUEUED) == set(JobState)
        assert _reachable(ATTEMPT_EDGES, AttemptState.STARTING) == set(AttemptState)
        assert _reachable(NODE_EDGES, NodeState.REQUESTED) == set(NodeState)

    def test_nothing_leads_out_of_an_end(self) -> None:
        assert not [old for old, _ in JOB_EDGES if old.is_terminal]
        assert not [old for old, _ in ATTEMPT_EDGES if old is AttemptState.ENDED]
        assert not [old for old, _ in NODE_EDGES if old in (NodeState.GONE, NodeState.FAILED)]

    def test_from_everywhere_an_end_can_be_reached(self) -> None:
        for state in _reachable(JOB_EDGES, JobState.QUEUED):
            assert any(end.is_terminal for end in _reachable(JOB_EDGES, state))
        for node in NodeState:
            assert _reachable(NODE_EDGES, node) & {NodeState.GONE, NodeState.FAILED}


class TestObservations:
    def test_the_first_worker_group_makes_the_job_run(self) -> None:
        job, attempt = running()
        assert (job.state, job.started_at, attempt.state) == (JobState.RUNNING, NOW + 1, AttemptState.RUNNING)

    @pytest.mark.parametrize(
        ("fabric", "on_demand", "said"),
        [
            (None, False, ""),
            ("d1", False, " in the fabric domain d1"),
            (None, True, ", all of them on demand, as its deadline is near"),
        ],
    )
    def test_an_attempt_is_bound_to_where_it_starts_and_says_so(
        self, fabric: str | None, on_demand: bool, said: str
    ) -> None:
        decision = lifecycle.start_attempt(job_row(), "att_1", NOW, fabric, on_demand=on_demand)
        assert decision.attempt is not None
        assert (decision.attempt.fabric, decision.attempt.on_demand) == (fabric, on_demand)
        assert decision.events[0].message == f"nodes for its smallest worker group are free{said}"

    def test_each_change_of_an_attempts_state_is_one_event_and_none_is_none(self) -> None:
        job, attempt = started()
        kinds = []
        for state in (None, "starting", "running", "running", "starting", "running", "draining", "running"):
            said = ProgressRecord.model_validate({"state": state, "world_size": 2})
            decision = lifecycle.observe(job, attempt, said, NOW)
            assert decision.attempt is not None
            job, attempt = decision.job, decision.attempt
            kinds.append([event.kind for event in decision.events])
        assert kinds == [
            [],
            [],
            ["attempt.started", "job.running"],
            [],
            ["attempt.regrouping"],
            ["attempt.started"],
            ["attempt.draining"],
            [],
        ]

    def test_a_job_shows_what_its_driver_said_last_of_each_thing(self) -> None:
        job, attempt = running()
        for said, shown in (
            ({"total_steps": 500}, (500, None, None, 2)),
            ({"step": 7}, (500, 7, None, 2)),
            ({"resumed_from_step": 5}, (500, 7, 5, 2)),
            ({"total_steps": 600, "world_size": 3}, (600, 7, 5, 3)),
            ({}, (600, 7, 5, 3)),
        ):
            decision = lifecycle.observe(job, attempt, ProgressRecord.model_validate(said), NOW)
            assert decision.attempt is not None
            job, attempt = decision.job, decision.attempt
            assert (job.total_steps, job.step, attempt.resumed_from_step, job.world_size) == shown
            assert attempt.world_size == job.world_size

    def test_a_driver_that_drains_does_not_run_again(self) -> None:
        job, attempt = running()
        draining = lifecycle.request_stop(job, attempt, EndReason.CANCELLED, NOW)
        assert draining.attempt is not None
        again = lifecycle.observe(
            job, draining.attempt, ProgressRecord(state=AttemptState.RUNNING, world_size=3), NOW
        )
        assert again.attempt is not None
        assert again.attempt.state is AttemptState.DRAINING

    def test_a_regrouping_attempt_keeps_its_job_running(self) -> None:
        job, attempt = running()
        decision = lifecycle.observe(
            job, attempt, ProgressRecord(state=AttemptState.STARTING, world_size=0), NOW
        )
        assert decision.attempt is not None
        assert (decision.job.state, decision.attempt.state) == (JobState.RUNNING, AttemptState.STARTING)
        assert decision.job.reason == "regrouping"

    def test_a_job_shows_how_far_the_build_of_its_environment_is(self) -> None:
        for job, attempt in (started(), running()):
            state = attempt.state
            starting = lifecycle.observe(job, attempt, ProgressRecord(state=AttemptState.STARTING), NOW)
            assert starting.attempt is not None
            said = ProgressRecord(preparing="31 packages")
            shown = lifecycle.observe(starting.job, starting.attempt, said, NOW)
            assert (shown.job.reason, shown.job.message) == ("preparing", "31 packages")
            assert shown.attempt is not None
            later = lifecycle.observe(shown.job, shown.attempt, ProgressRecord(world_size=2), NOW)
            assert later.job.reason == "preparing", state
            ready = ProgressRecord(state=AttemptState.RUNNING, environment="ab12")
            begun = lifecycle.observe(shown.job, shown.attempt, ready, NOW)
            assert begun.attempt is not None
            assert (begun.job.state, begun.job.reason) == (JobState.RUNNING, None)
            assert begun.attempt.environment == "ab12"

    def test_an_attempt_knows_where_its_workers_are_until_it_ends(self) -> None:
        job, attempt = running(max_workers=3)
        for workers in ({"10.0.0.1": 2, "10.0.0.2": 1}, {"10.0.0.1": 2}, {}):
            size = ProgressRecord(world_size=sum(workers.values()), workers=workers)
            for said in (size, ProgressRecord(step=7)):
                decision = lifecycle.observe(job, attempt, said, NOW)
                assert decision.attempt is not None
                job, attempt = decision.job, decision.attempt
                assert attempt.workers == workers, "what is not mentioned stays as it was"
        last = replace(attempt, workers={"10.0.0.3": 1}, short_since=NOW)
        ended = lifecycle.end_attempt(job, last, EndReason.NODE_LOST, "lost", NOW).attempt
        assert ended is not None
        assert (ended.workers, ended.short_since) == ({}, None)

    def test_an_attempt_is_short_since_it_had_fewer_workers_than_it_can_use(self) -> None:
        job, attempt = started(max_workers=3)
        assert attempt.short_since is None
        since = []
        for at, size in enumerate((2, None, 1, 3, 3, 0, 2, 3)):
            decision = lifecycle.observe(job, attempt, ProgressRecord(world_size=size), NOW + at)
            assert decision.attempt is not None
            job, attempt = decision.job, decision.attempt
            since.append(None if attempt.short_since is None else attempt.short_since - NOW)
        assert since == [0.0, 0.0, 0.0, None, None, 5.0, 5.0, None]

    @pytest.mark.parametrize("reason", EndReason)
    def test_an_end_is_written_into_the_attempt_and_what_counts_of_it_into_the_job(
        self, reason: EndReason
    ) -> None:
        job, attempt = running(trained_s=5.0, losses=2, user_failures=1, loss_streak=1, fruitless=1)
        decision = lifecycle.end_attempt(job, attempt, reason, "it is over", NOW + 9, 3)
        ended, after = decision.attempt, decision.job
        assert ended is not None
        assert (ended.state, ended.end_reason, ended.exit_code) == (AttemptState.ENDED, reason, 3)
        assert (ended.message, ended.ended_at) == ("it is over", NOW + 9)
        assert (ended.world_size, ended.workers, ended.short_since) == (0, {}, None)
        assert (after.world_size, after.trained_s) == (0, 13.0), "it has trained for 8 s"
        follows = retry.after(job, ended, reason, "it is over", NOW + 9, by_driver=True)
        if isinstance(follows, retry.Finish):
            assert (after.state, after.reason, after.ended_at) == (follows.state, follows.reason, NOW + 9)
        else:
            assert (after.state, after.reason) == (JobState.QUEUED, "waiting_for_retry")
            assert (after.not_before, after.message) == (follows.not_before, follows.message)
            assert (after.user_failures, after.losses) == (follows.user_failures, follows.losses)
            assert (after.loss_streak, after.fruitless) == (follows.loss_streak, follows.fruitless)

    def test_what_is_done_for_an_attempt_is_recorded_with_its_time_and_in_its_order(self) -> None:
        job, attempt = running()
        assert lifecycle.launched(attempt, NOW + 2).launched_at == NOW + 2
        with pytest.raises(TransitionError, match="what still runs"):
            lifecycle.listed(attempt, NOW + 3)
        ended = lifecycle.end_attempt(job, attempt, EndReason.COMPLETED, "done", NOW + 4).attempt
        assert ended is not None
        over = lifecycle.listed(lifecycle.released(ended, NOW + 5), NOW + 6)
        assert (over.ended_at, over.released_at, over.listed_at) == (NOW + 4, NOW + 5, NOW + 6)

    def test_totals_of_all_attempts_add_up(self) -> None:
        job, attempt = running(repeated_steps=10, lost_s=3.0)
        for repeated, lost in ((2, 1.0), (2, 1.0), (5, 4.0), (1, 0.0)):
            decision = lifecycle.observe(
                job, attempt, ProgressRecord(repeated_steps=repeated, lost_s=lost), NOW
            )
            assert decision.attempt is not None
            job, attempt = decision.job, decision.attempt
        assert (job.repeated_steps, job.lost_s) == (15, 7.0)

    def test_time_between_attempts_is_lost_until_the_next_new_step(self) -> None:
        job, attempt = running()
        step = lifecycle.observe_step(job, attempt, 10, NOW + 2)
        assert step.attempt is not None
        ended = lifecycle.end_attempt(step.job, step.attempt, EndReason.NODE_LOST, "lost", NOW + 4)
        again = lifecycle.start_attempt(ended.job, "att_2", NOW + 5)
        assert again.attempt is not None
        repeated = lifecycle.observe_step(again.job, again.attempt, 9, NOW + 7)
        assert repeated.job.lost_s == 0.0
        assert repeated.attempt is not None
        new = lifecycle.observe_step(repeated.job, repeated.attempt, 11, NOW + 9)
        assert (new.job.lost_s, new.job.lost_since) == (7.0, None)

    def test_what_no_new_step_follows_is_lost_until_the_same_step_is_done_again(self) -> None:
        job, attempt = lost_and_started_again(at_step=100, lost_at=NOW + 2)
        reported = lifecycle.observe(job, attempt, ProgressRecord(step=100), NOW + 5).job
        assert reported.step_at == NOW + 2, (
            "the driver knows the step of the attempt before it, and has not done it"
        )
        for step in range(84, 101):
            decision = lifecycle.observe_step(reported, attempt, step, NOW + step)
            reported = decision.job
        assert reported.lost_s == 0.0
        done = lifecycle.end_attempt(
            reported, attempt, EndReason.COMPLETED, "done", NOW + 900, 0, open_lost_s=50.0
        )
        assert done.attempt is not None
        assert (done.job.lost_s, done.job.lost_since) == (98.0, None), "what lies inside is not counted twice"
        assert done.attempt.lost_s == 50.0

    @pytest.mark.parametrize("ends", ["attempt", "waiting"])
    def test_what_is_not_won_back_is_lost_until_the_end(self, ends: str) -> None:
        job, attempt = lost_and_started_again(at_step=100, lost_at=NOW + 2)
        if ends == "attempt":
            done = lifecycle.end_attempt(job, attempt, EndReason.CANCELLED, "cancelled", NOW + 12).job
        else:
            again = lifecycle.end_attempt(job, attempt, EndReason.NODE_LOST, "lost", NOW + 7).job
            done = lifecycle.request_cancel(again, NOW + 12).job
        assert (done.state, done.lost_s, done.lost_since) == (JobState.CANCELLED, 10.0, None)

    def test_a_second_loss_before_a_new_step_does_not_begin_the_lost_time_again(self) -> None:
        """Even where the second attempt had won back what the first one lost, which gives a later time of its step."""
        job, attempt = lost_and_started_again(at_step=10, lost_at=NOW + 2)
        won_back = lifecycle.observe_step(job, attempt, 10, NOW + 20)
        assert won_back.attempt is not None
        assert won_back.job.step_at == NOW + 20
        lost = lifecycle.end_attempt(won_back.job, won_back.attempt, EndReason.NODE_LOST, "lost", NOW + 21)
        assert lost.job.lost_since == NOW + 2
        third = lifecycle.start_attempt(lost.job, "att_3", NOW + 22)
        assert third.attempt is not None
        new = lifecycle.observe_step(third.job, third.attempt, 11, NOW + 30).job
        assert (new.lost_s, new.lost_since) == (28.0, None)

    def test_a_job_that_is_cancelled_again_has_one_event(self) -> None:
        job, attempt = running()
        asked = lifecycle.request_cancel(job, NOW + 2)
        assert [event.kind for event in asked.events] == ["job.cancel_requested"]
        assert lifecycle.request_cancel(asked.job, NOW + 3) == Decision(asked.job, None)
        stopped = lifecycle.request_stop(asked.job, attempt, EndReason.CANCELLED, NOW + 4)
        assert stopped.attempt is not None
        again = lifecycle.request_stop(stopped.job, stopped.attempt, EndReason.RUN_TIME_EXCEEDED, NOW + 5)
        assert again == Decision(stopped.job, stopped.attempt), "the first reason and its time stay"

    def test_a_loss_inside_the_last_attempt_is_counted_at_its_end(self) -> None:
        job, attempt = running(lost_s=1.0)
        done = lifecycle.end_attempt(job, attempt, EndReason.COMPLETED, "", NOW + 9, 0, open_lost_s=3.5)
        assert done.job.lost_s == 4.5

    def test_the_time_of_an_attempt_that_another_one_follows_is_counted_once(self) -> None:
        job, attempt = running()
        stepped = lifecycle.observe_step(job, attempt, 10, NOW + 2)
        assert stepped.attempt is not None
        ended = lifecycle.end_attempt(
            stepped.job, stepped.attempt, EndReason.NODE_LOST, "", NOW + 9, open_lost_s=7.0
        )
        assert (ended.job.lost_s, ended.job.lost_since) == (0.0, NOW + 2)

    def test_the_cause_of_a_stopped_attempt_is_the_stop(self) -> None:
        job, attempt = running(run_time_s=5.0)
        asked = lifecycle.request_stop(job, attempt, EndReason.RUN_TIME_EXCEEDED, NOW)
        assert asked.attempt is not None
        ended = lifecycle.end_attempt(asked.job, asked.attempt, EndReason.SIGNAL, "killed", NOW + 6, -15)
        assert ended.attempt is not None
        assert ended.attempt.end_reason is EndReason.RUN_TIME_EXCEEDED
        assert ended.job.state is JobState.FAILED

    def test_one_that_completed_while_it_was_asked_to_stop_has_completed(self) -> None:
        job, attempt = running()
        asked = lifecycle.request_stop(job, attempt, EndReason.CANCELLED, NOW)
        assert asked.attempt is not None
        ended = lifecycle.end_attempt(asked.job, asked.attempt, EndReason.COMPLETED, "done", NOW, 0)
        assert ended.job.state is JobState.SUCCEEDED

    def test_what_no_table_allows_is_refused(self) -> None:
        job, attempt = running()
        with pytest.raises(TransitionError):
            lifecycle.start_attempt(job, "att_2", NOW)
        ended = lifecycle.end_attempt(job, attempt, EndReason.COMPLETED, "done", NOW, 0)
        assert ended.attempt is not None
        with pytest.raises(TransitionError):
            lifecycle.end_attempt(ended.job, ended.attempt, EndReason.COMPLETED, "done", NOW, 0)
        with pytest.raises(TransitionError):
            lifecycle.released(attempt, NOW)


class TestNodes:
    def test_one_observation_can_carry_a_node_all_the_way(self) -> None:
        node = NodeRow(id="node_1", pool="local", created_at=NOW)
        seen = NodeObservation(is_provided=True, is_alive=True, address="127.0.0.2", resources={"CPU": 1.0})
        decision = lifecycle.observe_node(node, seen, NOW)
        assert decision.node.state is NodeState.READY
        assert [event.kind for event in decision.events] == ["node.launched", "node.joined", "node.ready"]

    def test_the_same_observation_again_changes_nothing(self) -> None:
        seen = NodeObservation(is_provided=True, is_alive=True, resources={"CPU": 1.0})
        node = lifecycle.observe_node(NodeRow(id="n", pool="p", created_at=NOW), seen, NOW).node
        assert lifecycle.observe_node(node, seen, NOW + 1) == lifecycle.NodeDecision(node)

    def test_a_drain_says_until_when(self) -> None:
        ready = NodeRow(id="n", pool="p", created_at=NOW, state=NodeState.READY)
        seen = NodeObservation(is_provided=True, is_alive=True, is_draining=True, deadline_at=86_400.0)
        until = "what works on it has until 1970-01-02 00:00:00 UTC"
        others = lifecycle.observe_node(ready, seen, NOW).node
        assert others.message == f"it is being drained and takes no new work, and {until}"
        assert (
            lifecycle.drain_node(ready, "2 are allowed", 86_400.0, NOW).node.message
            == f"2 are allowed; {until}"
        )

    @pytest.mark.parametrize(
        ("own", "is_alive", "is_draining", "others", "until"),
        [
            (None, True, True, None, None),  # for as long as something runs on it
            (None, True, True, NOW + 9.0, NOW + 9.0),
            (None, True, False, NOW + 9.0, NOW + DRAIN_S),  # Ray has forgotten the drain
            (None, True, False, None, NOW + DRAIN_S),
            (None, False, False, None, None),
            (None, False, False, NOW + 9.0, NOW + 9.0),
            (NOW + 5.0, True, True, NOW + 9.0, NOW + 5.0),
            (NOW + 5.0, True, False, None, NOW + 5.0),
        ],
    )
    def test_a_node_that_drains_has_its_first_deadline_and_a_drain_that_ray_forgot_has_one(
        self, own: float | None, is_alive: bool, is_draining: bool, others: float | None, until: float | None
    ) -> None:
        drains = replace(READY, state=NodeState.DRAINING, deadline_at=own)
        seen = NodeObservation(
            is_provided=True, is_alive=is_alive, is_draining=is_draining, deadline_at=others
        )
        decision = lifecycle.observe_node(drains, seen, NOW)
        assert (decision.node.state, decision.node.deadline_at) == (NodeState.DRAINING, until)

    def test_why_a_node_leaves_is_recorded_where_its_agent_says_so(self) -> None:
        ready = NodeRow(id="n", pool="p", created_at=NOW, state=NodeState.READY)
        seen = NodeObservation(is_provided=True, is_alive=True, is_draining=True)
        reported = lifecycle.observe_node(ready, replace(seen, leaves="this machine is sick: XID 79"), NOW)
        assert reported.node.state is NodeState.DRAINING
        assert (
            reported.node.message == "this machine is sick: XID 79: it is being drained and takes no new work"
        )
        assert (
            lifecycle.observe_node(ready, seen, NOW).node.message
            == "it is being drained and takes no new work"
        )

    def test_a_drain_that_was_over_before_anybody_looked_is_recorded_with_its_reason(self) -> None:
        gone = NodeObservation(is_provided=True, leaves="Preempt by the cloud")
        reported = lifecycle.observe_node(READY, gone, NOW)
        assert [event.kind for event in reported.events] == ["node.draining"]
        assert reported.node.message == "Preempt by the cloud: it was drained and has left the Ray cluster"
        assert lifecycle.observe_node(reported.node, gone, NOW + 1) == lifecycle.NodeDecision(reported.node)
        silent = lifecycle.observe_node(READY, replace(gone, leaves=None), NOW)
        assert silent.node == READY, "what that means, the planner decides"

    def test_since_when_a_node_has_been_ready_and_sick_is_kept(self) -> None:
        requested = NodeRow(id="n", pool="p", created_at=NOW)
        sick = AgentStatus(heartbeat=Heartbeat(at=NOW, leaves="this machine is sick: XID 79", is_sick=True))
        seen = NodeObservation(is_provided=True, is_alive=True, is_draining=True, agent=sick)
        leaving = lifecycle.observe_node(requested, seen, NOW + 60).node
        assert leaving.state is NodeState.DRAINING
        assert (leaving.launched_at, leaving.sick_since) == (NOW + 60, NOW + 60)
        assert lifecycle.observe_node(leaving, seen, NOW + 90).node.sick_since == NOW + 60
        well = replace(seen, is_draining=False, agent=replace(sick, heartbeat=Heartbeat(at=NOW)))
        ready = lifecycle.observe_node(requested, well, NOW + 60).node
        assert (ready.ready_at, ready.sick_since) == (NOW + 60, None)
        assert lifecycle.observe_node(ready, replace(well, agent=sick), NOW + 90).node.sick_since == NOW + 90

    def test_since_when_a_node_has_been_leaving_is_kept(self) -> None:
        """It says from when on the pace of returns counts it, and when what it had cost began to end."""
        drained = lifecycle.drain_node(READY, "2 are allowed", NOW + 60, NOW).node
        ending = lifecycle.terminate_node(drained, "its deadline has passed", False, NOW + 60).node
        assert (drained.leaving_since, ending.leaving_since) == (NOW, NOW)
        ended = lifecycle.observe_node(ending, NodeObservation(is_provided=False), NOW + 90).node
        assert ended.leaving_since == NOW
        assert lifecycle.terminate_node(READY, "it died", True, NOW + 5).node.leaving_since == NOW + 5

    def test_an_agent_that_falls_silent_is_recorded_once_and_ends_nothing(self) -> None:
        node = hear(READY, heartbeat_at=5.0, unchanged_s=SILENT_S).node
        assert node == READY, "not yet"
        silent = hear(node, heartbeat_at=5.0, unchanged_s=SILENT_S + 1)
        (event,) = silent.events
        assert event.kind == "node.agent_silent"
        assert "said nothing since 1970-01-01 00:14:39 UTC" in event.message
        assert (silent.node.state, silent.node.message) == (NodeState.READY, event.message)
        assert hear(silent.node, heartbeat_at=5.0, unchanged_s=SILENT_S + 2) == lifecycle.NodeDecision(
            silent.node
        )

    def test_an_agent_that_speaks_again_is_recorded_once(self) -> None:
        silent = hear(READY, heartbeat_at=5.0, unchanged_s=SILENT_S + 1).node
        again = hear(silent, heartbeat_at=905.0, unchanged_s=0.0)
        assert [event.kind for event in again.events] == ["node.agent_heard"]
        assert again.node == READY, "with no word of it left"
        assert hear(again.node, heartbeat_at=910.0, unchanged_s=0.0).events == ()

    def test_a_controller_that_has_just_begun_to_listen_does_not_take_an_old_sign_for_a_new_one(self) -> None:
        silent = hear(READY, heartbeat_at=5.0, unchanged_s=SILENT_S + 1).node
        assert hear(silent, heartbeat_at=5.0, unchanged_s=0.0) == lifecycle.NodeDecision(silent)
        # It had spoken while no controller listened, and was found silent again.
        assert hear(silent, heartbeat_at=9.0, unchanged_s=SILENT_S + 1) == lifecycle.NodeDecision(silent)

    def test_an_agent_that_hears_nothing_of_its_cloud_is_recorded_like_a_silent_one(self) -> None:
        def look(node: NodeRow, heartbeat_at: float, unanswered_s: float) -> lifecycle.NodeDecision:
            agent = AgentStatus(heartbeat=Heartbeat(at=heartbeat_at, unanswered_s=unanswered_s))
            return lifecycle.observe_node(
                node, NodeObservation(is_provided=True, is_alive=True, agent=agent), NOW
            )

        assert look(READY, 5.0, UNANSWERED_S) == lifecycle.NodeDecision(READY), "not yet"
        unanswered = look(READY, 10.0, UNANSWERED_S + 1)
        (event,) = unanswered.events
        assert event.kind == "node.agent_silent"
        assert "has had no answer of its cloud since 1970-01-01 00:" in event.message
        assert unanswered.node.state is NodeState.READY
        assert look(unanswered.node, 15.0, UNANSWERED_S + 6) == lifecycle.NodeDecision(unanswered.node), (
            "it sends heartbeats, and has no answer still"
        )
        again = look(unanswered.node, 20.0, 1.0)
        assert ([event.kind for event in again.events], again.node) == (["node.agent_heard"], READY)

    def test_what_an_agent_says_is_recorded_once_and_stands_beside_the_node_as_long_as_it_says_so(
        self,
    ) -> None:
        def look(node: NodeRow, says: str | None) -> lifecycle.NodeDecision:
            agent = AgentStatus(heartbeat=Heartbeat(at=5.0, says=says))
            return lifecycle.observe_node(
                node, NodeObservation(is_provided=True, is_alive=True, agent=agent), NOW
            )

        first = look(READY, "a pause")
        assert [(event.kind, event.message) for event in first.events] == [("node.agent_said", "a pause")]
        assert first.node == replace(READY, message="a pause")
        assert look(first.node, "a pause") == lifecycle.NodeDecision(first.node)
        assert [event.message for event in look(first.node, "another one").events] == ["another one"]
        assert look(first.node, None) == lifecycle.NodeDecision(READY)

    def test_what_a_silent_agent_said_last_is_not_recorded_instead_of_its_silence(self) -> None:
        node = hear(replace(READY, message="a pause"), heartbeat_at=5.0, unchanged_s=SILENT_S + 1).node
        agent = AgentStatus(heartbeat=Heartbeat(at=5.0, says="a pause"), unchanged_s=SILENT_S + 2)
        seen = NodeObservation(is_provided=True, is_alive=True, agent=agent)
        assert lifecycle.observe_node(node, seen, NOW) == lifecycle.NodeDecision(node)

    def test_a_node_without_an_agent_has_none_that_is_silent(self) -> None:
        seen = NodeObservation(is_provided=True, is_alive=True)
        assert lifecycle.observe_node(READY, seen, NOW + 10 * SILENT_S) == lifecycle.NodeDecision(READY)

    @pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.TERMINATING])
    def test_the_agent_of_a_node_that_goes_may_be_silent(self, state: NodeState) -> None:
        going = replace(READY, state=state, deadline_at=NOW + 60)
        assert hear(going, heartbeat_at=5.0, unchanged_s=SILENT_S + 1) == lifecycle.NodeDecision(going)

    def test_a_machine_that_is_dead_is_the_news_and_not_its_silent_agent(self) -> None:
        reported = hear(READY, heartbeat_at=5.0, unchanged_s=SILENT_S + 1, is_alive=False)
        assert reported == lifecycle.NodeDecision(READY)

    @pytest.mark.parametrize(("is_failure", "end"), [(True, NodeState.FAILED), (False, NodeState.GONE)])
    def test_the_reason_of_an_end_is_kept(self, is_failure: bool, end: NodeState) -> None:
        node = NodeRow(id="n", pool="p", created_at=NOW)
        ending = lifecycle.terminate_node(node, "no job needs it", is_failure, NOW).node
        ended = lifecycle.observe_node(ending, NodeObservation(is_provided=False), NOW + 1).node
        assert (ended.state, ended.message, ended.ended_at) == (end, "no job needs it", NOW + 1)


class LifeOfAJob(RuleBasedStateMachine):
    """Anything may happen to a job in any order; whatever does, these things stay true."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        submitted = lifecycle.submit(job_row(retry_limit=2, run_time_s=50.0))
        self.job = submitted.job
        self.attempts: list[AttemptRow] = []
        self.events: list[NewEvent] = list(submitted.events)
        self.user_ends = 0

    @property
    def live(self) -> AttemptRow | None:
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.state is not AttemptState.ENDED else None

    def take(self, decision: Decision) -> None:
        old_job, old_attempt = self.job, self.live
        if decision.job.state is not old_job.state:
            kinds = {event.kind for event in decision.events}
            assert f"job.{decision.job.state.value}" in kinds, "every change leaves an event"
        if (
            decision.attempt is not None
            and old_attempt is not None
            and decision.attempt.state is not old_attempt.state
        ):
            assert [event for event in decision.events if event.kind.startswith("attempt.")]
        assert not old_job.state.is_terminal or decision.job == old_job, "an end is an end"
        assert decision.job.attempt >= old_job.attempt
        self.job = decision.job
        self.events += decision.events
        if decision.attempt is not None:
            if old_attempt is not None and decision.attempt.id == old_attempt.id:
                self.attempts[-1] = decision.attempt
            else:
                self.attempts.append(decision.attempt)

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.job.state is JobState.QUEUED)
    @rule()
    def admit(self) -> None:
        self.now = max(self.now, self.job.not_before)
        self.take(lifecycle.start_attempt(self.job, f"att_{len(self.attempts)}", self.now))

    @precondition(lambda self: self.live is not None)
    @rule(
        state=st.sampled_from([None, AttemptState.STARTING, AttemptState.RUNNING, AttemptState.DRAINING]),
        step=st.none() | st.integers(0, 50),
        size=st.integers(0, 4),
    )
    def progress(self, state: AttemptState | None, step: int | None, size: int) -> None:
        assert self.live is not None
        self.take(
            lifecycle.observe(
                self.job, self.live, ProgressRecord(state=state, step=step, world_size=size), self.now
            )
        )

    @rule()
    def cancel(self) -> None:
        self.take(lifecycle.request_cancel(self.job, self.now))

    @precondition(lambda self: self.live is not None)
    @rule(reason=st.sampled_from([EndReason.CANCELLED, EndReason.RUN_TIME_EXCEEDED]))
    def stop(self, reason: EndReason) -> None:
        assert self.live is not None
        if reason is EndReason.CANCELLED and self.job.cancel_requested_at is None:
            self.take(lifecycle.request_cancel(self.job, self.now))
        self.take(lifecycle.request_stop(self.job, self.live, reason, self.now))

    @precondition(lambda self: self.live is not None)
    @rule(reason=st.sampled_from(EndReason))
    def end(self, reason: EndReason) -> None:
        assert self.live is not None
        attempt = self.live
        decision = lifecycle.end_attempt(self.job, attempt, reason, "over", self.now)
        assert decision.attempt is not None
        assert decision.attempt.end_reason is not None
        self.user_ends += decision.attempt.end_reason.is_users
        self.take(decision)

    @invariant()
    def a_live_attempt_means_a_job_that_is_not_waiting(self) -> None:
        assert (self.live is not None) == (self.job.state in (JobState.ADMITTED, JobState.RUNNING))

    @invariant()
    def attempts_are_numbered_without_gaps(self) -> None:
        assert [attempt.attempt for attempt in self.attempts] == list(range(1, len(self.attempts) + 1))
        assert self.job.attempt == len(self.attempts)

    @invariant()
    def retries_are_bounded(self) -> None:
        assert self.user_ends <= self.job.retry_limit + 1
        assert self.job.losses <= retry.LOSS_LIMIT

    @invariant()
    def whatever_was_lost_between_them_the_users_failures_are_counted(self) -> None:
        assert self.job.state.is_terminal or self.job.user_failures == self.user_ends

    @invariant()
    def what_is_asked_once_is_recorded_once(self) -> None:
        reported = Counter(
            (event.kind, event.attempt)
            for event in self.events
            if event.kind in ("job.cancel_requested", "attempt.draining", "attempt.ended")
        )
        assert all(count == 1 for count in reported.values())

    @invariant()
    def ends_are_complete(self) -> None:
        assert self.job.state.is_terminal == (self.job.ended_at is not None)
        assert not self.job.state.is_terminal or (self.job.reason and self.job.message)
        for attempt in self.attempts:
            assert (attempt.state is AttemptState.ENDED) == (attempt.end_reason is not None)

    @invariant()
    def only_who_has_fewer_workers_is_short(self) -> None:
        for attempt in self.attempts:
            is_short = attempt.state is not AttemptState.ENDED and attempt.world_size < self.job.max_workers
            assert is_short or attempt.short_since is None

    @invariant()
    def a_cancelled_job_starts_nothing(self) -> None:
        if self.job.cancel_requested_at is not None:
            assert self.job.state is not JobState.QUEUED

    @invariant()
    def counters_never_shrink_below_zero(self) -> None:
        assert min(self.job.lost_s, self.job.trained_s, self.job.repeated_steps, self.job.world_size) >= 0


LifeOfAJob.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestLifeOfAJob = LifeOfAJob.TestCase


@settings(deadline=None, derandomize=True)
@given(st.text(string.ascii_lowercase, min_size=1), st.integers(0, 5))
def test_a_new_reason_to_wait_is_recorded_once(reason: str, times: int) -> None:
    job = lifecycle.submit(job_row()).job
    reported = 0
    for _ in range(times):
        decision = lifecycle.wait(job, reason, "waits", NOW)
        reported += len(decision.events)
        job = decision.job
    assert reported == min(times, 1)


@pytest.mark.parametrize(("newest", "step", "fruitless"), [(None, 1, 0), (5, 6, 0), (5, 5, 2), (5, 4, 2)])
def test_only_a_newer_checkpoint_than_ever_is_progress(newest: int | None, step: int, fruitless: int) -> None:
    job = job_row(checkpoint_step=newest, fruitless=2)
    attempt = AttemptRow(id="att_1", job_id=job.id, attempt=1, created_at=0.0)
    assert lifecycle.observe_checkpoint(job, attempt, step).job.fruitless == fruitless

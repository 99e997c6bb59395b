"""The controller keeps its promises, whatever the cluster does, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cluster.policies.documents import digest_of
from cluster.provider import InsufficientCapacity, ProviderError, QuotaExceeded
from cluster.ray.heartbeats import SILENT_S, AgentStatus, Heartbeat
from cluster.scheduling import installed_rules
from cluster.scheduling.actions import Launch
from cluster.scheduling.formatting import clock
from cluster.scheduling.health import DRAIN_S
from cluster.scheduling.view import ClusterView
from remora.spec.spec import JobSpec
from remora.states import AttemptState, EndReason, JobState, NodeState
from service.clouds.fixed_pool import fixed_pool
from service.loops.launching import LAUNCH_TIMEOUT_S, Launching
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.policy_versions import PolicyRequest, next_version
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import job_history, jobs, nodes, policies
from service.store.database import Database
from service.store.failures import Fenced
from service.store.ids import new_id
from tests.service_fakes import World, records
from trainers.plan import AttemptPlan, DriverGone, Record


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, Settings(home=tmp_path, nodes=3, node_cpus=1, lease_s=5.0))


@pytest.fixture
def ready(world: World) -> World:
    """A world whose three nodes are ready."""
    for _ in world.ticks_until("three ready nodes"):
        if [node.state for node in world.nodes()] == [NodeState.READY] * 3:
            break
    return world


def events_of(world: World, job_id: str) -> list[str]:
    page = world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 1000))
    assert [event.seq for event in page] == list(range(1, len(page) + 1))
    return [event.kind for event in page]


def node_events_of(world: World, node_id: str) -> list[str]:
    page = world.database.query(lambda c: nodes.page_of_node_events(c, node_id, 0, 1000))
    return [event.kind for event in page]


def run_to(world: World, job_id: str, state: JobState) -> None:
    for _ in world.ticks_until(f"job {state}"):
        if world.job(job_id).state is state:
            return


def work_on(world: World, job_id: str, on: list[NodeRow]) -> None:
    """The job's driver says that one worker runs on each of these nodes."""
    workers = {str(node.address): 1 for node in on}
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=len(workers), workers=workers)
    world.tick()


def train_on(world: World, on: list[NodeRow]) -> str:
    """A job with one worker on each of these nodes, which is all that it can use."""
    job_id = world.submit(max_workers=len(on))
    run_to(world, job_id, JobState.ADMITTED)
    work_on(world, job_id, on)
    return job_id


def a_checkpoint(step: int) -> dict[str, Any]:
    """What a driver reports of a committed checkpoint."""
    return {
        "step": step, "world_size": 1, "size_bytes": 7, "location": "/c", "files": {"a": 7}, "committed_at": 1000.0
    }  # fmt: skip


class Crash(BaseException):
    """The process dies here; nothing of ours may catch it."""


class TestAJob:
    def test_goes_from_queued_to_succeeded(self, ready: World) -> None:
        job_id = ready.submit(max_workers=3)
        ready.tick()
        assert ready.job(job_id).state is JobState.ADMITTED
        driver = ready.launcher.driver_of(job_id)
        assert (driver.plan.attempt, driver.plan.command) == (1, ["python", "train.py"])
        workers = {"10.0.0.1": 2, "10.0.0.2": 1}
        driver.report("progress", state="running", world_size=3, workers=workers, total_steps=10)
        driver.report("metric", step=10, world_size=3, values={"loss": 0.1})
        ready.tick()
        assert (ready.job(job_id).state, ready.job(job_id).world_size) == (JobState.RUNNING, 3)
        assert ready.attempts(job_id)[0].workers == workers
        driver.report("ended", end_reason="completed", message="every rank returned 0", exit_code=0)
        ready.tick()
        job = ready.job(job_id)
        assert (job.state, job.reason, job.step, job.total_steps) == (JobState.SUCCEEDED, "completed", 10, 10)
        assert events_of(ready, job_id) == [
            "job.queued",
            "job.admitted",
            "attempt.created",
            "attempt.started",
            "job.running",
            "training.began",
            "attempt.ended",
            "job.succeeded",
        ]
        assert ready.launcher.drivers == {}

    def test_waits_for_nodes_and_says_so(self, world: World) -> None:
        world.cluster.joins = False
        job_id = world.submit()
        world.tick()
        job = world.job(job_id)
        assert (job.state, job.reason) == (JobState.QUEUED, "waiting_for_nodes")
        assert "1 worker of 1 CPU" in str(job.message)
        world.cluster.joins = True
        run_to(world, job_id, JobState.ADMITTED)

    def test_that_can_never_fit_says_what_to_change(self, ready: World) -> None:
        job_id = ready.submit(min_workers=4, max_workers=4)
        other = ready.submit()
        ready.tick()
        assert "capacity for 3" in str(ready.job(job_id).message)
        assert "lower `workers.min`" in str(ready.job(job_id).message)
        assert ready.job(other).state is JobState.ADMITTED

    def test_waits_in_the_queue_behind_one_that_runs(self, ready: World) -> None:
        first = ready.submit(max_workers=3)
        second, third = ready.submit(), ready.submit()
        ready.tick()
        assert [ready.job(one).state for one in (first, second, third)] == [
            JobState.ADMITTED,
            JobState.QUEUED,
            JobState.QUEUED,
        ]
        assert ready.job(second).reason == "waiting_for_turn"
        assert ready.job(third).message == "waits in the queue"
        ready.launcher.driver_of(first).report("ended", end_reason="completed", message="", exit_code=0)
        ready.tick(2)
        assert ready.job(second).state is JobState.ADMITTED
        assert ready.job(third).state is JobState.ADMITTED

    def test_a_wait_longer_than_allowed_fails_it(self, world: World) -> None:
        world.cluster.joins = False
        job_id = world.submit(wait_time_s=2.0)
        for _ in world.ticks_until("the wait to be over"):
            if world.job(job_id).state is JobState.FAILED:
                break
        assert world.job(job_id).reason == "wait_time_exceeded"
        assert world.now - 1000.0 >= 2.0


class TestRetries:
    def test_a_failing_script_is_tried_again_until_its_retries_are_used_up(self, ready: World) -> None:
        job_id = ready.submit(retry_limit=1)
        for expected in (1, 2):
            run_to(ready, job_id, JobState.ADMITTED)
            driver = ready.launcher.driver_of(job_id)
            assert driver.plan.attempt == expected
            driver.report("ended", end_reason="exit_code", message="rank 0 returned 3", exit_code=3)
            ready.tick()
        job = ready.job(job_id)
        assert (job.state, job.reason, job.attempt) == (JobState.FAILED, "exit_code", 2)
        assert [attempt.exit_code for attempt in ready.attempts(job_id)] == [3, 3]

    @pytest.mark.parametrize(
        "reason", ["driver_lost", "head_lost", "supervisor_lost", "node_lost", "evicted"]
    )
    def test_losses_do_not_count(self, ready: World, reason: str) -> None:
        job_id = ready.submit(retry_limit=0)
        for attempt in range(1, 5):
            run_to(ready, job_id, JobState.ADMITTED)
            driver = ready.launcher.driver_of(job_id)
            driver.report("progress", state="running", world_size=1)
            driver.report("metric", step=attempt, world_size=1, values={})
            driver.report("ended", end_reason=reason, message="lost", exit_code=None)
            ready.tick()
            assert ready.job(job_id).state is JobState.QUEUED
        assert ready.job(job_id).losses == 4

    @pytest.mark.parametrize("reports", [True, False])
    @pytest.mark.parametrize("progress", ["", "metric", "checkpoint", "output"])
    def test_a_job_that_makes_no_progress_ends_with_its_third_loss_on_living_nodes(
        self, ready: World, progress: str, reports: bool
    ) -> None:
        job_id = ready.submit(retry_limit=0)
        # Every attempt comes as far as the one before; the first one is ended by its node.
        for attempt, reason in enumerate(["node_lost", *["supervisor_lost"] * 3], start=1):
            run_to(ready, job_id, JobState.ADMITTED)
            driver = ready.launcher.driver_of(job_id)
            driver.report("progress", state="running", world_size=1)
            if reports:
                driver.report("metric", step=5, world_size=1, values={})
            if progress == "metric":
                driver.report("metric", step=5 + attempt, world_size=1, values={})
            elif progress == "checkpoint":
                driver.report("checkpoint", **a_checkpoint(attempt))
            elif progress == "output":
                driver.report("output", location="/outputs", committed_at=ready.now, files={})
            driver.report("ended", end_reason=reason, message="It was lost.", exit_code=None)
            ready.tick()
        job = ready.job(job_id)
        # What a script stores beside the steps that it reports says nothing about how far it is.
        gets_on = progress in ("metric", "checkpoint") or (progress == "output" and not reports)
        assert (job.attempt, job.losses) == (4, 4 if gets_on else 3)
        assert (job.state, job.reason) == (
            (JobState.QUEUED, "waiting_for_retry") if gets_on else (JobState.FAILED, "no_progress")
        )

    @pytest.mark.parametrize("trains", [True, False])
    def test_drivers_that_die_before_they_have_workers_say_nothing_about_the_job(
        self, ready: World, trains: bool
    ) -> None:
        job_id = ready.submit(retry_limit=0)
        for _ in range(3):
            run_to(ready, job_id, JobState.ADMITTED)
            driver = ready.launcher.driver_of(job_id)
            if trains:
                driver.report("progress", state="running", world_size=1)
                ready.tick()
            driver.gone = DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt died.")
            ready.tick()
        job = ready.job(job_id)
        assert job.state is (JobState.FAILED if trains else JobState.QUEUED)
        assert job.reason == ("no_progress" if trains else "waiting_for_retry")

    def test_a_dead_driver_ends_its_attempt_and_another_follows(self, ready: World) -> None:
        job_id = ready.submit(retry_limit=0)
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.report("progress", state="running", world_size=1)
        driver.report("metric", step=7, world_size=1, values={}, at=ready.now)
        ready.tick()
        driver.gone = DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt died.")
        lost_at = ready.now
        ready.tick()
        assert ready.job(job_id).reason == "waiting_for_retry"
        assert driver.plan.attempt_id in ready.launcher.killed, "nothing of it may go on"
        run_to(ready, job_id, JobState.ADMITTED)
        second = ready.launcher.driver_of(job_id)
        assert (second.plan.attempt, second.plan.previous_step) == (2, 7)
        second.report("progress", state="running", world_size=1, resumed_from_step=5)
        second.report("progress", repeated_steps=2)
        ready.now = lost_at + 5.0
        second.report("metric", step=8, world_size=1, values={}, at=ready.now)
        ready.tick()
        job = ready.job(job_id)
        assert (job.repeated_steps, job.step) == (2, 8)
        assert job.lost_s == pytest.approx(5.0, abs=0.6)

    def test_no_attempt_starts_before_the_last_one_surely_runs_no_more(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.gone = DriverGone(EndReason.HEAD_LOST, "the head died")
        ready.launcher.failing["kill"] = ConnectionError("the head does not answer")
        ready.tick(20)
        assert ready.job(job_id).state is JobState.QUEUED
        del ready.launcher.failing["kill"]
        run_to(ready, job_id, JobState.ADMITTED)

    def test_nor_before_the_driver_that_was_killed_is_seen_to_be_gone(self, ready: World) -> None:
        """The controller may die with the call that kills it: the next one makes sure of it."""
        job_id = ready.submit()
        ready.tick()
        ready.launcher.driver_of(job_id).report("ended", end_reason="evicted", message="", exit_code=None)
        ready.launcher.loses_kills = True
        ready.tick(20)
        assert (ready.job(job_id).state, ready.attempts(job_id)[0].released_at) == (JobState.QUEUED, None)
        ready.succeed()
        ready.launcher.loses_kills = False
        run_to(ready, job_id, JobState.ADMITTED)

    def test_a_command_that_cannot_be_started_is_not_tried_again(self, ready: World) -> None:
        job_id = ready.submit(retry_limit=5)
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.report("ended", end_reason="start_failed", message="python: not found", exit_code=None)
        ready.tick()
        assert ready.job(job_id).state is JobState.FAILED

    def test_a_url_that_an_older_version_accepted_is_not_opened(self, ready: World) -> None:
        spec = JobSpec.from_mapping(
            {"command": "python train.py", "checkpoint": {"store": "http://127.0.0.1:1/canary"}}
        )
        job_id = ready.submit(retry_limit=5, spec=spec.to_mapping())
        run_to(ready, job_id, JobState.FAILED)
        (attempt,) = ready.attempts(job_id)
        assert attempt.end_reason is EndReason.START_FAILED
        assert "expected the name of a store" in str(attempt.message)
        assert ready.launcher.history == []


class TestStopping:
    def test_a_cancelled_job_that_runs_is_asked_to_stop(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        ready.launcher.driver_of(job_id).report("progress", state="running", world_size=1)
        ready.tick()
        ready.cancel(job_id)
        run_to(ready, job_id, JobState.CANCELLED)
        (attempt,) = ready.attempts(job_id)
        assert attempt.end_reason is EndReason.CANCELLED
        assert ready.launcher.drivers == {}

    def test_a_cancelled_job_that_waits_ends_at_once(self, world: World) -> None:
        job_id = world.submit()
        world.cancel(job_id)
        assert world.job(job_id).state is JobState.CANCELLED

    def test_one_that_does_not_stop_is_killed_after_ten_seconds(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.report("progress", state="running", world_size=1)
        driver.obeys = False
        ready.cancel(job_id)
        asked_at = ready.now
        run_to(ready, job_id, JobState.CANCELLED)
        assert 10.0 < ready.now - asked_at < 12.0
        assert driver.plan.attempt_id in ready.launcher.killed

    def test_a_script_that_dies_of_being_stopped_was_cancelled(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.obeys = False
        ready.cancel(job_id)
        ready.tick()
        driver.report("ended", end_reason="signal", message="killed by SIGTERM", exit_code=-15)
        ready.tick()
        assert ready.attempts(job_id)[0].end_reason is EndReason.CANCELLED
        assert ready.job(job_id).state is JobState.CANCELLED

    def test_a_job_that_trains_longer_than_allowed_fails(self, ready: World) -> None:
        job_id = ready.submit(run_time_s=3.0)
        ready.tick()
        ready.launcher.driver_of(job_id).report("progress", state="running", world_size=1, at=ready.now)
        run_to(ready, job_id, JobState.FAILED)
        assert ready.job(job_id).reason == "run_time_exceeded"
        assert ready.job(job_id).message == "it trained longer than limits.run_time (3 s)"

    def test_a_cancel_before_the_driver_runs_needs_no_driver(self, ready: World) -> None:
        ready.launcher.failing["start"] = ConnectionError("no head")
        job_id = ready.submit()
        ready.tick()
        assert ready.job(job_id).state is JobState.ADMITTED
        ready.cancel(job_id)
        ready.tick()
        assert ready.job(job_id).state is JobState.CANCELLED


class TestCrashes:
    def test_between_the_attempt_row_and_its_driver(
        self, ready: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = ready.submit()

        def die(*_: Any) -> None:
            raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(Launching, "launch", die)
            with pytest.raises(Crash):
                ready.tick()
        assert ready.launcher.drivers == {}
        ready.succeed()
        ready.tick()
        assert ready.launcher.driver_of(job_id).plan.attempt == 1
        assert len(ready.attempts(job_id)) == 1

    def test_a_driver_that_cannot_be_started_is_given_up_and_tried_as_another_attempt(
        self, ready: World
    ) -> None:
        ready.launcher.failing["start"] = ConnectionError("no head")
        job_id = ready.submit()
        ready.tick()
        ready.now += LAUNCH_TIMEOUT_S + 1.0
        ready.tick()
        assert ready.attempts(job_id)[0].end_reason is EndReason.DRIVER_LOST
        del ready.launcher.failing["start"]
        run_to(ready, job_id, JobState.ADMITTED)
        assert ready.launcher.driver_of(job_id).plan.attempt == 2

    def test_between_the_driver_and_its_plan(self, ready: World) -> None:
        """What the dead controller had sent was lost with it: the next one sends the plan again."""
        job_id = ready.submit()
        ready.launcher.loses_plans = True
        ready.tick()
        (attempt,) = ready.attempts(job_id)
        assert attempt.launched_at is None, "no driver has the plan"
        ready.launcher.loses_plans = False
        ready.succeed()
        ready.now += 2 * LAUNCH_TIMEOUT_S  # it has only begun to try, however long the service was away
        ready.tick()
        assert ready.launcher.driver_of(job_id).has_plan
        (attempt,) = ready.attempts(job_id)
        assert attempt.launched_at == ready.now

    def test_between_the_request_to_stop_and_its_way_to_the_driver(self, ready: World) -> None:
        """What the dead controller had sent was lost with it: the next one asks again, before anything is killed."""
        job_id = ready.submit()
        ready.tick(2)
        ready.cancel(job_id)
        ready.launcher.loses_stops = True
        ready.tick()
        (attempt,) = ready.attempts(job_id)
        assert attempt.stop_requested_at is not None, "it is written that the driver was asked"
        ready.launcher.loses_stops = False
        ready.succeed()
        ready.tick()
        assert ready.launcher.driver_of(job_id).stop_reason is EndReason.CANCELLED
        ready.tick()
        assert ready.job(job_id).state is JobState.CANCELLED

    def test_between_the_answer_of_a_driver_and_its_row(self, ready: World) -> None:
        job_id = ready.submit()
        ready.launcher.is_mute = True
        ready.tick(2)
        ready.launcher.is_mute = False
        ready.succeed()
        ready.launcher.driver_of(job_id).report("progress", state="running", world_size=1)
        ready.tick()
        assert ready.job(job_id).state is JobState.RUNNING
        assert len(ready.launcher.history) == 1

    def test_a_driver_that_does_not_say_that_it_has_its_plan_is_given_up_after_minutes(
        self, ready: World
    ) -> None:
        job_id = ready.submit()
        ready.launcher.loses_plans = True
        for _ in ready.ticks_until("it is given up"):
            ready.now += 5.0
            if ready.attempts(job_id) and ready.attempts(job_id)[0].ended_at is not None:
                break
        first = ready.attempts(job_id)[0]
        assert first.end_reason is EndReason.DRIVER_LOST
        assert first.ended_at is not None
        assert LAUNCH_TIMEOUT_S < first.ended_at - first.created_at < LAUNCH_TIMEOUT_S + 6.0
        assert first.id in ready.launcher.killed
        ready.launcher.loses_plans = False
        run_to(ready, job_id, JobState.ADMITTED)
        ready.tick()
        assert [driver.plan.attempt for driver in ready.launcher.history] == [2]

    def test_before_an_attempt_that_never_had_a_plan_is_closed_no_other_follows(self, ready: World) -> None:
        """Else its driver, of which nothing has been heard, could begin it beside the next one."""
        job_id = ready.submit()
        ready.launcher.loses_plans = True
        ready.launcher.failing["close"] = ConnectionError("the storage does not answer")
        for _ in ready.ticks_until("it is given up"):
            ready.now += 10.0
            if ready.job(job_id).state is JobState.QUEUED and ready.job(job_id).attempt:
                break
        ready.tick(20)
        assert ready.attempts(job_id)[0].released_at is None
        assert len(ready.attempts(job_id)) == 1
        del ready.launcher.failing["close"]
        ready.launcher.loses_plans = False
        run_to(ready, job_id, JobState.ADMITTED)
        assert ready.attempts(job_id)[0].id in ready.launcher.claimed

    def test_a_driver_that_has_no_plan_any_more_is_lost(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        ready.launcher.driver_of(job_id).has_plan = False
        ready.tick()
        assert ready.attempts(job_id)[0].end_reason is EndReason.DRIVER_LOST

    def test_while_the_service_is_away_nothing_is_lost_or_doubled(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.report("progress", state="running", world_size=1)
        for number in range(5):
            driver.report("log", rank=0, stream="stdout", text=str(number))
        ready.tick()
        for number in range(5, 10):
            driver.report("log", rank=0, stream="stdout", text=str(number))
        ready.succeed()
        ready.tick(2)
        lines = ready.database.query(
            lambda c: job_history.page_of_logs(c, job_id, job_history.LogFilter(), 0, 100)
        )
        assert [line.text for line in lines] == [str(number) for number in range(10)]
        assert driver.acknowledged == 11

    def test_drivers_that_cannot_be_asked_are_left_alone(self, ready: World) -> None:
        job_id = ready.submit()
        ready.tick()
        ready.launcher.failing["poll"] = ConnectionError("the head does not answer")
        ready.tick(5)
        assert ready.job(job_id).state is JobState.ADMITTED


class TestTwoControllers:
    def test_one_acts_and_the_other_stands_by(self, ready: World) -> None:
        other = ready.new_controller()
        ready.submit()
        assert not other.tick(ready.now)
        ready.tick()
        assert len(ready.launcher.history) == 1

    def test_the_other_takes_over_when_the_first_is_silent(self, ready: World) -> None:
        former, job_id = ready.controller, ready.submit()
        other = ready.succeed()
        assert other.tick(ready.now)
        assert ready.job(job_id).state is JobState.ADMITTED
        assert not former.tick(ready.now)

    def test_one_that_sleeps_in_the_middle_of_its_work_is_fenced_when_it_wakes(self, ready: World) -> None:
        """It asked the drivers, slept, and stores its answers after another one took over."""
        job_id = ready.submit()
        ready.tick()
        driver = ready.launcher.driver_of(job_id)
        driver.report("progress", state="running", world_size=1)
        driver.report("log", rank=0, stream="stdout", text="once")
        other = ready.new_controller()
        poll = ready.launcher.poll
        slept: list[bool] = []

        def poll_and_sleep(
            attempt_ids: list[str], after: dict[str, int]
        ) -> dict[str, list[Record] | DriverGone]:
            answers = poll(attempt_ids, after)
            if not slept:
                slept.append(True)
                assert not other.tick(ready.now)
                ready.now += 20.0
                assert other.tick(ready.now), "the lease had run out, so the other one acts"
                driver.report("log", rank=0, stream="stdout", text="twice")
                assert other.tick(ready.now)
            return answers

        ready.launcher.poll = poll_and_sleep  # type: ignore[method-assign]
        assert not ready.controller.tick(ready.now), "the sleeper was fenced"
        assert slept
        assert ready.controller.lease is None
        lines = ready.database.query(
            lambda c: job_history.page_of_logs(c, job_id, job_history.LogFilter(), 0, 100)
        )
        assert [line.text for line in lines] == ["once", "twice"]

    @pytest.mark.parametrize("end", ["it succeeds", "its owner cancels it"])
    def test_one_that_was_stopped_before_it_started_a_driver_starts_nothing_that_has_ended(
        self, ready: World, end: str
    ) -> None:
        """It wrote the attempt's row and was stopped; when it goes on another one has ended the attempt long ago."""
        other = ready.new_controller()
        start = ready.launcher.start
        answers: list[bool | DriverGone] = []

        def stopped_before(plan: AttemptPlan, _: Sequence[bytes] = ()) -> bool | DriverGone:
            if answers:
                return start(plan)
            answers.append(False)
            if end == "its owner cancels it":
                ready.cancel(plan.job_id)
            assert not other.tick(ready.now), "it has to be sure that no other controller acts"
            for _ in range(3):
                ready.now += 10.0
                assert other.tick(ready.now)
                for driver in ready.launcher.drivers.values():
                    driver.report("ended", end_reason="completed", message="", exit_code=0)
            assert ready.job(plan.job_id).state.is_terminal
            answers.append(start(plan))
            return answers[-1]

        ready.launcher.start = stopped_before  # type: ignore[method-assign]
        job_id = ready.submit()
        assert not ready.controller.tick(ready.now), "it was fenced"
        assert isinstance(answers[-1], DriverGone)
        ran = 1 if end == "it succeeds" else 0
        assert len(ready.launcher.history) == ran, "whatever is made now does not get the attempt"
        assert ready.job(job_id).state is (JobState.SUCCEEDED if ran else JobState.CANCELLED)
        assert len(ready.attempts(job_id)) == 1

    @pytest.mark.parametrize("what", ["job", "node"])
    def test_no_write_of_a_former_leader_is_possible(self, ready: World, what: str) -> None:
        assert ready.controller.lease is not None
        former = Tick(ready.database, ready.settings, ready.controller.lease, ready.now)
        job_id = ready.submit()
        assert ready.succeed().tick(ready.now)
        before = (ready.job(job_id), ready.nodes())

        def write_job(connection: sa.Connection) -> None:
            row = jobs.lock_job(connection, job_id)
            assert row is not None
            jobs.save(connection, row, replace(lifecycle.Decision(row, None), job=replace(row, message="x")))

        def write_node(connection: sa.Connection) -> None:
            row = ready.nodes()[0]
            nodes.save_node(connection, row, lifecycle.terminate_node(row, "x", False, ready.now))

        with pytest.raises(Fenced):
            former.apply(write_job if what == "job" else write_node)
        assert (ready.job(job_id), ready.nodes()) == before

    def test_a_leader_that_resigns_lets_the_next_one_in_at_once(self, ready: World) -> None:
        other = ready.new_controller()
        assert not other.tick(ready.now)
        ready.controller.resign()
        assert other.tick(ready.now)


class TestNodes:
    def test_come_up_one_state_after_the_other(self, world: World) -> None:
        world.cluster.joins = False
        world.tick()
        assert [node.state for node in world.nodes()] == [NodeState.LAUNCHED] * 3
        world.cluster.joins = True
        world.tick()
        assert [(node.state, node.address) for node in world.nodes()] == [
            (NodeState.READY, world.cluster.address_of(node.id)) for node in world.nodes()
        ]

    def test_a_dead_one_is_replaced_and_its_machine_deleted(self, ready: World) -> None:
        victim = ready.nodes()[0]
        ready.cluster.lose(victim.id)
        ready.tick(3)
        by_id = {node.id: node for node in ready.nodes()}
        assert by_id[victim.id].state is NodeState.GONE
        assert "killed by signal 9" in str(by_id[victim.id].message)
        assert victim.id not in ready.cluster.machines
        assert [node.state for node in by_id.values() if node.id != victim.id] == [NodeState.READY] * 3

    def test_one_that_never_joins_fails(self, world: World) -> None:
        world.cluster.joins = False
        world.tick()
        world.now += 61.0
        world.tick(2)
        failed = [node for node in world.nodes() if node.state is NodeState.FAILED]
        assert len(failed) == 3
        assert "did not join" in str(failed[0].message)

    def test_a_drained_one_takes_no_work_and_gets_a_replacement(self, ready: World) -> None:
        job_id = train_on(ready, ready.nodes())
        drained = ready.nodes()[0]
        ready.cluster.draining.add(drained.id)
        ready.tick(2)
        states = [node.state for node in ready.nodes()]
        assert states.count(NodeState.READY) == 3
        assert states.count(NodeState.DRAINING) == 1
        work_on(ready, job_id, [node for node in ready.nodes() if node.id != drained.id])
        ready.tick()
        assert drained.id not in ready.cluster.machines, "nothing runs on it any more"

    @pytest.mark.parametrize("noticed_s", [40.0, None])
    def test_a_drain_that_ray_forgets_is_sent_again_and_ends_at_its_deadline(
        self, ready: World, noticed_s: float | None
    ) -> None:
        train_on(ready, ready.nodes())
        drained = ready.nodes()[0].id
        ready.cluster.draining.add(drained)
        if noticed_s is not None:
            ready.cluster.notify(drained, ready.now + noticed_s)
        due_at = ready.now + (noticed_s or 1.25 + DRAIN_S)
        ready.tick(4)
        assert ready.cluster.drains == {}, "Ray knows it"
        ready.cluster.draining.remove(drained)
        ready.cluster.notices.clear()
        ready.tick()
        assert ready.cluster.drains == {drained: due_at}
        ready.now = due_at - 0.5
        ready.tick()
        assert drained in ready.cluster.machines
        ready.tick()
        assert drained not in ready.cluster.machines

    def test_a_drain_without_a_deadline_lasts_as_long_as_the_work(self, ready: World) -> None:
        job_id = train_on(ready, ready.nodes())
        drained = ready.nodes()[0].id
        ready.cluster.draining.add(drained)
        ready.tick()
        ready.now += 10 * DRAIN_S
        ready.tick()
        assert drained in ready.cluster.machines
        work_on(ready, job_id, [node for node in ready.nodes() if node.id != drained])
        ready.tick()
        assert drained not in ready.cluster.machines

    def test_an_agent_that_is_silent_is_reported_once_and_its_node_works_on(self, ready: World) -> None:
        before = ready.nodes()
        silent, beating = before[0], before[1]
        newest = AgentStatus(heartbeat=Heartbeat(at=ready.now))
        ready.cluster.agents = {
            silent.id: replace(newest, unchanged_s=SILENT_S + 1),
            beating.id: replace(newest, unchanged_s=SILENT_S - 1),
        }
        ready.tick(3)
        assert node_events_of(ready, silent.id)[-2:] == ["node.ready", "node.agent_silent"]
        assert [node_events_of(ready, node.id)[-1] for node in before[1:]] == ["node.ready"] * 2
        assert [node.state for node in ready.nodes()] == [NodeState.READY] * 3
        assert (len(ready.cluster.created), ready.cluster.drains) == (3, {}), "no node is replaced for it"
        assert "its agent has said nothing" in str(ready.nodes()[0].message)
        ready.cluster.agents[silent.id] = AgentStatus(heartbeat=Heartbeat(at=ready.now + 1))
        ready.tick(3)
        assert node_events_of(ready, silent.id)[-2:] == ["node.agent_silent", "node.agent_heard"]
        assert ready.nodes()[0].message is None

    def test_a_list_that_fails_is_not_an_empty_list(self, ready: World) -> None:
        before = ready.nodes()
        ready.cluster.list_error = ProviderError("the provider does not answer")
        ready.tick(5)
        assert ready.nodes() == before
        assert len(ready.cluster.machines) == 3

    def test_that_the_cluster_cannot_be_seen_is_reported_once_whichever_controller_looks(
        self, ready: World
    ) -> None:
        ready.cluster.list_error = ProviderError("the provider does not answer")
        ready.tick(3)
        ready.controller.resign()
        ready.controller = ready.new_controller()
        ready.tick(3)
        ready.cluster.list_error = None
        ready.tick(3)
        page = ready.database.query(lambda c: policies.page_of_cluster_events(c, after=0, limit=9))
        assert [(event.kind, event.message) for event in page] == [
            (
                "cluster.unseen",
                "the cluster cannot be seen, and nothing is bought or returned until it can:"
                " the provider does not answer",
            ),
            ("cluster.seen", "the cluster can be seen again, after 2 s"),
        ]

    def test_a_crash_between_the_row_and_the_machine_is_healed(self, world: World) -> None:
        world.cluster.refusals = []
        create = world.cluster.create

        def die(request: Any) -> None:
            raise Crash

        world.cluster.create = die  # type: ignore[method-assign]
        with pytest.raises(Crash):
            world.tick()
        rows = world.nodes()
        assert [row.state for row in rows] == [NodeState.REQUESTED] * 3
        world.cluster.create = create  # type: ignore[method-assign]
        world.succeed()
        world.tick()
        assert world.cluster.machines.keys() == {row.id for row in rows}, "whenever the next one comes"

    def test_a_crash_between_the_machine_and_its_state_makes_no_second_machine(self, world: World) -> None:
        create = world.cluster.create

        def create_and_die(request: Any) -> None:
            create(request)
            raise Crash

        world.cluster.create = create_and_die  # type: ignore[method-assign]
        with pytest.raises(Crash):
            world.tick()
        world.cluster.create = create  # type: ignore[method-assign]
        world.succeed()
        world.tick(3)
        assert len(world.cluster.created) == 3

    def test_a_machine_without_a_living_row_is_deleted(self, ready: World) -> None:
        from cluster.provider import NodeRequest

        orphan = new_id("node", ready.now)
        ready.cluster.create(NodeRequest(node_id=orphan, pool="local", resources={"CPU": 1.0}))
        ready.tick()
        assert orphan not in ready.cluster.machines
        assert len(ready.cluster.machines) == 3

    @pytest.mark.parametrize(
        "refusal",
        [
            QuotaExceeded("no more machines for this account"),
            InsufficientCapacity("none left", offering="local", until=0.0),
        ],
    )
    def test_a_refused_one_fails_and_is_tried_again_later(self, world: World, refusal: ProviderError) -> None:
        world.cluster.refusals = [refusal]
        world.tick(2)
        failed = [node for node in world.nodes() if node.state is NodeState.FAILED]
        assert [node.message for node in failed] == [str(refusal)]
        for _ in world.ticks_until("three ready nodes"):
            if [node.state for node in world.nodes()].count(NodeState.READY) == 3:
                break


def test_any_order_of_repeated_records_leaves_one_copy(ready: World) -> None:
    """Answers to old questions arrive late: what was stored stays, what was missing comes."""
    job_id = ready.submit()
    ready.tick()
    (attempt,) = ready.attempts(job_id)
    lease = ready.controller.lease
    assert lease is not None
    from service.store.ingest import ingest

    new = records(*[("log", {"rank": 0, "stream": "stdout", "text": str(n)}) for n in range(6)])
    for part in (new[:2], new[:1], new[:4], new[2:4], new[:6], new[5:]):
        ready.database.transact(lambda c, part=part: ingest(c, lease, attempt.id, part, ready.now))  # type: ignore[misc]
    lines = ready.database.query(
        lambda c: job_history.page_of_logs(c, job_id, job_history.LogFilter(), 0, 100)
    )
    assert [line.text for line in lines] == list("012345")
    assert ready.attempts(job_id)[0].state is AttemptState.STARTING


class TestPolicies:
    """The controller follows the newest policies at every tick."""

    def apply(self, world: World, document: str) -> None:
        first = fixed_pool(Settings(home=Path("unused")))

        def work(connection: sa.Connection) -> None:
            newest = policies.newest_policies(connection) or first
            request = PolicyRequest(document=document, digest=digest_of(document), based_on=newest.version)
            policies.insert_policies(connection, next_version(newest, request, world.now))

        world.database.transact(work)

    def pools(self, world: World) -> list[str]:
        return sorted(node.pool for node in world.nodes() if node.state is NodeState.READY)

    def wait_for(self, world: World, pools: list[str]) -> None:
        for _ in world.ticks_until(f"nodes of {pools}"):
            if self.pools(world) == pools:
                return

    def test_without_any_the_settings_say_how_many(self, ready: World) -> None:
        assert self.pools(ready) == ["local"] * 3

    def test_another_maximum_changes_the_nodes(self, ready: World) -> None:
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 5}}")
        self.wait_for(ready, ["local"] * 5)
        self.apply(
            ready, "pools: {local: {sizes: [local], max_nodes: 1}, more: {sizes: [local], max_nodes: 2}}"
        )
        self.wait_for(ready, ["local", "more", "more"])
        self.apply(ready, "pools: {}")
        self.wait_for(ready, [])

    def test_a_schedule_holds_in_its_window(self, ready: World) -> None:
        window = "{begins: 0 0 * * *, lasts_s: 20m}"
        schedules = f"[{{window: {window}, max_nodes: 1}}]"
        self.apply(ready, f"pools: {{local: {{sizes: [local], max_nodes: 4, schedules: {schedules}}}}}")
        self.wait_for(ready, ["local"])
        ready.now = 1200.0
        self.wait_for(ready, ["local"] * 4)

    def test_a_node_that_works_is_drained_before_it_goes(self, ready: World) -> None:
        job_id = train_on(ready, ready.nodes())
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 2, drain_s: 40}}")
        ready.tick()
        (leaving,) = [node for node in ready.nodes() if node.state is NodeState.DRAINING]
        assert ready.cluster.drains == {leaving.id: ready.now + 40.0} == {leaving.id: leaving.deadline_at}
        assert leaving.message is not None
        assert leaving.message.startswith(
            "pool 'local' has 3 nodes, 2 are allowed by max_nodes of the policies; "
        )
        assert leaving.message.endswith(f"what works on it has until {clock(leaving.deadline_at or 0.0)}")
        ready.tick(4)
        assert len(ready.cluster.machines) == 3, "its worker still saves what it has"
        work_on(ready, job_id, [node for node in ready.nodes() if node.id != leaving.id])
        ready.tick(2)
        assert len(ready.cluster.machines) == 2
        assert node_events_of(ready, leaving.id)[-3:] == ["node.draining", "node.terminating", "node.gone"]
        assert ready.job(job_id).state is JobState.RUNNING

    def test_nodes_without_work_go_at_once_and_before_those_that_work(self, ready: World) -> None:
        newest = ready.nodes()[-1]
        train_on(ready, [newest])
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 1}}")
        ready.tick(2)
        assert list(ready.cluster.machines) == [newest.id]

    def test_a_node_whose_workers_only_start_is_drained_and_left_until_they_have_gone(
        self, ready: World
    ) -> None:
        ready.cluster.in_use = {node.id for node in ready.nodes()}
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 0, drain_s: 40}}")
        ready.tick(4)
        assert set(ready.cluster.drains) == set(ready.cluster.machines) == ready.cluster.in_use
        ready.cluster.in_use.pop()
        ready.tick()
        assert set(ready.cluster.machines) == ready.cluster.in_use
        ready.now += 40.0
        ready.tick()
        assert ready.cluster.machines == {}

    def test_a_node_that_is_given_work_while_it_is_returned_is_not_ended(self, ready: World) -> None:
        first = ready.nodes()[0]
        ready.cluster.taken_before_drain = {first.id}
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 0, drain_s: 40}}")
        ready.tick(4)
        assert list(ready.cluster.machines) == [first.id]
        ready.cluster.in_use = set()
        ready.tick()
        assert ready.cluster.machines == {}

    def test_a_node_is_not_ended_before_ray_has_heard_that_it_goes(self, ready: World) -> None:
        ready.cluster.drain_error = ConnectionError("the head does not answer")
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 0, drain_s: 40}}")
        ready.tick(4)
        assert len(ready.cluster.machines) == 3
        ready.cluster.drain_error = None
        ready.tick(2)
        assert ready.cluster.machines == {}

    def test_the_node_whose_job_has_least_to_lose_is_drained(self, ready: World) -> None:
        *old_on, young_on = ready.nodes()
        for node in old_on:
            train_on(ready, [node])
        ready.now += 100.0
        train_on(ready, [young_on])
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 2}}")
        ready.tick()
        assert list(ready.cluster.drains) == [young_on.id]

    def test_a_drained_node_whose_worker_stays_goes_at_its_deadline(self, ready: World) -> None:
        train_on(ready, ready.nodes())
        schedule = "{window: {begins: 20 0 * * *, lasts_s: 20m}, max_nodes: 0}"
        self.apply(
            ready,
            f"pools: {{local: {{sizes: [local], max_nodes: 3, drain_s: 40, schedules: [{schedule}]}}}}",
        )
        ready.tick()
        assert ready.cluster.drains == {}
        ready.now = 1200.0
        ready.tick()
        assert set(ready.cluster.drains.values()) == {1240.25}
        ready.now = 1239.75
        ready.tick()
        assert set(ready.cluster.machines) == set(ready.cluster.drains)
        ready.tick()
        assert ready.cluster.machines == {}

    def test_a_pool_that_is_removed_is_drained_as_well(self, ready: World) -> None:
        train_on(ready, ready.nodes()[:2])
        self.apply(ready, "pools: {}")
        ready.tick()
        assert set(ready.cluster.drains.values()) == {ready.now + DRAIN_S}
        ready.tick()
        assert list(ready.cluster.machines) == [node.id for node in ready.nodes()[:2]]
        assert [node.state for node in ready.nodes()][:2] == [NodeState.DRAINING] * 2

    def test_a_version_that_contradicts_itself_for_a_newer_release_is_followed_all_the_same(
        self, ready: World
    ) -> None:
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 2}}")
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 4, min_nodes: 5}}")
        self.wait_for(ready, ["local"] * 4)

    def test_a_version_that_cannot_be_read_any_more_is_passed_over(
        self, ready: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.apply(ready, "pools: {local: {sizes: [local], max_nodes: 2}}")
        kind = ready.database.url.get_backend_name()
        self.apply(ready, f"pools: {{local: {{sizes: [local], a_key_of_later: {kind}}}}}")
        self.wait_for(ready, ["local"] * 2)
        assert caplog.text.count("version 2 of the policies is refused here, an earlier one is followed") == 1

    def test_a_rule_vetoes_launches_until_it_does_not(
        self, ready: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moods = ["the power is out"]

        def power(view: ClusterView, launch: Launch) -> str | None:
            assert len(view.nodes) >= 3
            assert view.now == ready.now
            return moods[0] if moods else None

        rules = {"power": power, "broken": lambda view, launch: 1 / 0}
        monkeypatch.setattr(installed_rules, "_load", rules.__getitem__)
        self.apply(ready, "{pools: {local: {sizes: [local], max_nodes: 5}}, rules: [broken, power]}")
        ready.tick(3)
        assert self.pools(ready) == ["local"] * 3
        moods.clear()
        self.wait_for(ready, ["local"] * 5)
        page = ready.database.query(lambda c: policies.page_of_cluster_events(c, after=0, limit=9))
        assert [(event.kind, event.message) for event in page[1:]] == [
            (
                "policies.rule_failed",
                "the rule broken is passed over: it raised ZeroDivisionError: division by zero",
            ),
            (
                "policies.launch_vetoed",
                "the rule power lets no node of pool local be launched: the power is out",
            ),
        ]

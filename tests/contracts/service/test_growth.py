"""What a tick of the controller sends to the database does not grow with the jobs, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from remora.spec.worker_sizes import WorkerSizes, sizes_of
from remora.states import EndReason, JobState
from service.settings import Settings
from service.store import costs, job_history, jobs, metric_summaries
from service.store.database import Database
from service.store.job_history import LogFilter
from service.store.tables import metrics
from tests.service_fakes import World
from tests.statements import statements
from trainers.plan import DriverGone

#: Jobs that run, and ten times as many.
FEW, MANY = 3, 30


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(database, Settings(home=tmp_path, nodes=3, node_cpus=MANY // 3, lease_s=5.0))
    made.tick(6)
    return made


def run_jobs(world: World, count: int) -> list[str]:
    """That many more jobs that run than those that do."""
    job_ids = [world.submit() for _ in range(count)]
    world.tick(2)
    for job_id in job_ids:
        world.launcher.driver_of(job_id).report("progress", state="running", world_size=1)
    world.tick(2)
    assert {world.job(job_id).state for job_id in job_ids} == {JobState.RUNNING}
    return job_ids


def report(world: World, job_ids: list[str], step: int) -> None:
    for job_id in job_ids:
        driver = world.launcher.driver_of(job_id)
        driver.report("metric", step=step, world_size=1, values={"loss": 0.5})
        driver.report("log", rank=0, stream="stdout", text=f"step {step}")
        driver.report(
            "checkpoint",
            step=step,
            world_size=1,
            size_bytes=7,
            location="/c",
            files={"a": 7},
            committed_at=1.0,
        )


def sent_in_a_tick(world: World) -> list[str]:
    with statements(world.database) as sent:
        world.tick()
    return sent


def lines_of(world: World, job_id: str) -> list[str]:
    page = world.database.query(lambda c: job_history.page_of_logs(c, job_id, LogFilter(), 0, 1000))
    assert [line.seq for line in page] == list(range(1, len(page) + 1))
    return [line.text for line in page]


class TestAnAccount:
    def test_is_read_in_as_many_statements_for_ten_times_the_jobs(self, world: World) -> None:
        began_at = world.now
        counts, spans = [], []
        for number in (FEW, MANY - FEW):
            job_ids = run_jobs(world, number)
            (address,) = {node.address for node in world.nodes()[:1]}
            for job_id in job_ids:
                driver = world.launcher.driver_of(job_id)
                driver.report("progress", world_size=1, workers={address: 1})
            report(world, job_ids, number)
            world.tick(2)
            with statements(world.database) as sent:
                rows = world.database.query(lambda c: costs.rows_between(c, began_at, world.now))
            counts.append(len(sent))
            spans.append({one.name for one in rows.spans([(0, 10**15)])})
        assert counts[0] == counts[1] <= 7
        assert len(spans[1]) >= MANY


class TestATick:
    def test_sends_as_many_statements_for_ten_times_the_jobs_that_report(self, world: World) -> None:
        job_ids = run_jobs(world, FEW)
        report(world, job_ids, 1)
        few = sent_in_a_tick(world)
        job_ids += run_jobs(world, MANY - FEW)
        report(world, job_ids, 2)
        many = sent_in_a_tick(world)
        assert [world.job(job_id).checkpoint_step for job_id in job_ids] == [2] * MANY
        assert len(many) == len(few) < 62

    def test_loads_the_attempts_that_live_once_in_each_thread(self, world: World) -> None:
        report(world, run_jobs(world, FEW), 1)
        loads = [one for one in sent_in_a_tick(world) if "FROM attempts" in one and "state IN" in one]
        # The jobs of these attempts are asked for by the same condition.
        assert len([one for one in loads if "FROM jobs" not in one]) == 2

    def test_reads_the_specification_of_each_job_once_until_it_is_another_one(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[int] = []

        def counted(spec: Mapping[str, Any], least: int, most: int) -> WorkerSizes:
            read.append(most)
            return sizes_of(spec, least, most)

        monkeypatch.setattr("service.queue.specification.sizes_of", counted)
        running = run_jobs(world, FEW)
        waiting = [world.submit(worker_resources={"CPU": float(MANY)}) for _ in range(MANY - FEW)]
        for step in range(1, 6):
            report(world, running, step)
            world.tick()
        assert {world.job(job_id).state for job_id in waiting} == {JobState.QUEUED}
        assert len(read) == MANY
        resized = replace(world.job(running[0]), max_workers=2)
        world.database.transact(lambda connection: jobs.save_sizes(connection, resized))
        world.tick(5)
        assert read[MANY:] == [2]

    def test_that_ends_all_of_them_sends_no_more_for_ten_times_as_many(self, world: World) -> None:
        counts = []
        for number in (FEW, MANY):
            job_ids = run_jobs(world, number)
            for job_id in job_ids:
                world.launcher.driver_of(job_id).gone = DriverGone(EndReason.HEAD_LOST, "the head died")
            counts.append(len(sent_in_a_tick(world)))
            assert {world.job(job_id).state for job_id in job_ids} == {JobState.QUEUED}
            assert {world.attempts(job_id)[0].released_at for job_id in job_ids} == {world.now}
            for job_id in job_ids:
                world.cancel(job_id)
        assert counts[0] == counts[1]

    def test_that_starts_or_stops_them_sends_no_more_for_ten_times_as_many(self, world: World) -> None:
        counts: list[tuple[int, ...]] = []
        # Nodes are idle for the first time, and used again, in the first round.
        for number in (FEW, FEW, MANY):
            job_ids = [world.submit() for _ in range(number)]
            starting, launched = len(sent_in_a_tick(world)), len(sent_in_a_tick(world))
            for job_id in job_ids:
                assert world.attempts(job_id)[0].launched_at is not None
                world.launcher.driver_of(job_id).obeys = False
                world.cancel(job_id)
            stopping = len(sent_in_a_tick(world))
            assert {world.attempts(job_id)[0].stop_reason for job_id in job_ids} == {EndReason.CANCELLED}
            world.now += 11.0
            world.controller.holder.step(world.now)
            killing = len(sent_in_a_tick(world))
            assert {world.job(job_id).state for job_id in job_ids} == {JobState.CANCELLED}
            counts.append((starting, launched, stopping, killing))
        assert counts[1] == counts[2]


class TestOneAttemptsFault:
    def test_in_what_it_reports_fails_no_other_one(
        self, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        job_ids = run_jobs(world, FEW)
        bad = job_ids[1]
        from service.queue import lifecycle

        right = lifecycle.observe_step

        def wrong(job: jobs.JobRow, *rest: object) -> lifecycle.Decision:
            if job.id == bad:
                raise lifecycle.TransitionError("nothing leads there")
            return right(job, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(lifecycle, "observe_step", wrong)
        report(world, job_ids, 1)
        world.tick()
        assert [lines_of(world, job_id) for job_id in job_ids] == [["step 1"], [], ["step 1"]]
        assert "cannot be brought on" in caplog.text
        monkeypatch.undo()
        report(world, job_ids, 2)
        world.tick()
        assert [lines_of(world, job_id) for job_id in job_ids] == [["step 1", "step 2"]] * 3

    def test_that_the_database_finds_fails_no_other_one(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The transaction of all is rolled back with everything in it, and each gets its own."""
        job_ids = run_jobs(world, FEW)
        from service.store import ingest

        right = ingest._numbered_lines

        def wrong(batch: ingest._Batch) -> list[dict[str, object]]:
            # No text that a database takes: `seq` is a part of the key and must not be empty.
            return [row | {"seq": None} if batch.job.id == job_ids[1] else row for row in right(batch)]

        monkeypatch.setattr(ingest, "_numbered_lines", wrong)
        report(world, job_ids, 1)
        world.tick()
        assert [lines_of(world, job_id) for job_id in job_ids] == [["step 1"], [], ["step 1"]]
        assert world.job(job_ids[1]).step is None
        monkeypatch.undo()
        world.tick()
        assert [lines_of(world, job_id) for job_id in job_ids] == [["step 1"]] * 3

    def test_more_than_one_transaction_takes_loses_nothing(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from service.loops import live_attempts

        monkeypatch.setattr(live_attempts, "MOST_ROWS", 4)
        job_ids = run_jobs(world, FEW)
        for _ in range(3):
            report(world, job_ids, 1)
        world.tick()
        assert [lines_of(world, job_id) for job_id in job_ids] == [["step 1"] * 3] * 3


class TestASubmission:
    def test_builds_no_statement_again(self, database: Database) -> None:
        """Two thirds of its time went into that."""
        from remora.spec.spec import JobSpec
        from service.api.submissions import SubmissionOrder, carry_out
        from service.api.writes import Noted
        from service.queue.intake import JobLimits
        from service.store import submissions

        spec = JobSpec.from_mapping({"command": "python train.py", "name": "digits"})
        sent: list[list[object]] = []

        def note(connection: object, statement: object, *rest: object) -> None:
            sent[-1].append(statement)

        event.listen(database.engine, "before_execute", note)
        for key in ("a", "b"):
            sent.append([])
            order = SubmissionOrder(
                key=key,
                digest="0" * 64,
                create=lambda connection, *_: (submissions.submit(connection, spec, 1000.0).id, "{}"),
                jobs=1,
                project="default",
                now=1000.0,
            )
            database.transact(lambda c, order=order: carry_out(c, order, JobLimits(10), Noted()))
        event.remove(database.engine, "before_execute", note)
        # PostgreSQL is also asked for the number of the transaction.
        # One of them stores what an alert about the wait begins with.
        assert len(sent[0]) == (6 if database.is_sqlite else 7)
        assert all(first is second for first, second in zip(*sent, strict=True))


class TestPointsOfMetrics:
    @pytest.mark.parametrize("every", [1, 7, 1000])
    def test_read_no_more_steps_of_a_job_that_is_ten_times_as_long(
        self, world: World, monkeypatch: pytest.MonkeyPatch, every: int
    ) -> None:
        monkeypatch.setattr(metric_summaries, "SUMMARISED", 200)
        (job_id,) = run_jobs(world, 1)
        read: list[int] = []
        add = metric_summaries._Part.add

        def counted(part: metric_summaries._Part, step: int, *rest: Any) -> None:
            read.append(step)
            add(part, step, *rest)

        monkeypatch.setattr(metric_summaries._Part, "add", counted)
        for count in (200, 2_000, 20_000):
            add_steps(world, job_id, count, every)
            read.clear()
            points = world.database.query(lambda c: metric_summaries.few_points(c, job_id, -1, 20))
            assert points[-1].step == read[-1] == count * every
            assert len(points) == 20, "each part has steps that were drawn"
            assert len(read) == count if count == 200 else 100 < len(read) < 300


def add_steps(world: World, job_id: str, count: int, every: int) -> None:
    """The metrics of a job are those of this number of steps, with `every` between two of them."""
    rows = [
        {
            "job_id": job_id,
            "step": number * every,
            "at": 1.0,
            "attempt": 1,
            "world_size": 1,
            "data": {"loss": 0.5},
        }
        for number in range(1, count + 1)
    ]

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(metrics).where(metrics.c.job_id == job_id))
        connection.execute(sa.insert(metrics), rows)

    world.database.transact(work)

"""Those who wait: what a start of one costs the others, where each stands, and what is counted, on both databases."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sqlalchemy as sa

from cluster.scheduling.queue_order import queue_key
from remora.states import JobState
from service.settings import Settings
from service.store import jobs
from service.store.database import Database
from service.store.tables import attempts as attempts_table
from service.store.tables import jobs as jobs_table
from service.store.totals import _WAITING, totals
from tests.service_fakes import World, job_row
from tests.statements import statements


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(database, Settings(home=tmp_path, nodes=1, node_cpus=1, lease_s=5.0))
    made.tick(5)
    return made


def finish(world: World, job_id: str) -> None:
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    world.tick()


class TestAPlaceInTheLine:
    @pytest.mark.parametrize("waiting", [5, 50])
    def test_a_job_that_starts_changes_no_other_but_the_next_one(self, world: World, waiting: int) -> None:
        job_ids = [world.submit() for _ in range(waiting + 2)]
        world.tick(2)
        versions = [world.job(job_id).version for job_id in job_ids]
        finish(world, job_ids[0])
        world.tick()
        assert world.job(job_ids[1]).state is JobState.ADMITTED
        changed = [
            one for one, before in zip(job_ids, versions, strict=True) if world.job(one).version != before
        ]
        assert changed == job_ids[:3]

    def test_is_how_many_wait_before_it(self, world: World) -> None:
        first = world.submit()
        world.tick()
        waiting = [world.submit() for _ in range(4)]
        urgent = world.submit(priority=90)
        hopeless = world.submit(priority=95, min_workers=7, max_workers=7)
        world.tick()
        found = world.database.query(
            lambda c: jobs.jobs_ahead(c, [*waiting, urgent], world.now, in_projects=False)
        )
        assert world.job(hopeless).reason == "waiting_for_nodes"
        assert [found[job_id] for job_id in (urgent, *waiting)] == [0, 1, 2, 3, 4]
        assert "is next" in str(world.job(urgent).message)
        finish(world, first)

    def test_counts_the_next_one_also_while_that_waits_for_nodes(
        self, database: Database, tmp_path: Path
    ) -> None:
        world = World(database, Settings(home=tmp_path, nodes=1, node_cpus=1, lease_s=5.0))
        world.cluster.joins = False
        waiting = [world.submit() for _ in range(3)]
        world.tick()
        assert world.job(waiting[0]).reason == "waiting_for_nodes"
        found = world.database.query(lambda c: jobs.jobs_ahead(c, waiting[1:], world.now, in_projects=False))
        assert [found[job_id] for job_id in waiting[1:]] == [1, 2]


class TestTheLine:
    def test_the_first_of_each_project_are_those_in_front(self, database: Database) -> None:
        chance = random.Random(7)
        rows = [
            job_row(
                1000.0 + chance.randrange(3),
                project=chance.choice("abc"),
                priority=chance.randrange(3),
                not_before=chance.choice([0.0, 0.0, 9999.0]),
            )
            for _ in range(60)
        ]
        database.transact(lambda c: [c.execute(sa.insert(jobs_table), vars(row)) for row in rows])
        found = database.query(lambda c: jobs.queued_jobs_of_each(c, "default", 2000.0, 4))
        due = sorted((row for row in rows if row.not_before <= 2000.0), key=queue_key)
        of_each = {project: [row for row in due if row.project == project][:4] for project in "abc"}
        assert [row.id for row in found] == [row.id for row in due if row in of_each[row.project]]
        assert database.query(lambda c: [row.id for row in jobs.queued_jobs(c, "default", 2000.0, 9)]) == [
            row.id for row in due[:9]
        ]

    @pytest.mark.parametrize("wanted", ["queued_jobs", "queued_jobs_of_each", "overdue_jobs", "totals"])
    def test_is_read_by_its_index(self, database: Database, wanted: str) -> None:
        """Whatever there is beside what is wanted costs nothing: nothing is scanned, and nothing sorted."""
        rows = [vars(job_row(project=f"p{number % 3}", wait_time_s=9e9)) for number in range(2000)]
        database.transact(lambda c: c.execute(sa.insert(jobs_table), rows))
        read = {
            "queued_jobs": lambda c: jobs.queued_jobs(c, "default", 2000.0, 10),
            "queued_jobs_of_each": lambda c: jobs.queued_jobs_of_each(c, "default", 2000.0, 10),
            "overdue_jobs": lambda c: jobs.overdue_jobs(c, "default", 2000.0),
            "totals": lambda c: [c.execute(one) for one in (_WAITING[c.dialect.name],)],
        }[wanted]
        if not database.is_sqlite:
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE jobs")
        plan = explained(database, read)
        assert "ix_jobs_line" in plan or "ix_jobs_overdue" in plan, plan
        assert "TEMP B-TREE" not in plan or wanted == "totals", plan
        assert "Seq Scan" not in plan, plan
        assert "SCAN jobs\n" not in plan, plan


def explained(database: Database, read: object) -> str:
    """How the database would carry out the first statement that `read` sends."""
    kept: list[tuple[str, object]] = []

    def note(connection: object, cursor: object, statement: str, parameters: object, *rest: object) -> None:
        kept.append((statement, parameters))

    with database._reading.connect() as connection:
        sa.event.listen(connection, "before_cursor_execute", note)
        read(connection)  # type: ignore[operator]
        sa.event.remove(connection, "before_cursor_execute", note)
        statement, parameters = next(one for one in kept if "jobs" in one[0])
        words = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
        rows = connection.exec_driver_sql(words + statement, parameters)  # type: ignore[arg-type]
        return "\n".join(str(row[-1]) for row in rows) + "\n"


class TestTotals:
    def test_are_what_a_count_of_everything_finds(self, world: World) -> None:
        job_ids = [world.submit(retry_limit=1) for _ in range(6)]
        ends = [("exit_code", 3), ("completed", 0), ("exit_code", 3), ("node_lost", None), ("completed", 0)]
        for number, (reason, code) in enumerate(ends):
            for _ in world.ticks_until("a job runs"):
                if world.launcher.drivers:
                    break
            (driver,) = world.launcher.drivers.values()
            driver.report("progress", state="running", world_size=1)
            driver.report("progress", repeated_steps=number, lost_s=number / 2)
            driver.report("ended", end_reason=reason, message="", exit_code=code)
            world.tick()
        world.cancel(job_ids[-1])
        kept = world.database.query(lambda connection: totals(connection, world.now))

        def scanned(connection: sa.Connection) -> tuple[dict[str, int], dict[str, int], int, float]:
            def count(column: sa.Column[str]) -> dict[str, int]:
                statement = sa.select(column, sa.func.count()).where(column.is_not(None)).group_by(column)
                return {str(word): number for word, number in connection.execute(statement)}

            c = jobs_table.c
            sums = connection.execute(sa.select(sa.func.sum(c.repeated_steps), sa.func.sum(c.lost_s))).one()
            return count(c.state), count(attempts_table.c.end_reason), int(sums[0]), float(sums[1])

        states, reasons, repeated, lost = world.database.query(scanned)
        assert kept.jobs_by_state == states
        assert kept.attempts_by_end_reason == reasons
        assert (kept.repeated_steps, kept.lost_s) == (repeated, pytest.approx(lost))

    def test_no_table_of_what_has_ended_is_read_for_them(self, database: Database) -> None:
        with statements(database) as sent:
            database.query(lambda connection: totals(connection, 1000.0))
        # What is kept, jobs, those that wait, who waits longest, nodes, refusals and leases.
        assert len(sent) == 7 + database.is_sqlite
        for one in sent:
            assert "FROM attempts" not in one
            assert "FROM jobs" not in one or "WHERE state" in one.replace("\n", "")

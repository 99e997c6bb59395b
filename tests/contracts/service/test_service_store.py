"""The store keeps its promises on SQLite and on PostgreSQL."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.exc import IntegrityError

from cluster.scheduling.queue_order import queue_key
from remora.states import AttemptState, EndReason, JobState, NodeState
from service.queue import lifecycle
from service.queue.lifecycle import Decision
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.store import job_history, jobs, leases, nodes
from service.store.database import Database
from service.store.failures import Fenced, StoreError
from service.store.ids import is_id, new_id
from service.store.ingest import ingest
from service.store.job_history import LogFilter
from service.store.leases import Lease
from service.store.migrate import migrate
from service.store.tables import metadata
from tests.postgres import PostgresServer
from tests.service_fakes import hold_lease, job_row, records
from trainers.plan import Record

T = TypeVar("T")

RUNNING = ("progress", {"state": "running", "world_size": 2})
LINE = ("log", {"rank": 0, "stream": "stdout", "text": "hello"})
DONE = ("ended", {"end_reason": "completed", "message": "done", "exit_code": 0})


def take_lease(database: Database, owner: str = "me") -> Lease:
    return database.transact(lambda connection: hold_lease(connection, owner))


def submit(database: Database, **fields: Any) -> JobRow:
    row = job_row(**fields)
    return database.transact(lambda connection: jobs.insert_job(connection, lifecycle.submit(row)))


def start(database: Database, job_id: str) -> AttemptRow:
    def work(connection: sa.Connection) -> AttemptRow:
        job = jobs.lock_job(connection, job_id)
        assert job is not None
        decision = lifecycle.start_attempt(job, new_id("att", 1000.0), 1000.0)
        jobs.save(connection, job, decision)
        assert decision.attempt is not None
        return decision.attempt

    return database.transact(work)


def take_in(database: Database, lease: Lease, attempt: AttemptRow, new: list[Record]) -> AttemptRow:
    after = database.transact(lambda connection: ingest(connection, lease, attempt.id, new, 1002.0))
    assert after is not None
    return after


def read(database: Database, work: Callable[[sa.Connection], T]) -> T:
    return database.query(work)


def job_of(database: Database, job_id: str) -> JobRow:
    job = read(database, lambda connection: jobs.get_job(connection, job_id))
    assert job is not None
    return job


def events_of(database: Database, job_id: str) -> list[tuple[int, str]]:
    page = read(database, lambda connection: job_history.page_of_events(connection, job_id, 0, 1000))
    return [(event.seq, event.kind) for event in page]


class TestMigrations:
    def test_they_build_exactly_the_tables(self, database: Database) -> None:
        def difference(connection: sa.Connection) -> list[Any]:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return list(compare_metadata(context, metadata))

        assert read(database, difference) == []

    def test_they_keep_partial_indexes(self, database: Database) -> None:
        def unique_live(connection: sa.Connection) -> Any:
            (index,) = [
                one
                for one in sa.inspect(connection).get_indexes("attempts")
                if one["name"] == "uq_attempts_live"
            ]
            return index["unique"], index["dialect_options"]

        unique, options = read(database, unique_live)
        assert unique
        assert "starting" in str(next(value for name, value in options.items() if name.endswith("_where")))

    def test_a_newer_database_is_refused_with_one_sentence(self, database: Database) -> None:
        database.transact(
            lambda connection: connection.exec_driver_sql("UPDATE alembic_version SET version_num='9'")
        )
        with pytest.raises(StoreError, match="another version of Remora"):
            migrate(database)


def _migrate_in_a_process(url: str, ready: Any, go: Any) -> None:
    database = Database(url)
    ready.release()
    go.wait(30)
    migrate(database)
    database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_that_start_at_once_migrate_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: PostgresServer | None = None
    url = f"sqlite:///{tmp_path / 'new.db'}"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        url = server.create(migrated=False)
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    processes = [context.Process(target=_migrate_in_a_process, args=(url, ready, go)) for _ in range(3)]
    for process in processes:
        process.start()
    for _ in processes:
        assert ready.acquire(timeout=60)
    go.set()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    if server is not None:
        server.drop(url)


class TestLeases:
    def test_a_token_grows_with_every_owner_and_renewals_with_every_renewal(self, database: Database) -> None:
        first = take_lease(database, "a")
        assert first.token == 1
        assert database.transact(lambda connection: leases.renew(connection, first, 1004.0))
        row = database.query(lambda connection: leases.get(connection, "controller"))
        assert row is not None
        assert (row.owner, row.token, row.renewals, row.renewed_at) == ("a", 1, 2, 1004.0)
        assert take_lease(database, "b").token == 2
        assert not database.transact(lambda connection: leases.renew(connection, first, 1010.0))

    def test_one_that_was_renewed_meanwhile_is_not_taken(self, database: Database) -> None:
        lease = take_lease(database, "a")
        seen = database.query(lambda connection: leases.get(connection, "controller"))
        assert database.transact(lambda connection: leases.renew(connection, lease, 1000.0))
        assert database.transact(lambda c: leases.take(c, seen, "controller", "b", 1000.0)) is None

    def test_a_former_owner_is_fenced_and_nothing_of_it_is_written(self, database: Database) -> None:
        job = submit(database)
        old = take_lease(database, "a")
        take_lease(database, "b")

        def work(connection: sa.Connection) -> None:
            connection.exec_driver_sql("UPDATE jobs SET message='written by the former owner'")
            old.guard(connection)

        with pytest.raises(Fenced):
            database.transact(work)
        assert job_of(database, job.id).message != "written by the former owner"

    def test_giving_up_frees_it_and_a_former_owner_can_do_neither(self, database: Database) -> None:
        lease = take_lease(database, "a")
        database.transact(lambda connection: leases.give_up(connection, lease))
        row = database.query(lambda connection: leases.get(connection, "controller"))
        assert row is not None
        assert row.is_free
        assert not database.transact(lambda connection: leases.renew(connection, lease, 1000.0))
        assert take_lease(database, "b").token == 2
        database.transact(lambda connection: leases.give_up(connection, lease))
        assert take_lease(database, "b").token == 2

    @pytest.mark.parametrize("is_new", [True, False])
    def test_many_rivals_have_one_winner(self, database: Database, is_new: bool) -> None:
        if not is_new:
            take_lease(database, "gone")
        seen = database.query(lambda connection: leases.get(connection, "controller"))

        def take(owner: int) -> Lease | None:
            return database.transact(lambda c: leases.take(c, seen, "controller", str(owner), 1000.0))

        with ThreadPoolExecutor(8) as pool:
            winners = [lease for lease in pool.map(take, range(16)) if lease is not None]
        assert len(winners) == 1


def test_rows_are_the_values_that_were_stored(database: Database) -> None:
    """They are made in a short way, which has to come out the same: equal, hashed by nothing else, and complete."""
    job = submit(database, run_time_s=3.5, worker_resources={"CPU": 2.0, "GPU": 0.5})
    attempt = start(database, job.id)
    (found,) = read(database, lambda c: jobs.live_attempts(c, "default"))
    assert found == (job_of(database, job.id), attempt)
    assert vars(found[0]) == vars(JobRow(**vars(found[0])))
    assert vars(found[1]) == vars(attempt)
    assert found[0].facts.sizes == job.facts.sizes


class TestIngest:
    def test_records_become_rows(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        checkpoint = {"step": 4, "world_size": 2, "size_bytes": 7, "location": "/x", "committed_at": 1001.0}
        new = records(
            RUNNING,
            LINE,
            ("metric", {"step": 4, "world_size": 2, "values": {"loss": 0.5, "bad": float("nan")}}),
            ("checkpoint", {**checkpoint, "files": {"a": 7}}),
            ("event", {"kind": "node.lost", "message": "a node died", "data": {"kind": 1, "at": 2}}),
        )
        after = take_in(database, lease, attempt, new)
        assert (after.state, after.last_record_seq) == (AttemptState.RUNNING, 5)
        stored = job_of(database, job.id)
        assert (stored.state, stored.step, stored.world_size, stored.checkpoint_step) == (
            JobState.RUNNING,
            4,
            2,
            4,
        )
        (point,) = read(database, lambda c: job_history.page_of_metrics(c, job.id, -1, 10))
        assert point.values == {"loss": 0.5, "bad": None}
        (line,) = read(database, lambda c: job_history.page_of_logs(c, job.id, LogFilter(), 0, 10))
        assert (line.seq, line.text) == (1, "hello")
        assert [kind for _, kind in events_of(database, job.id)] == [
            "job.queued",
            "job.admitted",
            "attempt.created",
            "attempt.started",
            "job.running",
            "training.began",
            "checkpoint.committed",
            "node.lost",
        ]

    def test_a_search_reads_a_bounded_number_of_lines_at_once(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        texts = [*(["other"] * 4), "found", *(["other"] * 4)]
        lines = [("log", {"rank": 0, "stream": "stdout", "text": text}) for text in texts]
        take_in(database, lease, attempt, records(RUNNING, *lines))
        wanted = LogFilter(contains="FOUND")

        def scan(after: int) -> tuple[list[int], int | None]:
            found, position = read(database, lambda c: job_history.scan(c, job.id, wanted, after, 10, 3))
            return [line.seq for line in found], position

        assert [scan(0), scan(3), scan(6)] == [([], 3), ([5], 6), ([], None)]

        def go_on(search: job_history.TailSearch) -> job_history.TailSearch:
            return read(database, lambda c: job_history.go_on_with_tail(c, job.id, wanted, search, 3))

        search = read(database, lambda c: job_history.begin_tail(c, job.id, wanted, 1))
        looks = [search := go_on(search) for _ in range(3)]
        assert [(one.upto, one.missing) for one in looks] == [(6, 1), (4, 0), (4, 0)]

    def test_what_comes_twice_is_stored_once(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        new = records(RUNNING, LINE, LINE, LINE)
        take_in(database, lease, attempt, new[:3])
        take_in(database, lease, attempt, new)
        take_in(database, lease, attempt, [*new[1:], *new[1:]])
        lines = read(database, lambda c: job_history.page_of_logs(c, job.id, LogFilter(), 0, 10))
        assert [line.seq for line in lines] == [1, 2, 3]

    def test_nothing_behind_a_gap_is_taken_until_the_gap_is_filled(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        new = records(RUNNING, LINE, LINE, LINE)
        assert take_in(database, lease, attempt, [new[0], new[3]]).last_record_seq == 1
        assert take_in(database, lease, attempt, new[1:]).last_record_seq == 4
        assert "records.lost" not in [kind for _, kind in events_of(database, job.id)]

    def test_records_that_the_driver_lost_are_reported(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        assert take_in(database, lease, attempt, records(RUNNING, LINE, first=3)).last_record_seq == 4
        assert "records.lost" in [kind for _, kind in events_of(database, job.id)]

    def test_an_ended_attempt_writes_no_more(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        take_in(database, lease, attempt, records(RUNNING, DONE, LINE))
        take_in(database, lease, attempt, records(LINE, ("progress", {"state": "running"}), first=3))
        stored = job_of(database, job.id)
        assert (stored.state, stored.log_seq) == (JobState.SUCCEEDED, 0)
        assert events_of(database, job.id)[-1] == (stored.event_seq, "job.succeeded")

    def test_a_repeated_step_replaces_its_values(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        metric = [("metric", {"step": 1, "world_size": 1, "values": {"loss": loss}}) for loss in (3.0, 2.0)]
        take_in(database, lease, attempt, records(*metric))
        take_in(
            database, lease, attempt, records(("metric", {**metric[0][1], "values": {"loss": 1.0}}), first=3)
        )
        points = read(database, lambda c: job_history.page_of_metrics(c, job.id, -1, 10))
        assert [(point.step, point.values) for point in points] == [(1, {"loss": 1.0})]

    def test_a_removed_checkpoint_is_gone(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        body = {"world_size": 1, "size_bytes": 1, "location": "/x", "files": {}, "committed_at": 1.0}
        new = records(*[("checkpoint", {**body, "step": step}) for step in (10, 20)])
        take_in(database, lease, attempt, new)
        gone = [("checkpoint", {"step": step, "deleted": True}) for step in (10, 99)]
        take_in(database, lease, attempt, records(*gone, first=3))
        left = read(database, lambda c: job_history.job_checkpoints(c, job.id))
        assert [checkpoint.step for checkpoint in left] == [20]
        assert job_of(database, job.id).checkpoint_step == 20

    def test_a_fenced_controller_stores_nothing(self, database: Database) -> None:
        job, old = submit(database), take_lease(database, "a")
        attempt = start(database, job.id)
        take_lease(database, "b")
        with pytest.raises(Fenced):
            take_in(database, old, attempt, records(RUNNING, LINE))
        assert job_of(database, job.id).log_seq == 0

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("metric", {"step": "many", "world_size": 1, "values": {}}),
            ("metric", {"step": 10**30, "world_size": 1, "values": {}}),
            ("log", {"rank": 0, "stream": "printer", "text": ""}),
            ("ended", {"end_reason": "bored", "message": ""}),
            ("progress", {"state": "dreaming"}),
            ("checkpoint", {}),
            ("surprise", {}),
        ],
    )
    def test_an_unreadable_record_is_reported_and_passed(
        self, database: Database, kind: str, body: dict[str, Any]
    ) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        assert take_in(database, lease, attempt, records((kind, body), LINE)).last_record_seq == 2
        assert events_of(database, job.id)[-1][1] == "record.refused"
        assert job_of(database, job.id).log_seq == 1

    def test_each_line_of_a_text_is_a_row(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        text = ("log", {"rank": 3, "stream": "stderr", "text": "one\n\ntwo\x00\nthree"})
        new = records(text, LINE)
        assert take_in(database, lease, attempt, new).last_record_seq == 2
        take_in(database, lease, attempt, new)
        lines = read(database, lambda c: job_history.page_of_logs(c, job.id, LogFilter(), 0, 10))
        assert [line.text for line in lines] == ["one", "", "two\ufffd", "three", "hello"]
        assert [line.seq for line in lines] == [1, 2, 3, 4, 5]
        assert {(line.rank, line.stream) for line in lines[:4]} == {(3, "stderr")}

    def test_any_text_and_any_number_can_be_stored(self, database: Database) -> None:
        job, lease = submit(database), take_lease(database)
        attempt = start(database, job.id)
        new = records(
            ("log", {"rank": 0, "stream": "stderr", "text": "zero \x00 half \udc80 ok \u00e9\U0001f600"}),
            ("metric", {"step": 1, "world_size": 1, "values": {"a\x00": 10**400, "b": float("inf"), "c": 1}}),
            ("event", {"kind": "x", "message": "\ud800", "data": {"\x00": ["\x00", float("nan"), 10**40]}}),
            ("progress", {"state": "draining", "step": 2**53}),
            ("ended", {"end_reason": "exit_code", "message": "\x00", "exit_code": -9}),
        )
        assert take_in(database, lease, attempt, new).end_reason is EndReason.EXIT_CODE
        (line,) = read(database, lambda c: job_history.page_of_logs(c, job.id, LogFilter(), 0, 10))
        assert line.text.startswith("zero \ufffd half ")
        assert line.text.endswith("ok \u00e9\U0001f600")
        (point,) = read(database, lambda c: job_history.page_of_metrics(c, job.id, -1, 10))
        assert point.values == {"a\ufffd": None, "b": None, "c": 1.0}


class TestJobs:
    def test_the_database_refuses_that_a_job_runs_twice(self, database: Database) -> None:
        job = submit(database)
        attempt = start(database, job.id)
        twin = AttemptRow(id=new_id("att", 1000.0), job_id=job.id, attempt=2, created_at=1000.0)
        with pytest.raises(IntegrityError):
            database.transact(
                lambda connection: jobs.save(connection, job, Decision(job, twin), attempt_before=None)
            )
        live = read(database, lambda connection: jobs.live_attempts(connection, "default"))
        assert [one.id for _, one in live] == [attempt.id]

    def test_the_queue_is_read_in_its_order(self, database: Database) -> None:
        for number, priority in enumerate((50, 90, 50, 10, 90)):
            submit(database, priority=priority, now=1000.0 + number)
        late = submit(database, priority=100, not_before=5000.0)
        queue = read(database, lambda connection: jobs.queued_jobs(connection, "default", 1000.0, 100))
        assert queue == sorted(queue, key=queue_key)
        assert len(queue) == 5
        assert late.id not in [job.id for job in queue]

    def test_the_line_of_one_project_does_not_hide_anothers(self, database: Database) -> None:
        for number in range(6):
            submit(database, project="many", priority=50 + number, now=1000.0 + number)
        few = submit(database, project="few", priority=10)
        queue = read(database, lambda connection: jobs.queued_jobs_of_each(connection, "default", 1000.0, 3))
        assert queue == sorted(queue, key=queue_key)
        assert [job.project for job in queue] == ["many", "many", "many", "few"]
        assert [job.priority for job in queue] == [55, 54, 53, 10]
        assert queue[-1] == few

    def test_followers_see_every_event_although_many_write(self, database: Database) -> None:
        """Numbers are given under the job's lock, so a reader that has come to N finds nothing below N later."""
        job = submit(database)
        seen: list[int] = []
        writing = threading.Event()
        writing.set()

        def follow() -> None:
            last = 0
            while True:
                goes_on = writing.is_set()
                page = database.query(
                    partial(job_history.page_of_events, job_id=job.id, after=last, limit=1000)
                )
                seen.extend(event.seq for event in page)
                last = page[-1].seq if page else last
                if not page and not goes_on:
                    return

        def append(number: int) -> None:
            def work(connection: sa.Connection) -> None:
                row = jobs.lock_job(connection, job.id)
                assert row is not None
                jobs.save(connection, row, lifecycle.wait(row, f"reason {number}", "waits", 1000.0))

            database.transact(work)

        reader = threading.Thread(target=follow)
        reader.start()
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(append, range(120)))
        writing.clear()
        reader.join(60)
        assert seen == list(range(1, 122))

    def test_pages_of_jobs_have_no_overlap_and_no_hole(self, database: Database) -> None:
        ids = [submit(database, project="even" if number % 2 == 0 else "odd").id for number in range(9)]
        seen: list[str] = []
        before: str | None = None
        while True:
            page = read(
                database,
                lambda connection, before=before: list(  # type: ignore[misc]
                    jobs.page_of_jobs(
                        connection, states=[JobState.QUEUED], projects=["even"], before=before, limit=2
                    )
                ),
            )
            if not page:
                break
            seen += [job.id for job in page]
            before = page[-1].id
        assert seen == ids[::2][::-1]

    def test_a_page_of_jobs_that_is_left_early_frees_its_connection(self, database: Database) -> None:
        ids = [submit(database).id for _ in range(30)]

        def first(connection: sa.Connection) -> str:
            page = jobs.page_of_jobs(connection, states=[], projects=None, before=None, limit=100)
            return next(page).id

        # More often than there are connections.
        assert [read(database, first) for _ in range(20)] == 20 * [ids[-1]]
        assert submit(database).id != ids[-1]


class TestNodes:
    def test_the_newest_of_a_kind_that_has_worked_is_found_behind_others_that_ended_later(
        self, database: Database
    ) -> None:
        failed = ended_node(is_failure=True)
        worked, other = ended_node(ready_at=2.0), ended_node(ready_at=2.0, offering="b")
        never_ready, cut_off = ended_node(), ended_node(ready_at=2.0, is_cut_off=True)
        sick = ended_node(ready_at=2.0, sick_since=3.0)

        def insert(connection: sa.Connection) -> None:
            for row in (failed, worked, other, never_ready, cut_off, sick):
                nodes.insert_node(connection, lifecycle.NodeDecision(row))

        database.transact(insert)
        found = read(database, lambda connection: nodes.current_nodes(connection, "default", 10.0, 0.0))
        assert [row.id for row in found] == [failed.id, worked.id, other.id, sick.id]
        assert read(database, lambda connection: nodes.current_nodes(connection, "default", 10.0)) == []


def ended_node(**fields: Any) -> NodeRow:
    """A node of a kind that ended at 4 s."""
    values: dict[str, Any] = {"offering": "a", "created_at": 1.0, "state": NodeState.GONE, "ended_at": 4.0}
    return NodeRow(id=new_id("node", 1.0), pool="p", **{**values, **fields})


class TestTransactions:
    def test_one_that_fails_leaves_its_neighbours_alone(self, database: Database) -> None:
        """Writes that gather are committed together; the bad one among them is alone with its error."""

        def write(number: int) -> str:
            row = job_row()

            def work(connection: sa.Connection) -> str:
                jobs.insert_job(connection, lifecycle.submit(row))
                if number % 5 == 0:
                    raise RuntimeError("on purpose")
                return row.id

            try:
                return database.transact(work)
            except RuntimeError:
                return ""

        with ThreadPoolExecutor(10) as pool:
            written = [job_id for job_id in pool.map(write, range(40)) if job_id]
        assert len(written) == 32
        page = read(
            database, lambda c: list(jobs.page_of_jobs(c, states=[], projects=None, before=None, limit=100))
        )
        assert {job.id for job in page} == set(written)

    def test_two_openings_of_one_database_write_at_the_same_time(self, database: Database) -> None:
        """The API and the controller are two processes; here, two openings with connections of their own."""
        other = Database(database.url.render_as_string(hide_password=False))
        row = submit(database)

        def touch(opened: Database) -> None:
            def work(connection: sa.Connection) -> None:
                job = jobs.lock_job(connection, row.id)
                assert job is not None
                jobs.save(connection, job, lifecycle.wait(job, f"reason {job.version}", "waits", 1000.0))

            opened.transact(work)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(touch, [database, other] * 30))
        other.close()
        assert job_of(database, row.id).version == 61


def test_ids_grow_and_are_recognised() -> None:
    made = [new_id("job", 1000.0) for _ in range(1000)] + [new_id("job", 1001.0)]
    assert made == sorted(set(made))
    assert all(is_id("job", one) for one in made)
    assert not any(
        is_id("job", one) for one in ("", "job_", made[0] + "\n", made[0].lower(), "att" + made[0][3:])
    )


@pytest.mark.parametrize(
    "url", ["mysql://x/y", "sqlite://", "no url", "sqlite:///:memory:", "postgresql+asyncpg:/"]
)
def test_a_bad_database_url_is_one_sentence(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Database(url)
    assert "\n" not in str(caught.value)

"""What is old is deleted, and what something needs stays, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import JobState, NodeState
from service.queue import lifecycle
from service.queue.ledger import Entries, UseRow
from service.queue.rows import NewEvent, NodeRow
from service.settings import Settings
from service.store import bundles, costs, job_history, jobs, ledger, nodes
from service.store.database import Database
from service.store.idempotency_keys import SavedAnswer, save_answer
from service.store.ids import new_id
from service.store.job_history import LogFilter
from service.store.nodes import page_of_nodes
from service.store.policies import append_cluster_event, newest_quotas, page_of_cluster_events
from service.store.pruning import Limits, Step, prune
from service.store.tables import jobs as jobs_table
from service.store.tables import log_lines, models, uses
from service.store.totals import totals
from tests.postgres import PostgresServer
from tests.service_fakes import World
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest, ShardFile
from trainers.storage import Storage

pytestmark = pytest.mark.postgresql_in_soak

DAY = 86_400.0
LIMITS = Limits(age_s=30 * DAY, jobs=1000, rows=1000)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(
        database, Settings(home=tmp_path, storage_url=str(tmp_path / "storage"), nodes=2, node_cpus=4)
    )
    made.tick(5)
    return made


def train(world: World, *reported: tuple[str, dict[str, Any]], lines: int = 5, **fields: Any) -> str:
    """A job that ran, reported this, and has succeeded."""
    job_id = world.submit(**fields)
    world.tick()
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", state="running", world_size=1)
    for number in range(lines):
        driver.report("log", rank=0, stream="stdout", text=str(number))
        driver.report("metric", step=number, world_size=1, values={"loss": 0.5})
    for kind, body in reported:
        driver.report(kind, **(commit(world, job_id, **body) if kind == "checkpoint" else body))
    driver.report("ended", end_reason="completed", message="", exit_code=0)
    world.tick(2)
    assert world.job(job_id).state is JobState.SUCCEEDED
    return job_id


def commit(world: World, job_id: str, step: int, **fields: Any) -> dict[str, Any]:
    """A checkpoint in the storage, with which the list is compared; what a driver reports of it."""
    storage = Storage(world.settings.storage)
    file = ShardFile(name="w", size_bytes=1, sha256="0" * 64, rank=0)
    manifest = Manifest(
        job_id=job_id, step=step, attempt=1, generation=1, world_size=1, committed_at=1000.0, files=(file,)
    )
    storage.write_bytes(f"jobs/{job_id}/checkpoints/{manifest.folder}/w", b"x")
    location = Catalog(storage, job_id).commit(manifest)
    return {"step": step, "location": location, "files": {"w": 1}, "committed_at": 1000.0, **fields}


def prune_all(world: World, limits: Limits = LIMITS, most: int = 2000) -> list[Step]:
    steps = [Step(has_more=True)]
    while steps[-1].has_more:
        assert len(steps) < 500
        steps.append(world.database.transact(lambda c: prune(c, limits, world.now, most)))
    return steps[1:]


def exists(world: World, job_id: str) -> bool:
    return world.database.query(lambda c: jobs.get_job(c, job_id)) is not None


def left_of(world: World, job_id: str) -> tuple[int, int, int]:
    """Log lines, metrics and events."""
    return world.database.query(
        lambda c: (
            len(job_history.page_of_logs(c, job_id, LogFilter(), 0, 10_000)),
            len(job_history.page_of_metrics(c, job_id, -1, 10_000)),
            len(job_history.page_of_events(c, job_id, 0, 10_000)),
        )
    )


CHECKPOINT = (
    "checkpoint",
    {
        "step": 4,
        "world_size": 1,
        "size_bytes": 1,
    },
)
OUTPUT = ("output", {"location": "/o", "committed_at": 1000.0, "files": {}})


class TestJobs:
    def test_that_ended_long_ago_go_with_all_that_was_theirs(self, world: World) -> None:
        old = train(world)
        world.now += 31 * DAY
        recent = train(world)
        running = world.submit(max_workers=1)
        world.tick()
        prune_all(world)
        assert not exists(world, old)
        assert left_of(world, old) == (0, 0, 0)
        assert world.attempts(old) == []
        assert left_of(world, recent)[:2] == (5, 5)
        assert world.job(running).state is JobState.ADMITTED
        found = world.database.query(lambda connection: totals(connection, world.now))
        assert found.jobs_by_state["succeeded"] == 1
        assert found.attempts_by_end_reason["completed"] == 2, "counters do not go back"

    def test_go_by_the_time_since_their_end_and_the_oldest_first(self, world: World) -> None:
        job_ids = []
        for _ in range(3):
            job_ids.append(train(world, lines=10))
            world.now += DAY
        first_step = world.now + 27.5 * DAY  # since their ends: 30.5, 29.5 and 28.5 days
        world.now = first_step
        prune_all(world)
        assert [exists(world, job_id) for job_id in job_ids] == [False, True, True]
        world.now += 30 * DAY
        step = world.database.transact(lambda c: prune(c, LIMITS, world.now, 5))
        assert step.has_more
        assert [left_of(world, job_id)[0] for job_id in job_ids[1:]] == [5, 10]

    @pytest.mark.parametrize("left", [(), (CHECKPOINT,)])
    def test_go_to_the_last_one_however_many_they_are(
        self, world: World, left: tuple[tuple[str, dict[str, Any]], ...]
    ) -> None:
        """Also where nothing but telemetry is deleted, so that `remora prune` does not end before the last of them."""
        job_ids = [train(world, *left, lines=1) for _ in range(25)]
        world.now += 31 * DAY
        steps = prune_all(world)
        assert [left_of(world, job_id)[:2] for job_id in job_ids] == [(0, 0)] * 25
        assert sum(step.jobs for step in steps) == (0 if left else 25)

    def test_beyond_their_number_go_however_young(self, world: World) -> None:
        job_ids = []
        for _ in range(5):
            world.now += 10.0
            job_ids.append(train(world, lines=1))
        prune_all(world, replace(LIMITS, jobs=2))
        assert [exists(world, job_id) for job_id in job_ids] == [False, False, False, True, True]

    def test_that_have_the_age_stay_as_long_as_they_are_among_the_newest(self, world: World) -> None:
        job_id = train(world)
        world.now += 10 * DAY
        newer = [train(world) for _ in range(2)]
        prune_all(world, replace(LIMITS, jobs=3))
        assert all(exists(world, one) for one in (job_id, *newer))

    @pytest.mark.parametrize("left", [CHECKPOINT, OUTPUT])
    def test_that_left_something_keep_their_row_and_how_they_ended(
        self, world: World, left: tuple[str, dict[str, Any]]
    ) -> None:
        job_id = train(world, left)
        world.now += 31 * DAY
        prune_all(world)
        assert exists(world, job_id)
        assert left_of(world, job_id) == (0, 0, 1)
        (last,) = world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 10))
        assert (last.kind, last.seq) == ("job.succeeded", world.job(job_id).event_seq)
        assert prune_all(world) == [Step()], "it is not looked at again"

    def test_whose_output_became_a_model_stay(self, world: World) -> None:
        job_id = train(world)
        model = {
            "name": "digits", "version": 1, "job_id": job_id, "attempt": 1, "output": "final", "created_at": 1.0,
            "digest": "sha256:0", "command": ["python"], "location": "/o", "files": {},
        }  # fmt: skip
        world.database.transact(lambda c: c.execute(sa.insert(models).values(model)))
        world.now += 31 * DAY
        prune_all(world)
        assert exists(world, job_id)
        assert left_of(world, job_id) == (0, 0, 1)

    def test_of_which_something_may_still_run_stay(self, world: World) -> None:
        world.launcher.loses_kills = True
        job_id = world.submit()
        world.tick()
        world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
        world.tick(2)
        world.now += 31 * DAY
        prune_all(world)
        assert exists(world, job_id)

    def test_whose_submission_may_come_again_stay(self, world: World) -> None:
        job_id = train(world)
        answer = SavedAnswer("0" * 64, job_id, "{}")
        world.database.transact(lambda c: save_answer(c, "key", answer, world.now))
        prune_all(world, replace(LIMITS, jobs=0))
        assert exists(world, job_id)

    def test_go_in_steps_that_are_bounded(self, world: World) -> None:
        job_ids = [train(world, lines=30) for _ in range(3)]
        world.now += 31 * DAY
        steps = prune_all(world, most=20)
        assert len(steps) > 9
        assert all(step.rows <= 20 for step in steps if not step.nodes)
        assert sum(step.jobs for step in steps) == 3
        assert not any(exists(world, job_id) for job_id in job_ids)

    def test_that_run_keep_their_newest_lines(self, world: World) -> None:
        job_id = world.submit()
        world.tick()
        driver = world.launcher.driver_of(job_id)
        for number in range(30):
            driver.report("log", rank=0, stream="stdout", text=str(number))
        world.tick()
        prune_all(world, replace(LIMITS, rows=12), most=7)
        page = world.database.query(lambda c: job_history.page_of_logs(c, job_id, LogFilter(), 0, 100))
        assert [line.text for line in page] == [str(number) for number in range(18, 30)]
        driver.report("log", rank=0, stream="stdout", text="next")
        world.tick()
        assert world.job(job_id).log_seq == 31

    def test_that_ended_keep_all_that_they_had_then_until_they_are_old(self, world: World) -> None:
        job_id = train(world, lines=30)
        prune_all(world, replace(LIMITS, rows=12))
        assert left_of(world, job_id)[:2] == (30, 30)

    def test_that_run_keep_their_newest_events_and_in_steps_that_are_bounded(self, world: World) -> None:
        job_id = world.submit()
        world.tick()
        driver = world.launcher.driver_of(job_id)
        for number in range(30):
            driver.report("event", kind="worker_group.started", message=str(number), data={})
        world.tick()
        newest = world.job(job_id).event_seq
        assert newest > 30
        steps = prune_all(world, replace(LIMITS, rows=12), most=7)
        assert max(step.rows for step in steps) == 7
        page = world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 100))
        assert [event.seq for event in page] == list(range(newest - 11, newest + 1))


def node_of(world: World, job_id: str | None, price_per_hour: float) -> NodeRow:
    """A machine that lasted 100 s, bought for a job."""
    return NodeRow(
        id=new_id("node", world.now),
        pool="spot",
        created_at=world.now,
        price_per_hour=price_per_hour,
        launched_at=world.now,
        ended_at=world.now + 100.0,
        state=NodeState.GONE,
        bought_for=job_id,
    )


def use_of(world: World, job_id: str, node: NodeRow) -> UseRow:
    """A job's use of a machine, of 50 s."""
    return UseRow(
        job_id=job_id,
        node_id=node.id,
        began_at=world.now,
        attempt=1,
        workers=1,
        pool="spot",
        offering="",
        part=1.0,
        price_per_hour=node.price_per_hour,
        ended_at=world.now + 50.0,
    )


def store(world: World, node: NodeRow, *uses: UseRow) -> None:
    def work(connection: sa.Connection) -> None:
        nodes.insert_node(connection, lifecycle.NodeDecision(node))
        ledger.write(connection, Entries(begun=uses))

    world.database.transact(work)


class TestTheBill:
    def test_stays_the_sum(self, world: World) -> None:
        job_id = train(world)
        node = node_of(world, job_id, 3.6)
        use = use_of(world, job_id, node)
        store(world, node, use)
        world.now += 400 * DAY

        def bill(connection: sa.Connection) -> tuple[object, ...]:
            return (
                ledger.uses_of(connection, job_id),
                costs.rows_between(connection, 0.0, world.now),
            )

        before = world.database.query(bill)
        prune_all(world)
        after = world.database.query(bill)
        assert after == before
        assert after[0] == [use]

    def test_keeps_jobs_that_used_a_machine_of_another_or_that_one_was_bought_for(self, world: World) -> None:
        buyer, user, free = (train(world) for _ in range(3))
        node = node_of(world, buyer, 3.6)
        store(world, node, use_of(world, user, node))
        gratis = node_of(world, free, 0.0)
        store(world, gratis, use_of(world, free, gratis))
        world.now += 31 * DAY
        prune_all(world)
        assert [exists(world, job_id) for job_id in (buyer, user, free)] == [True, True, False]
        left = sa.select(uses.c.job_id)
        assert list(world.database.query(lambda c: c.execute(left).scalars().all())) == [user]


class TestNodesAndEvents:
    def test_gone_nodes_that_cost_nothing_go_after_a_week_at_least(self, world: World) -> None:
        alive = {node.id for node in world.nodes()}
        lost = min(alive)
        world.cluster.lose(lost)
        world.tick(4)
        alive = {node.id for node in world.nodes() if node.ended_at is None}
        world.now += 2 * DAY
        prune_all(world, replace(LIMITS, age_s=0.0))
        known = world.database.query(lambda c: page_of_nodes(c, before=None, limit=100))
        assert lost in {node.id for node in known}
        world.now += 6 * DAY
        prune_all(world, replace(LIMITS, age_s=0.0))
        known = world.database.query(lambda c: page_of_nodes(c, before=None, limit=100))
        assert {node.id for node in known} == alive
        assert world.database.query(lambda c: nodes.page_of_node_events(c, lost, 0, 10)) == []

    def test_nodes_stay_for_as_long_as_is_said_and_go_to_the_last_one(self, world: World) -> None:
        gone = [node_of(world, None, 0.0) for _ in range(25)]
        for node in gone:
            store(world, node)
        ids = {node.id for node in gone}

        def left() -> set[str]:
            known = world.database.query(lambda c: page_of_nodes(c, before=None, limit=100))
            return ids & {node.id for node in known}

        world.now += 29 * DAY
        prune_all(world)
        assert left() == ids
        world.now += 2 * DAY
        steps = prune_all(world)
        assert left() == set()
        assert sum(step.nodes for step in steps) == 25

    def test_old_events_of_the_cluster_go_but_not_the_quotas_in_force(self, world: World) -> None:
        def report(kind: str, units: int = 0) -> None:
            event = NewEvent(at=world.now, kind=kind, message="x", data={"units": {"a": units}})
            world.database.transact(lambda c: append_cluster_event(c, event))

        for number, kind in enumerate(("other", "offerings.read", "quotas.read", "quotas.read", "other")):
            report(kind, number)
        world.now += 2 * DAY
        report("other")
        world.now += 29 * DAY
        report("other")
        prune_all(world)
        page = world.database.query(lambda c: page_of_cluster_events(c, after=0, limit=100))
        assert [event.kind for event in page] == ["offerings.read", "quotas.read", "other", "other"]
        assert world.database.query(lambda c: newest_quotas(c, "default")) == {"a": 3}

    def test_old_events_of_the_cluster_go_to_the_last_one_in_steps_that_are_bounded(
        self, world: World
    ) -> None:
        def work(connection: sa.Connection) -> None:
            for _ in range(50):
                append_cluster_event(connection, NewEvent(at=world.now, kind="other", message="x", data={}))

        world.database.transact(work)
        world.now += 31 * DAY
        steps = prune_all(world)
        assert world.database.query(lambda c: page_of_cluster_events(c, after=0, limit=100)) == []
        assert max(step.rows for step in steps) <= 20


class TestTheController:
    def test_deletes_what_is_old_by_itself(self, world: World) -> None:
        job_id = train(world)
        world.now += 31 * DAY
        world.tick(3)
        assert not exists(world, job_id)

    def test_goes_on_at_the_next_tick_while_there_is_more_and_looks_once_a_minute_else(
        self, world: World
    ) -> None:
        job_ids = [train(world, lines=0) for _ in range(25)]
        world.now += 31 * DAY
        world.tick(4)  # a second
        assert not any(exists(world, job_id) for job_id in job_ids)
        job_id = train(world)
        world.database.transact(
            lambda c: c.execute(sa.update(jobs_table).where(jobs_table.c.id == job_id).values(ended_at=1.0))
        )
        world.now += 40.0
        world.tick()
        assert exists(world, job_id), "it looked less than a minute ago"
        world.now += 30.0
        world.tick()
        assert not exists(world, job_id)

    def test_that_has_to_keep_everything_does(self, database: Database, tmp_path: Path) -> None:
        world = World(database, Settings(home=tmp_path, nodes=2, node_cpus=4, retention_days=0))
        world.tick(5)
        job_id = train(world)
        world.now += 3100 * DAY
        world.tick(3)
        assert left_of(world, job_id)[:2] == (5, 5)

    def test_deletes_bundles_that_no_job_uses(self, world: World, tmp_path: Path) -> None:
        digests = {name: f"sha256:{name * 64}" for name in "abc"}
        for digest in digests.values():
            world.database.transact(lambda c, digest=digest: bundles.use(c, digest, world.now))
            file = tmp_path / "storage" / bundles.bundle_name(digest)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"zip")
        spec = {"command": ["python", "train.py"], "code": digests["a"], "name": "digits"}
        needs_a = world.submit(spec=spec, min_workers=99, max_workers=99)
        world.now += 2 * DAY
        world.database.transact(lambda c: bundles.use(c, digests["b"], world.now))
        world.now += 29 * DAY
        world.tick(3)

        def kept() -> list[str]:
            return [
                name
                for name, digest in digests.items()
                if (tmp_path / "storage" / bundles.bundle_name(digest)).exists()
            ]

        assert kept() == ["a", "b"], "a job that waits needs one, and one was used 29 days ago"
        world.cancel(needs_a)
        world.now += 3 * DAY
        world.tick(3)
        assert kept() == ["a"], "it was needed three days ago"
        world.now += 28 * DAY
        world.tick(3)
        assert kept() == []
        assert world.database.transact(lambda c: bundles.use(c, digests["c"], world.now))

    def test_deletes_all_bundles_that_are_old_in_ticks_that_follow_each_other(
        self, world: World, tmp_path: Path
    ) -> None:
        folder = tmp_path / "storage" / "bundles"
        folder.mkdir(parents=True)
        for number in range(25):
            digest = f"sha256:{number:064}"
            world.database.transact(lambda c, digest=digest: bundles.use(c, digest, world.now))
            (tmp_path / "storage" / bundles.bundle_name(digest)).write_bytes(b"zip")
        world.now += 31 * DAY
        world.tick(5)
        assert list(folder.iterdir()) == []

    def test_tries_again_where_the_storage_does_not_delete_a_bundle(
        self, world: World, tmp_path: Path
    ) -> None:
        digest = f"sha256:{'e' * 64}"
        storage = tmp_path / "storage"
        storage.mkdir(exist_ok=True)
        (storage / "bundles").write_bytes(b"a file where the folder should be: the storage fails")
        world.database.transact(lambda c: bundles.use(c, digest, world.now))
        world.now += 31 * DAY
        world.tick()
        assert world.database.query(lambda c: bundles.is_going(c, digest)), "its file may be there still"
        assert not world.database.transact(lambda c: bundles.use(c, digest, world.now))
        (storage / "bundles").unlink()
        (storage / "bundles").mkdir()
        (storage / bundles.bundle_name(digest)).write_bytes(b"zip")
        world.now += 61.0
        world.tick()
        assert not (storage / bundles.bundle_name(digest)).exists()
        assert not world.database.query(lambda c: bundles.is_going(c, digest))

    def test_leaves_a_bundle_that_is_used_between_the_look_and_the_mark(
        self, postgres: PostgresServer
    ) -> None:
        """On SQLite there is one writer at a time, and nothing between."""
        url = postgres.create()
        database, another = Database(url), Database(url)
        digest = f"sha256:{'f' * 64}"
        database.transact(lambda c: bundles.use(c, digest, 0.0))
        used: list[bool] = []

        def look_and_mark(connection: sa.Connection) -> list[str]:
            def submit(_: Any, __: Any, statement: str, *rest: Any) -> None:
                if statement.startswith("UPDATE bundles") and not used:
                    used.append(another.transact(lambda c: bundles.use(c, digest, 50 * DAY)))

            sa.event.listen(connection, "before_cursor_execute", submit)
            return bundles.choose(connection, 20 * DAY, 50 * DAY, 10)

        try:
            assert database.transact(look_and_mark) == []
            assert used == [True]
            assert not database.query(lambda c: bundles.is_going(c, digest))
        finally:
            database.close()
            another.close()
            postgres.drop(url)

    def test_goes_on_with_a_bundle_that_another_had_begun_to_delete(
        self, world: World, tmp_path: Path
    ) -> None:
        digest = f"sha256:{'d' * 64}"
        file = tmp_path / "storage" / bundles.bundle_name(digest)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"zip")
        world.database.transact(lambda c: bundles.use(c, digest, world.now))
        world.now += 31 * DAY
        # The controller dies here, between the row and the file.
        assert world.database.transact(lambda c: bundles.choose(c, world.now - DAY, world.now, 10)) == [
            digest
        ]
        assert not world.database.transact(lambda c: bundles.use(c, digest, world.now))
        assert world.database.query(lambda c: bundles.is_going(c, digest))
        world.tick()
        assert not file.exists()
        assert world.database.transact(lambda c: bundles.use(c, digest, world.now))


def test_lines_are_counted_on_where_they_were_deleted(world: World) -> None:
    """A number is never given twice, so that a client that follows a job misses nothing and sees nothing twice."""
    job_id = train(world, CHECKPOINT)
    newest = world.job(job_id).log_seq
    world.now += 31 * DAY
    prune_all(world)
    assert world.job(job_id).log_seq == newest
    count = sa.select(sa.func.count()).select_from(log_lines)
    assert world.database.query(lambda c: c.execute(count).scalar()) == 0

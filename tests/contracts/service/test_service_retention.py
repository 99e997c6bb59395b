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
from service.store import bundles, jobs, ledger, nodes, telemetry
from service.store.answers import SavedAnswer, save_answer
from service.store.database import Database
from service.store.ids import new_id
from service.store.nodes import page_of_nodes
from service.store.policies import append_cluster_event, newest_quotas, page_of_cluster_events
from service.store.retention import Limits, Step, prune
from service.store.tables import log_lines
from service.store.telemetry import LogFilter
from service.store.totals import totals
from tests.service_fakes import World

DAY = 86_400.0
LIMITS = Limits(age_s=30 * DAY, jobs=1000, rows=1000)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(
        database, Settings(home=tmp_path, storage_url=str(tmp_path / "storage"), nodes=2, node_cpus=4)
    )
    made.tick(5)
    return made


def train(world: World, *told: tuple[str, dict[str, Any]], lines: int = 5, **fields: Any) -> str:
    """A job that ran, told this, and has succeeded."""
    job_id = world.submit(**fields)
    world.tick()
    driver = world.launcher.driver_of(job_id)
    driver.tell("progress", state="running", world_size=1)
    for number in range(lines):
        driver.tell("log", rank=0, stream="stdout", text=str(number))
        driver.tell("metric", step=number, world_size=1, values={"loss": 0.5})
    for kind, body in told:
        driver.tell(kind, **body)
    driver.tell("ended", end_reason="completed", message="", exit_code=0)
    world.tick(2)
    assert world.job(job_id).state is JobState.SUCCEEDED
    return job_id


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
            len(telemetry.page_of_logs(c, job_id, LogFilter(), 0, 10_000)),
            len(telemetry.page_of_metrics(c, job_id, -1, 10_000)),
            len(telemetry.page_of_events(c, job_id, 0, 10_000)),
        )
    )


CHECKPOINT = (
    "checkpoint",
    {
        "step": 4,
        "world_size": 1,
        "size_bytes": 7,
        "location": "/c",
        "files": {"a": 7},
        "committed_at": 1000.0,
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
        found = world.database.query(totals)
        assert found.jobs_by_state["succeeded"] == 1
        assert found.attempts_by_end_reason["completed"] == 2, "counters do not go back"

    def test_beyond_their_number_go_however_young(self, world: World) -> None:
        job_ids = []
        for _ in range(5):
            world.now += 10.0
            job_ids.append(train(world, lines=1))
        prune_all(world, replace(LIMITS, jobs=2))
        assert [exists(world, job_id) for job_id in job_ids] == [False, False, False, True, True]

    @pytest.mark.parametrize("left", [CHECKPOINT, OUTPUT])
    def test_that_left_something_keep_their_row_and_how_they_ended(
        self, world: World, left: tuple[str, dict[str, Any]]
    ) -> None:
        job_id = train(world, left)
        world.now += 31 * DAY
        prune_all(world)
        assert exists(world, job_id)
        assert left_of(world, job_id) == (0, 0, 1)
        (last,) = world.database.query(lambda c: telemetry.page_of_events(c, job_id, 0, 10))
        assert (last.kind, last.seq) == ("job.succeeded", world.job(job_id).event_seq)
        assert prune_all(world) == [Step()], "it is not looked at again"

    def test_of_which_something_may_still_run_stay(self, world: World) -> None:
        world.launcher.loses_kills = True
        job_id = world.submit()
        world.tick()
        world.launcher.driver_of(job_id).tell("ended", end_reason="completed", message="", exit_code=0)
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
            driver.tell("log", rank=0, stream="stdout", text=str(number))
        world.tick()
        prune_all(world, replace(LIMITS, rows=12), most=7)
        page = world.database.query(lambda c: telemetry.page_of_logs(c, job_id, LogFilter(), 0, 100))
        assert [line.text for line in page] == [str(number) for number in range(18, 30)]
        driver.tell("log", rank=0, stream="stdout", text="next")
        world.tick()
        assert world.job(job_id).log_seq == 31


class TestTheBill:
    def test_stays_the_sum(self, world: World) -> None:
        job_id = train(world)
        node = NodeRow(
            id=new_id("node", world.now),
            pool="spot",
            created_at=world.now,
            price_per_hour=3.6,
            launched_at=world.now,
            ended_at=world.now + 100.0,
            state=NodeState.GONE,
            bought_for=job_id,
        )
        use = UseRow(
            job_id=job_id,
            node_id=node.id,
            began_at=world.now,
            attempt=1,
            workers=1,
            pool="spot",
            offering="",
            part=1.0,
            price_per_hour=3.6,
            ended_at=world.now + 50.0,
        )

        def work(connection: sa.Connection) -> None:
            nodes.insert_node(connection, lifecycle.NodeDecision(node))
            ledger.write(connection, Entries(begun=(use,)))

        world.database.transact(work)
        world.now += 400 * DAY

        def bill(connection: sa.Connection) -> tuple[object, ...]:
            return (
                ledger.uses_of(connection, job_id),
                ledger.paid_nodes(connection, 0.0, world.now),
                ledger.projects_of(connection, [job_id]),
            )

        before = world.database.query(bill)
        prune_all(world)
        after = world.database.query(bill)
        assert after == before
        assert after[0] == [use]


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

    def test_old_events_of_the_cluster_go_but_not_the_quotas_in_force(self, world: World) -> None:
        def tell(kind: str) -> None:
            event = NewEvent(at=world.now, kind=kind, message="x", data={"units": {"a": 1}})
            world.database.transact(lambda c: append_cluster_event(c, event))

        for kind in ("other", "quotas.read", "quotas.read", "other"):
            tell(kind)
        world.now += 31 * DAY
        tell("other")
        prune_all(world)
        page = world.database.query(lambda c: page_of_cluster_events(c, after=0, limit=100))
        assert [event.kind for event in page] == ["quotas.read", "other"]
        assert world.database.query(newest_quotas) == {"a": 1}


class TestTheController:
    def test_deletes_what_is_old_by_itself(self, world: World) -> None:
        job_id = train(world)
        world.now += 31 * DAY
        world.tick(3)
        assert not exists(world, job_id)

    def test_that_is_told_to_keep_everything_does(self, database: Database, tmp_path: Path) -> None:
        world = World(database, Settings(home=tmp_path, nodes=2, node_cpus=4, retention_days=0))
        world.tick(5)
        job_id = train(world)
        world.now += 3100 * DAY
        world.tick(3)
        assert left_of(world, job_id)[:2] == (5, 5)

    def test_deletes_bundles_that_nobody_uses(self, world: World, tmp_path: Path) -> None:
        digests = {name: f"sha256:{name * 64}" for name in "abc"}
        for digest in digests.values():
            world.database.transact(lambda c, digest=digest: bundles.use(c, digest, world.now))
            file = tmp_path / "storage" / bundles.bundle_name(digest)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"zip")
        spec = {"command": ["python", "train.py"], "code": digests["a"], "name": "digits"}
        needs_a = world.submit(spec=spec, min_workers=99, max_workers=99)
        world.now += 29 * DAY
        world.database.transact(lambda c: bundles.use(c, digests["b"], world.now))
        world.now += 2 * DAY
        world.tick(3)

        def kept() -> list[str]:
            return [
                name
                for name, digest in digests.items()
                if (tmp_path / "storage" / bundles.bundle_name(digest)).exists()
            ]

        assert kept() == ["a", "b"], "a job that waits needs one, and one was used two days ago"
        world.cancel(needs_a)
        world.now += 31 * DAY
        world.tick(3)
        assert kept() == []
        assert world.database.transact(lambda c: bundles.use(c, digests["c"], world.now))

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
    """A number is never given twice, so that whoever follows a job misses nothing and sees nothing twice."""
    job_id = train(world, CHECKPOINT)
    newest = world.job(job_id).log_seq
    world.now += 31 * DAY
    prune_all(world)
    assert world.job(job_id).log_seq == newest
    count = sa.select(sa.func.count()).select_from(log_lines)
    assert world.database.query(lambda c: c.execute(count).scalar()) == 0

"""The list of a job's checkpoints agrees with its storage for good, whichever process died before it reported what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.spec.spec import JobSpec
from remora.states import EndReason, JobState, NodeState
from remora.views import Checkpoint
from service.loops.listing import Listing, read_list
from service.queue import lifecycle
from service.queue.driver_records import CheckpointListRecord
from service.queue.rows import AttemptRow
from service.settings import Settings
from service.store import checkpoints, job_history, jobs
from service.store.checkpoints import EndedAttempts, ended_attempts
from service.store.database import Database
from service.store.ids import new_id
from tests.service_fakes import FakeDriver, World
from tests.statements import statements
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import MANIFEST_NAME, Manifest, ShardFile
from trainers.plan import DriverGone
from trainers.storage import Storage, StorageError

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(database, Settings(home=tmp_path, nodes=3, node_cpus=1, lease_s=5.0))
    for _ in made.ticks_until("three ready nodes"):
        if [node.state for node in made.nodes()] == [NodeState.READY] * 3:
            break
    return made


class Run:
    """A job whose driver commits into the storage, and reports it when it lives for so long."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.job_id = world.submit()
        world.tick(2)
        self.storage = Storage(world.settings.storage)
        self.catalog = Catalog(self.storage, self.job_id)

    @property
    def driver(self) -> FakeDriver:
        return self.world.launcher.driver_of(self.job_id)

    def commit(self, step: int, *, reports: bool = True) -> Manifest:
        file = ShardFile(name="w", size_bytes=1, sha256="0" * 64, rank=0)
        manifest = Manifest(
            job_id=self.job_id, step=step, attempt=self.driver.plan.attempt, generation=1, world_size=1,
            committed_at=1001.0, files=(file,),
        )  # fmt: skip
        self.storage.write_bytes(f"jobs/{self.job_id}/checkpoints/{manifest.folder}/w", b"x")
        location = self.catalog.commit(manifest)
        if reports:
            body: dict[str, Any] = {"step": step, "world_size": 1, "size_bytes": 1, "location": location}
            self.driver.report("checkpoint", **body, files={"w": 1}, committed_at=1001.0)
        return manifest

    def lose(self, reason: EndReason = EndReason.DRIVER_LOST) -> None:
        self.driver.gone = DriverGone(reason, "the driver died")

    @property
    def rows(self) -> list[Checkpoint]:
        return self.world.database.query(lambda c: job_history.job_checkpoints(c, self.job_id))

    @property
    def listed(self) -> list[int]:
        return [one.step for one in self.rows]

    def events(self, kind: str) -> list[dict[str, Any]]:
        page = self.world.database.query(lambda c: job_history.page_of_events(c, self.job_id, 0, 1000))
        return [dict(one.data) for one in page if one.kind == kind]

    def settle(self, ticks: int = 6) -> None:
        """Let readings come to their ends, and the ticks after them be done."""
        for _ in range(ticks):
            self.world.tick()
            self.world.controller.listing.wait(30.0)


def test_what_a_lost_driver_committed_is_listed_while_the_job_waits(world: World) -> None:
    run = Run(world)
    run.commit(10)
    world.tick()
    run.commit(20, reports=False)
    run.lose()
    world.launcher.failing["start"] = ConnectionError("the head does not answer")
    run.settle()
    assert run.listed == [10, 20]
    assert world.job(run.job_id).checkpoint_step == 20
    assert [one["step"] for one in run.events("checkpoint.committed")] == [10, 20]
    assert [Path(one.location).name for one in run.rows] == ["000000000010-1-1", "000000000020-1-1"]


def test_what_was_committed_between_the_last_poll_and_the_end_of_the_job_is_listed(world: World) -> None:
    run = Run(world)
    world.tick()
    run.commit(20, reports=False)
    world.cancel(run.job_id)
    run.lose(EndReason.HEAD_LOST)
    run.settle()
    assert world.job(run.job_id).state is JobState.CANCELLED
    assert run.listed == [20]
    assert world.attempts(run.job_id)[0].listed_at is not None


@pytest.mark.parametrize("fault", ["swept", "manifest", "file"])
def test_what_is_gone_is_listed_no_more_and_an_event_says_why(world: World, fault: str) -> None:
    run = Run(world)
    run.commit(10)
    gone = run.commit(20)
    world.tick()
    assert run.listed == [10, 20]
    folder = f"jobs/{run.job_id}/checkpoints/{gone.folder}"
    match fault:
        case "swept":
            run.storage.delete(folder)
        case "manifest":
            run.storage.write_bytes(f"{folder}/{MANIFEST_NAME}", b"torn")
        case _:
            run.storage.delete(f"{folder}/w")
    run.driver.report("ended", end_reason="completed", message="done", exit_code=0)
    run.settle()
    assert run.listed == [10]
    assert world.job(run.job_id).checkpoint_step == 10
    assert run.events("checkpoint.deleted") == [{"step": 20, "reason": "missing"}]


def test_a_new_attempt_reports_the_whole_list(world: World) -> None:
    run = Run(world)
    run.commit(10)
    world.tick()
    listed = read_list(run.job_id, world.settings.storage).checkpoints[0].model_dump()
    others = [{**listed, "step": step, "location": f"{listed['location']}-{step}"} for step in (30, 40)]
    run.driver.report("checkpoint", **{**listed, "step": 20})
    run.driver.report("checkpoints", checkpoints=others)
    run.driver.report("checkpoint", **{**listed, "step": 50})
    world.tick()
    assert run.listed == [30, 40, 50]
    assert run.events("checkpoint.deleted") == [{"step": 10, "reason": "missing"}]
    assert world.job(run.job_id).checkpoint_step == 50
    run.driver.report("checkpoints", checkpoints=others)
    run.driver.report("checkpoint", step=30, deleted=True, reason="damaged")
    world.tick()
    assert run.listed == [40]
    assert run.events("checkpoint.deleted")[1:] == [
        {"step": 30, "reason": "damaged"},
        {"step": 50, "reason": "missing"},
    ]
    assert len(run.events("checkpoint.committed")) == 5, "what was listed already is reported once"


def test_a_storage_that_does_not_answer_delays_no_request_and_is_asked_again(world: World) -> None:
    run = Run(world)
    run.commit(10, reports=False)
    answers: list[Exception | None] = [StorageError("away"), StorageError("away"), None]

    def read(job_id: str, url: str) -> CheckpointListRecord:
        if (error := answers.pop(0)) is not None:
            raise error
        return read_list(job_id, url)

    world.controller.listing = Listing(lambda: world.now, read)
    run.lose()
    run.settle(2)
    assert world.attempts(run.job_id)[0].released_at is not None, "the next attempt does not wait for it"
    world.launcher.failing["start"] = ConnectionError("the head does not answer")
    world.cancel(run.job_id)
    run.settle(30)
    assert (run.listed, answers) == ([10], [])


def test_a_reading_that_a_newer_attempt_overtook_changes_nothing(world: World) -> None:
    """It was read before that one began, and may not undo what that one's driver has reported since."""
    run = Run(world)
    before = read_list(run.job_id, world.settings.storage)
    world.controller.listing = Listing(lambda: world.now, lambda *_: before)
    run.lose()
    for _ in world.ticks_until("a second attempt"):
        if world.job(run.job_id).attempt == 2 and run.job_id in {
            one.plan.job_id for one in world.launcher.drivers.values()
        }:
            break
    run.commit(30)
    run.settle()
    assert run.listed == [30]
    assert world.attempts(run.job_id)[0].listed_at is not None


def test_a_controller_that_dies_between_reading_and_writing_leaves_it_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(world)
    world.tick()
    run.commit(20, reports=False)
    world.cancel(run.job_id)
    run.lose()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("service.loops.listing.checkpoints.settle", die)
        with pytest.raises(KeyboardInterrupt):
            run.settle(20)
    assert run.listed == []
    world.succeed()
    run.settle(8)
    assert run.listed == [20]


def test_a_store_that_operators_do_not_name_any_more_is_not_asked_for(world: World) -> None:
    spec = JobSpec.from_mapping({"command": "true", "name": "digits", "checkpoint": {"store": "old"}})
    job_id = world.submit(spec=spec.to_mapping())
    world.tick(4)
    (attempt,) = world.attempts(job_id)
    assert attempt.end_reason is EndReason.START_FAILED
    assert attempt.listed_at is not None


def test_no_attempt_is_left_to_be_asked_for(world: World) -> None:
    run = Run(world)
    run.driver.report("ended", end_reason="completed", message="done", exit_code=0)
    run.settle()
    assert world.database.query(lambda c: ended_attempts(c, "default", 10)) == EndedAttempts([], [])
    assert world.controller.listing._readings == {}


def test_as_many_statements_for_ten_times_the_jobs(world: World) -> None:
    counts: dict[int, int] = {}
    for count in (2, 20):
        found: dict[str, CheckpointListRecord | None] = {}
        for _ in range(count):
            job_id = world.submit()
            pair = world.database.transact(partial(_ended, job_id=job_id, now=world.now))
            listed = [{**_ROW, "step": step, "location": f"{job_id}-{step}"} for step in (10, 20)]
            found[pair.id] = CheckpointListRecord.model_validate({"checkpoints": listed})
        with statements(world.database) as sent:
            world.database.transact(partial(checkpoints.settle, found=found, now=world.now))
        counts[count] = len(sent)
        steps = {world.job(attempt_id_job).checkpoint_step for attempt_id_job in _jobs_of(world, found)}
        assert steps == {20}
    assert counts[20] == counts[2]


_ROW: dict[str, Any] = {
    "attempt": 1, "world_size": 1, "size_bytes": 1, "files": {"w": 1}, "committed_at": 1.0,
}  # fmt: skip


def _jobs_of(world: World, found: Mapping[str, CheckpointListRecord | None]) -> list[str]:
    def work(connection: sa.Connection) -> list[str]:
        return [attempt.job_id for _, attempt in jobs.lock_attempts(connection, found).values()]

    return world.database.transact(work)


def _ended(connection: sa.Connection, job_id: str, now: float) -> AttemptRow:
    """An attempt of the job that has ended and was released."""
    job = jobs.lock_job(connection, job_id)
    assert job is not None
    begun = lifecycle.start_attempt(job, new_id("att", now), now)
    assert begun.attempt is not None
    ended = lifecycle.end_attempt(begun.job, begun.attempt, EndReason.NODE_LOST, "lost", now)
    assert ended.attempt is not None
    jobs.save(connection, job, replace(ended, attempt=lifecycle.released(ended.attempt, now)))
    return ended.attempt

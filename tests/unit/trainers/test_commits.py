"""A committed checkpoint is reported as one, whatever becomes of older ones; what cannot be deleted is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.checkpoints.catalog import Catalog, Retained
from trainers.checkpoints.manifest import MANIFEST_NAME, ShardFile
from trainers.confined_folders import ConfinedFolder
from trainers.driver.commits import Commits
from trainers.storage import Storage, StorageError


async def at_once(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage is called at once: virtual time knows no threads."""

    monkeypatch.setattr("trainers.driver.commits.asyncio.to_thread", at_once)


class Job:
    """One worker whose checkpoints go into a real storage, which refuses to delete when it is asked to."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        self.stage = stage
        self.storage = Storage(folder / "storage")
        self.plan = stage.attempt.plan
        self.catalog = Catalog(self.storage, self.plan.job_id)
        self.commits = Commits(self.plan, stage.account, stage.now, stage.loop.time)
        self.commits.catalog = self.catalog
        stage.attempt.commits = self.commits
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self.refuses = False
        self._delete = self.storage.delete
        self.storage.delete = self.delete  # type: ignore[method-assign]

    def delete(self, name: str) -> None:
        if self.refuses:
            raise StorageError(f"{name} is locked")
        self._delete(name)

    def begin(self, step: int, generation: int = 1) -> None:
        """All files of a checkpoint are stored: its commit begins."""
        assert self.stage.attempt.group is not None
        self.stage.attempt.group.generation = generation
        (self._scratch / "part").write_text(f"state {step}")
        with ConfinedFolder(self._scratch) as folder:
            files: tuple[ShardFile, ...] = self.catalog.put(folder, step, self.plan.attempt, generation, 0)
        message: dict[str, Any] = {"type": "shard", "step": step, "files": files, "asked": False}
        self.stage.attempt.receive(0, message)

    async def save(self, step: int, generation: int = 1) -> None:
        self.begin(step, generation)
        await self.commits.finish()

    @property
    def reported(self) -> list[tuple[int, bool]]:
        """Steps of checkpoints that were reported, and whether as deleted ones."""
        records = [one for one in self.stage.account.records(0, 10_000) if one.kind == "checkpoint"]
        return [(one.body["step"], one.body.get("deleted", False)) for one in records]

    @property
    def reasons(self) -> list[str]:
        """Why checkpoints were reported as deleted."""
        bodies = [one.body for one in self.stage.account.records(0, 10_000) if one.kind == "checkpoint"]
        return [body["reason"] for body in bodies if body.get("deleted")]

    @property
    def steps(self) -> list[int]:
        return [one.step for one in self.catalog.manifests()]


def test_a_retention_that_fails_refuses_no_commit_and_is_tried_again(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=2))
        for step in (11, 12):
            await job.save(step)
        job.refuses = True
        await job.save(13)
        assert job.reported == [(11, False), (12, False), (13, False)]
        assert job.stage.events("checkpoint.refused") == []
        assert job.stage.events("checkpoint.not_deleted") == [{}]
        await job.stage.after(30.0)
        assert job.stage.events("checkpoint.not_deleted") == [{}], "it is reported once"
        assert job.steps == [13, 12, 11]
        job.refuses = False
        await job.stage.after(60.0)
        await job.commits.finish()
        assert job.steps == [13, 12]
        assert job.reported[3:] == [(11, True)]

    play(scene())


def test_a_storage_that_cannot_be_listed_is_tried_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=1))
        await job.save(11)
        answers: Iterator[Any] = iter([StorageError("busy"), StorageError("busy")])
        manifests = job.catalog.manifests

        def listed() -> Any:
            if (error := next(answers, None)) is not None:
                raise error
            return manifests()

        monkeypatch.setattr(job.catalog, "manifests", listed)
        await job.save(12)
        assert job.reported == [(11, False), (12, False)]
        await job.stage.after(60.0)
        assert job.reported == [(11, False), (12, False), (11, True)]

    play(scene())


def test_a_damaged_checkpoint_is_reported_once_and_does_not_count(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=2))
        for step in (11, 12):
            await job.save(step)
        job.storage.write_bytes(f"jobs/{job.plan.job_id}/checkpoints/000000000012-1-1/part", b"state xx")
        await job.save(13)
        assert [one["step"] for one in job.stage.events("checkpoint.damaged")] == [12]
        assert job.steps == [13, 12, 11]
        await job.save(14)
        assert job.steps == [14, 13]
        assert [one["step"] for one in job.stage.events("checkpoint.damaged")] == [12]

    play(scene())


def test_what_a_worker_cannot_use_is_passed_over_by_the_next_group_of_the_attempt(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=3))
        for step in (11, 12):
            await job.save(step)
        attempt, folder = job.stage.attempt, "000000000012-1-1"
        job.storage.write_bytes(f"jobs/{job.plan.job_id}/checkpoints/{folder}/part", b"state xx")
        attempt.receive(0, {"type": "damaged", "folder": folder, "file": "part", "why": "part is corrupted"})
        assert await attempt.judge(set(), set()), "another group of the attempt begins"
        assert job.stage.events("worker.misread") == []
        found, damages = job.catalog.newest()
        assert found is not None
        assert (found.step, [(one.folder, one.why) for one in damages]) == (
            11,
            [(folder, "part is corrupted")],
        )

    play(scene())


def test_a_node_that_reads_wrongly_what_is_right_is_sick_and_the_checkpoint_stays(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=3))
        await job.save(12)
        attempt, folder = job.stage.attempt, "000000000012-1-1"
        attempt.receive(0, {"type": "damaged", "folder": folder, "file": "part", "why": "part is corrupted"})
        assert await attempt.judge(set(), set()), "another group of the attempt begins"
        assert job.stage.events("worker.misread") == [{"rank": 0, "address": "10.0.0.0"}]
        assert "node-0" in attempt.sick
        found, damages = job.catalog.newest()
        assert found is not None
        assert (found.step, damages) == (12, [])

    play(scene())


def test_a_file_that_no_checkpoint_has_refuses_none(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=3))
        await job.save(12)
        assert not job.catalog.refuse_if_damaged("000000000012-1-1", "another")
        assert not job.catalog.refuse_if_damaged("../../elsewhere", "part")
        assert job.catalog.newest()[1] == []

    play(scene())


def test_what_workers_have_trained_from_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=1))
        await job.save(11)
        attempt = job.stage.attempt
        assert attempt.group is not None
        (resumed,) = job.catalog.manifests()
        monkeypatch.setattr("trainers.driver.attempt.asyncio.to_thread", at_once)
        vouched: list[Any] = []
        monkeypatch.setattr(job.catalog, "vouch", vouched.append)
        attempt._resumed, attempt.group.has_reported = resumed, False
        attempt.receive(0, {"type": "pace", "generation": 1, "own_s": 1.0, "shards": 1})
        await job.stage.after(1.0)
        assert vouched == []
        for step in (12, 13):
            attempt.receive(0, {"type": "report", "step": step, "metrics": {}})
            await job.stage.after(1.0)
        assert vouched == [resumed]

    play(scene())


def test_an_attempt_that_was_replaced_deletes_nothing_any_more(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=1))
        await job.save(11)
        job.refuses = True
        await job.save(12)
        job.refuses = False
        Catalog(Storage(tmp_path / "storage"), job.plan.job_id).fence(job.plan.attempt + 1)
        await job.stage.after(60.0)
        assert job.steps == [12, 11]
        await job.save(13)
        assert job.stage.events("checkpoint.refused") == [{"step": 13}]
        assert not job.storage.exists(f"jobs/{job.plan.job_id}/checkpoints/000000000013-1-1/{MANIFEST_NAME}")

    play(scene())


def test_a_step_that_was_committed_again_is_not_reported_as_deleted(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=1))
        await job.save(11)
        await job.save(11, generation=2)
        assert [one.generation for one in job.catalog.manifests()] == [2]
        assert job.reported == [(11, False), (11, False)]

    play(scene())


def test_a_step_that_is_stored_while_its_older_checkpoint_is_deleted_is_not_reported_as_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion goes on in a thread of its own, and training may come to the same step again meanwhile."""

    async def scene() -> None:
        job, is_over = Job(tmp_path, Stage(1, checkpoint_keep=1)), asyncio.Event()

        async def slow_to_delete(function: Any, *arguments: Any) -> Any:
            answer = function(*arguments)
            if isinstance(answer, Retained) and answer.deleted:
                await is_over.wait()
            return answer

        await job.save(11)
        monkeypatch.setattr("trainers.driver.commits.asyncio.to_thread", slow_to_delete)
        job.begin(12)
        await job.stage.after(1.0)
        assert job.steps == [12], "it is deleted, and not reported yet"
        job.begin(11, generation=2)
        await job.stage.after(1.0)
        assert job.reported == [(11, False), (12, False), (11, False)]
        is_over.set()
        await job.commits.finish()
        assert [(one.step, one.generation) for one in job.catalog.manifests()] == [(11, 2)]
        assert job.reported == [(11, False), (12, False), (11, False), (12, True)]

    play(scene())


class Next:
    """The next attempt of a job, whose driver has just opened the storage."""

    def __init__(self, job: Job, stage: Stage) -> None:
        self.commits = Commits(replace(job.plan, attempt=job.plan.attempt + 1), stage.account)
        self.catalog = Catalog(job.storage, job.plan.job_id)
        self.commits.open(self.catalog)
        self.records = [one for one in stage.account.records(0, 10_000) if one.kind == "checkpoints"]

    @property
    def listed(self) -> list[int]:
        (record,) = self.records
        return [one["step"] for one in record.body["checkpoints"]]


def test_an_attempt_reports_what_the_one_before_it_left(tmp_path: Path) -> None:
    """Whatever that one committed, deleted or found damaged, and had no time to report."""

    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=9))
        for step in (11, 12, 13, 14):
            await job.save(step)
        folder = f"jobs/{job.plan.job_id}/checkpoints"
        job.storage.write_bytes(f"{folder}/000000000012-1-1/{MANIFEST_NAME}", b"torn")
        job.storage.write_bytes(f"{folder}/000000000013-1-1/part", b"torn")
        later = Next(job, Stage(1))
        assert later.listed == [14, 11]
        assert {one["attempt"] for one in later.records[0].body["checkpoints"]} == {1}
        assert later.records[0].body["checkpoints"][0] == next(
            one.body for one in job.stage.account.records(0, 10_000) if one.body.get("step") == 14
        ), "it is reported as it was when it was committed"

    play(scene())


def test_an_attempt_that_finds_none_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        assert Next(Job(tmp_path, Stage(1)), Stage(1)).listed == []

    play(scene())


def test_a_checkpoint_that_cannot_be_read_any_more_leaves_the_list_when_it_is_swept(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=9))
        await job.save(11)
        folder = f"jobs/{job.plan.job_id}/checkpoints/000000000011-1-1"
        job.storage.write_bytes(f"{folder}/{MANIFEST_NAME}", b"torn")
        await job.save(12, generation=2)
        assert not job.storage.exists(folder), "it was swept"
        assert job.reported == [(11, False), (12, False), (11, True)]
        assert job.reasons == ["damaged"]

    play(scene())


def test_a_checkpoint_without_all_of_its_files_leaves_the_list(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=1))
        await job.save(11)
        job.storage.delete(f"jobs/{job.plan.job_id}/checkpoints/000000000011-1-1/part")
        await job.save(12)
        assert job.reported == [(11, False), (12, False), (11, True)]

    play(scene())


def test_when_one_of_two_of_a_step_goes_the_other_one_is_listed(tmp_path: Path) -> None:
    async def scene() -> None:
        job = Job(tmp_path, Stage(1, checkpoint_keep=9))
        await job.save(11)
        later = Next(job, job.stage)
        later.commits._reported[11] = "000000000011-2-1"
        await later.commits._retain()
        assert job.reported[-1] == (11, False)
        last = [one.body for one in job.stage.account.records(0, 10_000) if one.kind == "checkpoint"][-1]
        assert last["location"].endswith("000000000011-1-1")

    play(scene())

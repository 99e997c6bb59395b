"""A job that is paused: its workers end after a checkpoint, or without one where they can write none."""

from __future__ import annotations

from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.checkpoints.catalog import Retained
from trainers.checkpoints.manifest import Manifest, ShardFile
from trainers.driver.attempt import PAUSE_S


class Shelf:
    """Takes the place of a catalog."""

    def __init__(self) -> None:
        self.committed: list[Manifest] = []

    def commit(self, manifest: Manifest) -> str:
        self.committed.append(manifest)
        return "on the shelf"

    def is_fenced(self, attempt: int) -> bool:
        del attempt
        return False

    def retain(self, keep: int, mode: str | None) -> Retained:
        del keep, mode
        return Retained(deleted=(), kept=tuple(self.committed))


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage is called at once: virtual time knows no threads."""

    async def at_once(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr("trainers.driver.commits.asyncio.to_thread", at_once)


def stage_of(workers: int) -> tuple[Stage, Shelf]:
    stage, shelf = Stage(workers), Shelf()
    stage.attempt.commits.catalog = shelf  # type: ignore[assignment]
    return stage, shelf


def shard(stage: Stage, slot: int, step: int) -> None:
    file = ShardFile(name=f"rank-{slot}.pt", size_bytes=5, sha256="0" * 64, rank=slot)
    message: dict[str, Any] = {"type": "shard", "step": step, "files": (file,), "asked": True}
    stage.attempt.receive(stage.group_members.ranks[slot], message)


def test_it_ends_when_the_checkpoint_that_it_asked_for_is_committed() -> None:
    async def scene() -> None:
        stage, shelf = stage_of(2)
        stage.attempt.pause()
        await stage.after(5.0)
        assert stage.attempt.stop_reason is None, "it waits for the checkpoint"
        assert [one["deadline_at"] for one in stage.events("worker_group.pause")] == [
            pytest.approx(stage.clock() - 5.0 + PAUSE_S, abs=1.0)
        ]
        for slot in (0, 1):
            shard(stage, slot, 11)
        await stage.attempt.commits.finish()
        await stage.after(0.1)
        assert [one.step for one in shelf.committed] == [11]
        assert stage.attempt.stop_reason is EndReason.PAUSED
        assert sorted(set(stage.messages("stop"))) == [0, 1]
        assert await stage.attempt.judge(set(), set()) is False, "no other worker group follows"
        await stage.attempt.end(None)
        assert stage.account.records(0, 100)[-1].body["end_reason"] == "paused"

    play(scene())


def test_it_ends_without_a_checkpoint_when_none_comes_in_time() -> None:
    async def scene() -> None:
        stage, shelf = stage_of(2)
        stage.attempt.pause()
        await stage.after(PAUSE_S - 5.0)
        assert stage.attempt.stop_reason is None
        await stage.after(6.0)
        assert (stage.attempt.stop_reason, shelf.committed) == (EndReason.PAUSED, [])

    play(scene())


def test_scripts_that_write_none_and_groups_that_are_not_there_are_not_waited_for() -> None:
    async def scene() -> None:
        mute = Stage(1)
        assert mute.attempt.group is not None
        mute.attempt.group._cooperative.clear()
        mute.attempt.pause()
        assert mute.attempt.stop_reason is EndReason.PAUSED
        forming, _ = stage_of(1)
        forming.kill(0)
        await forming.attempt.judge({0}, {0})
        forming.attempt.pause()
        assert forming.attempt.stop_reason is EndReason.PAUSED

    play(scene())


def test_commands_that_end_by_themselves_are_not_disturbed() -> None:
    async def scene() -> None:
        stage, _ = stage_of(2)
        stage.attempt.receive(0, {"type": "exit", "exit_code": 0})
        stage.attempt.pause()
        await stage.after(3.0)
        assert stage.attempt.stop_reason is None
        stage.attempt.receive(1, {"type": "exit", "exit_code": 0})
        assert stage.attempt.is_done

    play(scene())


def test_a_change_in_place_is_finished_first() -> None:
    async def scene() -> None:
        stage, shelf = stage_of(3)
        stage.kill(2)
        stage.attempt.pause()
        assert stage.attempt.stop_reason is None
        await stage.settled()
        await stage.after(1.0)
        assert len(stage.events("worker_group.pause")) == 1
        for slot in (0, 1):
            shard(stage, slot, 12)
        await stage.attempt.commits.finish()
        await stage.after(0.5)
        assert ([one.world_size for one in shelf.committed], stage.attempt.stop_reason) == (
            [2],
            EndReason.PAUSED,
        )

    play(scene())


def test_a_group_that_fails_meanwhile_is_followed_by_none() -> None:
    async def scene() -> None:
        stage, _ = stage_of(2)
        stage.attempt.pause()
        await stage.after(1.0)
        assert await stage.attempt.judge({1}, {1}) is True
        assert stage.attempt.is_over()
        assert stage.attempt.stop_reason is EndReason.PAUSED

    play(scene())


def test_a_job_that_is_being_paused_is_cancelled_at_once() -> None:
    async def scene() -> None:
        stage, _ = stage_of(2)
        stage.attempt.pause()
        await stage.after(1.0)
        stage.attempt.stop(EndReason.CANCELLED)
        await stage.after(1.0)
        assert stage.attempt.stop_reason is EndReason.CANCELLED

    play(scene())

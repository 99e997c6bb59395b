"""An attempt over its worker groups: who is judged, what is counted, and what a group that is over may still do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import BEGIN, Stage
from tests.unit.trainers.virtual_time import play
from trainers.checkpoints.catalog import Fenced, Retained
from trainers.checkpoints.manifest import Manifest, ShardFile
from trainers.ray_train import AttemptEnds


class Shelf:
    """Takes the place of a catalog."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.committed: list[Manifest] = []

    def commit(self, manifest: Manifest) -> str:
        if self.error is not None:
            raise self.error
        self.committed.append(manifest)
        return "on the shelf"

    def is_fenced(self, attempt: int) -> bool:
        del attempt
        return False

    def retain(self, keep: int, mode: str | None) -> Retained:
        self.mode = mode
        return Retained(deleted=tuple(self.committed[:-keep]), kept=tuple(self.committed[-keep:]))


def shard(stage: Stage, slot: int, step: int) -> None:
    """A rank's files are stored, of a checkpoint that was asked for."""
    file = ShardFile(name=f"rank-{slot}.pt", size_bytes=5, sha256="0" * 64, rank=slot)
    message: dict[str, Any] = {"type": "shard", "step": step, "files": (file,), "asked": True}
    stage.attempt.receive(stage.group_members.ranks[slot], message)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage is called at once: virtual time knows no threads."""

    async def at_once(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr("trainers.driver.commits.asyncio.to_thread", at_once)


@pytest.mark.usefixtures("no_threads")
def test_the_checkpoint_of_a_group_that_was_followed_is_kept_and_ends_no_worker() -> None:
    async def scene() -> None:
        stage = Stage(2)
        shelf = Shelf()
        stage.attempt.commits.catalog = shelf  # type: ignore[assignment]
        stage.attempt.request_stop("drain", "A node goes.", None)
        await stage.after(0.1)
        shard(stage, 0, 11)
        shard(stage, 1, 11)
        stage.kill(1)
        stage.attempt.follow(1)
        await stage.attempt.commits.finish()
        await stage.after(0.1)
        assert [(one.step, one.generation, one.world_size) for one in shelf.committed] == [(11, 1, 2)]
        assert stage.messages("stop") == []

    play(scene())


@pytest.mark.usefixtures("no_threads")
def test_a_planned_stop_ends_the_group_once_its_checkpoint_is_committed() -> None:
    async def scene() -> None:
        stage = Stage(2)
        stage.attempt.commits.catalog = Shelf()  # type: ignore[assignment]
        stage.attempt.request_stop("drain", "A node goes.", None)
        await stage.after(0.1)
        for slot in (0, 1):
            shard(stage, slot, 11)
        await stage.attempt.commits.finish()
        await stage.after(0.1)
        assert sorted(stage.messages("stop")) == [0, 1]
        (checkpoint,) = [one.body for one in stage.account.records(0, 100) if one.kind == "checkpoint"]
        assert (checkpoint["step"], checkpoint["size_bytes"], checkpoint["location"]) == (
            11,
            10,
            "on the shelf",
        )
        assert await stage.attempt.judge(set(), set()) is True, "another worker group follows"

    play(scene())


@pytest.mark.usefixtures("no_threads")
def test_a_checkpoint_carries_the_metric_of_its_own_step() -> None:
    async def scene() -> None:
        stage = Stage(1, best_metric="acc", best_mode="max")
        shelf = stage.attempt.commits.catalog = Shelf()  # type: ignore[assignment]
        for step, acc in ((11, 0.25), (12, 0.5), (13, None)):
            stage.attempt.receive(0, {"type": "report", "step": step, "metrics": {"acc": acc, "loss": 9}})
        for step in (12, 13):
            shard(stage, 0, step)
            await stage.attempt.commits.finish()
        assert [(one.step, one.score) for one in shelf.committed] == [(12, 0.5), (13, None)]
        assert shelf.mode == "max"

    play(scene())


def test_repeated_steps_are_recorded_before_the_new_step_after_them() -> None:
    async def scene() -> None:
        stage = Stage(1)
        group = stage.attempt.group
        assert group is not None
        group.progress = replace(group.progress, step=20, high_water=20, group_step=None, has_caught_up=False)
        for step in (18, 19, 20, 21, 22):
            stage.attempt.receive(0, {"type": "report", "step": step, "metrics": {"loss": 1.0}})
        reported = [one.body for one in stage.account.records(0, 100) if "step" in one.body]
        assert [one["step"] for one in reported if "values" in one] == [18, 19, 20, 21, 22]
        assert reported[0]["repeated_steps"] == 3

    play(scene())


def test_the_interval_follows_what_checkpoints_cost() -> None:
    async def scene() -> None:
        stage = Stage(2, is_interval_auto=True, checkpoint_interval_s=30.0, worker_mtbf_s=20_000.0)
        for slot, stall_s in ((0, 0.1), (1, 2.0)):
            stage.attempt.receive(slot, {"type": "stalled", "step": 20, "stall_s": stall_s})
        assert stage.attempt.group is not None
        assert stage.attempt.group.checkpoint_interval_s == pytest.approx(198.0, abs=0.1)
        reported = [round(data["interval_s"]) for data in stage.events("checkpoint.interval")]
        assert reported == [45, 198], "a change that matters is reported"
        stage.kill(1)
        await stage.settled()
        stage.attempt.receive(0, {"type": "stalled", "step": 30, "stall_s": "long"})
        assert "'stalled' was not understood" in stage.log[-1]
        stage.attempt.receive(0, {"type": "stalled", "step": 30, "stall_s": 2.0})
        assert stage.attempt.group.checkpoint_interval_s == pytest.approx(198.0, abs=1.0), (
            "half as many, one lost"
        )

    play(scene())


@pytest.mark.usefixtures("no_threads")
def test_a_checkpoint_that_is_refused_is_reported() -> None:
    async def scene() -> None:
        stage = Stage(1)
        stage.attempt.commits.catalog = Shelf(Fenced("a newer attempt began"))  # type: ignore[assignment]
        shard(stage, 0, 11)
        await stage.attempt.commits.finish()
        assert stage.events("checkpoint.refused") == [{"step": 11}]

    play(scene())


def test_a_step_that_a_new_rank_0_reports_again_is_not_done_again() -> None:
    async def scene() -> None:
        stage = Stage(2)
        stage.kill(0)
        await stage.settled()
        await stage.after(1.0)
        for step in (10, 11):
            stage.attempt.receive(0, {"type": "report", "step": step})
        progress = stage.attempt.progress
        assert (progress.step, progress.repeated_steps, progress.lost_since) == (11, 0, None)
        assert progress.lost_s == pytest.approx(1.0, abs=0.5)

    play(scene())


def test_the_nodes_of_the_workers_are_reported_with_every_worker_group() -> None:
    async def scene() -> None:
        stage = Stage(2)
        assert await stage.attempt.judge(set(), {0, 1}) is True
        one, two, three = stage.new_members(3)
        stage.attempt.open_group([one, replace(two, address=one.address), three], None)
        await stage.attempt.end(None)
        assert stage.workers == [
            {"10.0.0.0": 1, "10.0.0.1": 1}, {}, {"10.0.0.2": 2, "10.0.0.4": 1}, {},
        ]  # fmt: skip

    play(scene())


def test_a_verdict_that_was_passed_before_counts() -> None:
    async def scene() -> None:
        stage = Stage(2, min_workers=2)
        stage.kill(1)
        await stage.settled()
        assert await stage.attempt.judge(set(), set()) is False
        await stage.attempt.end(RuntimeError("workers ended"))
        last = stage.account.records(0, 1000)[-1].body
        assert (last["end_reason"], last["exit_code"]) == ("node_lost", None)
        assert last["message"] == "No 2 workers could be had for 600 s."

    play(scene())


def test_a_worker_that_left_is_not_waited_for_by_the_judge() -> None:
    async def scene() -> None:
        stage = Stage(3)
        stage.hanging = {0, 2}
        stage.kill(1)
        stage.attempt.receive(0, {"type": "exit", "exit_code": 3})
        stage.attempt.receive(2, {"type": "exit", "exit_code": None, "stopped": True})
        began = stage.loop.time()
        assert await stage.attempt.judge(set(), set()) is False
        assert stage.loop.time() - began < 1.0
        assert stage.attempt.verdict is not None
        assert (stage.attempt.verdict.end_reason, stage.attempt.verdict.exit_code) == (EndReason.EXIT_CODE, 3)

    play(scene())


def test_after_a_stop_no_worker_group_begins() -> None:
    async def scene() -> None:
        stage = Stage(2)
        stage.attempt.stop(EndReason.CANCELLED)
        assert stage.attempt.is_over()
        with pytest.raises(AttemptEnds):
            stage.attempt.open_group(stage.new_members(2), None)
        await stage.attempt.end(None)
        assert stage.account.records(0, 1000)[-1].body["end_reason"] == "cancelled"

    play(scene())


def test_starts_that_fail_are_reported_once_per_cause_and_not_for_ever() -> None:
    async def scene() -> None:
        stage = Stage(2)
        for error in ("no capacity", "no capacity", "no network"):
            stage.attempt.group_could_not_start(error)
        assert len(stage.events("worker_group.not_started")) == 2
        assert not stage.attempt.is_over()
        await stage.after(stage.attempt.plan.regroup_s + 1.0)
        assert stage.attempt.is_over()
        assert stage.attempt.verdict is not None
        assert stage.attempt.verdict.message.endswith("The last try failed: no network")
        stage.attempt.group_started()
        assert stage.attempt.group_could_not_start("no capacity") == 1

    play(scene())


def test_an_error_of_a_task_beside_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("as planned")

    async def scene() -> None:
        stage = Stage(1)
        stage.attempt.spawn(fail())
        await stage.after(0.1)

    play(scene())
    assert "a task of att_1 failed" in caplog.text


def test_a_worker_group_that_starts_over_without_a_checkpoint_is_reported() -> None:
    async def scene() -> None:
        stage = Stage(2)
        assert stage.events("worker_group.started_over") == [], "the first one begins at the start anyway"
        assert await stage.attempt.judge(set(), {1}) is True
        stage.attempt.open_group(stage.new_members(1), None)
        assert stage.events("worker_group.started_over") == [{"generation": 2}]
        assert await stage.attempt.judge(set(), set(stage.group_members.ranks)) is True
        resume = Manifest(
            job_id="job_1", step=5, attempt=1, generation=1, world_size=1, committed_at=0.0, files=()
        )
        stage.attempt.open_group(stage.new_members(1), resume)
        assert len(stage.events("worker_group.started_over")) == 1

    play(scene())


def test_a_notice_has_all_workers_look_into_their_outputs() -> None:
    async def scene() -> None:
        stage = Stage(2)
        stage.attempt.request_stop("drain", "A node goes.", stage.now() + 30.0)
        await stage.after(0.1)
        assert sorted(stage.messages("look")) == [0, 1]
        assert [message["round"] for _, message in stage.sent if message["type"] == "look"] == [1, 1]

    play(scene())


def test_a_loss_that_no_new_step_followed_is_reported_with_the_end() -> None:
    async def scene() -> None:
        stage = Stage(1)
        await stage.after(1.0)
        slots = set(stage.group_members.by_slot)
        assert await stage.attempt.judge(slots, slots)
        await stage.after(3.0)
        stage.attempt.open_group(stage.new_members(1), None)
        for step in (9, 10):
            stage.attempt.receive(0, {"type": "report", "step": step})
        won_back_after_s = stage.now() - BEGIN
        await stage.after(50.0)
        await stage.attempt.end(None)
        reported = [one for one in stage.account.records(0, 10_000) if one.kind in ("progress", "ended")]
        assert max(one.body.get("repeated_steps", 0) for one in reported) == 2
        assert reported[-1].body["open_lost_s"] == pytest.approx(won_back_after_s, abs=0.01)

    play(scene())

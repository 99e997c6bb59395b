"""No rank makes progress: every rank is asked, those that can go on do, and otherwise the attempt ends with `hang`."""

from __future__ import annotations

from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.hang_monitor import HangMonitor
from trainers.driver.stacks import STACKS_S, Stacks

LIMIT_S = 600.0
#: A deadline that no test lives to see.
NEVER = 9e9


class Scene:
    """A stage on which a monitor looks whether steps end."""

    def __init__(self, workers: int = 3, *, elastic: bool = True) -> None:
        self.stage = Stage(workers)
        if not elastic:
            self.stage.group_members.elastic.clear()
        self.stacks_asked = Stacks(self.stage.group_members)
        self.monitor = HangMonitor(self.stage.attempt, self.stage.in_place, self.stacks_asked)
        self.stage.watch = self._react
        #: Slots whose supervisor never answers what it is asked.
        self.mute: set[int] = set()
        self.step = 10

    def _react(self, slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "dump" and slot not in self.mute:
            reported = {"type": "stack", "text": f"stack of {slot}"}
            self.stage.loop.call_later(0.1, self.stacks_asked.receive, slot, reported)

    async def after(self, seconds: float) -> None:
        end = self.stage.loop.time() + seconds
        while self.stage.loop.time() < end:
            await self.stage.after(0.5)
            self.monitor.tick()

    async def train(self, steps: int = 5) -> None:
        for _ in range(steps):
            await self.after(1.0)
            self.step += 1
            self.stage.steps.update(dict.fromkeys(self.stage.steps, self.step))
            self.say(0, "report", step=self.step)

    def say(self, rank: int, kind: str, **message: Any) -> None:
        self.stage.attempt.receive(rank, {"type": kind, **message})

    @property
    def reason(self) -> EndReason | None:
        verdict = self.stage.attempt.verdict
        return None if verdict is None else verdict.end_reason

    @property
    def stacks(self) -> dict[int, str]:
        return {one["rank"]: one["stack"] for one in self.stage.events("worker.stack")}


def scene(act: Any) -> Any:
    def played() -> None:
        play(act())

    played.__name__ = act.__name__
    return played


@scene
async def test_a_script_that_cannot_go_on_ends_with_the_stacks_of_all_ranks() -> None:
    at = Scene(2, elastic=False)
    await at.train()
    await at.after(LIMIT_S - 5.0)
    assert (at.reason, at.stacks) == (None, {})
    await at.after(10.0)
    assert at.reason is EndReason.HANG
    assert at.stacks == {0: "stack of 0", 1: "stack of 1"}
    assert sorted(at.stage.messages("stop")) == [0, 1]
    assert at.stage.attempt.verdict is not None
    assert at.stage.attempt.verdict.message.startswith("No step ended for 60")
    assert await at.stage.attempt.judge(set(), set()) is False, "no worker group follows"
    await at.after(LIMIT_S * 3)
    assert len(at.stage.events("worker.stack")) == 2, "it is reported once"
    (found,) = at.stage.events("worker_group.hung")
    assert found["quiet_s"] > LIMIT_S


@scene
async def test_one_that_hangs_is_left_behind() -> None:
    at = Scene(3)
    await at.train()
    at.stage.hanging.add(1)
    await at.after(LIMIT_S + 30.0)
    assert (at.reason, at.stage.order) == (None, [0, 2])
    assert at.stage.regrouped == [("loss", 2)]
    assert at.stacks.keys() == {0, 1, 2}
    assert len(at.stage.events("worker_group.hung")) == 1, "a hang is reported although the attempt goes on"
    await at.train()
    assert at.stage.attempt.lifecycle.suspicion is None
    at.stage.hanging.add(2)
    await at.after(LIMIT_S + 30.0)
    assert len(at.stage.events("worker_group.hung")) == 2, "another hang"


@scene
async def test_a_frozen_node_is_named_and_left_behind() -> None:
    at = Scene(3)
    await at.train()
    at.stage.frozen.add(2)
    await at.after(LIMIT_S + 60.0)
    assert (at.reason, at.stage.order) == (None, [0, 1])
    assert at.stacks[2] == "Its supervisor does not answer: the node is frozen, or cut off."


@pytest.mark.parametrize("notice_s", [30.0, 3600.0])
def test_one_that_hangs_while_a_node_is_to_be_left_in_place_is_left_behind_with_it(notice_s: float) -> None:
    """The node stays although its deadline has passed, and the hanging rank never agrees on a step to park at."""

    async def act() -> None:
        at = Scene(3)
        await at.train()
        at.stage.hanging.add(1)
        deadline = at.stage.now() + notice_s
        at.stage.in_place.drain({"node-2"}, deadline)
        for _ in range(int(LIMIT_S / 30.0) + 2):
            await at.after(30.0)
            # As the draining node is seen again and again.
            at.stage.in_place.drain({"node-2"}, deadline)
        assert (at.reason, at.stage.order) == (None, [0])
        assert at.stacks.keys() == {0, 1, 2}
        await at.train()
        assert at.stage.attempt.lifecycle.suspicion is None

    play(act())


@scene
async def test_a_node_that_is_cut_off_is_found_before_any_peer_notices() -> None:
    at = Scene(3)
    await at.train()
    at.stage.dead.add(1)
    await at.after(5.0)
    assert (at.stage.order, at.stage.regrouped) == ([0, 2], [("loss", 2)])
    assert at.stacks == {}


@scene
async def test_a_driver_that_reaches_no_worker_gives_none_up() -> None:
    at = Scene(3)
    await at.train()
    at.stage.dead |= {0, 1, 2}
    await at.after(60.0)
    assert (at.stage.order, at.stage.events("node.lost")) == ([0, 1, 2], [])


@scene
async def test_no_worker_is_checked_while_steps_end() -> None:
    at = Scene(3)
    at.stage.dead.add(1)
    await at.train(20)
    assert at.stage.events("node.lost") == []


@scene
async def test_when_no_worker_can_park_it_is_a_hang() -> None:
    at = Scene(3)
    await at.train()
    at.stage.hanging |= {0, 1, 2}
    await at.after(LIMIT_S + 60.0)
    assert at.reason is EndReason.HANG
    assert set(at.stage.messages("stop")) == {0, 1, 2}
    assert len(at.stage.events("worker_group.hung")) == 1, "its end is no second one"


@scene
async def test_a_step_that_hangs_again_after_all_went_on_together_is_a_hang() -> None:
    at = Scene(3)
    await at.train()
    await at.after(LIMIT_S + 30.0)
    assert (at.reason, at.stage.regrouped) == (None, [("loss", 3)])
    await at.after(LIMIT_S + 30.0)
    assert at.reason is EndReason.HANG


@scene
async def test_scripts_that_own_their_training_begin_again_once_for_each_checkpoint() -> None:
    at = Scene(2, elastic=False)
    at.stage.attempt.commits.newest_step = 10
    await at.train()
    await at.after(LIMIT_S + 30.0)
    assert (at.reason, sorted(at.stage.messages("stop"))) == (None, [0, 1])
    assert len(at.stage.events("worker_group.hung")) == 1
    assert await at.stage.attempt.judge(set(), set()), "another worker group follows"
    at.stage.attempt.open_group(at.stage.new_members(2), None)
    at.say(0, "hello")
    at.say(1, "hello")
    at.step = 9
    await at.train()
    await at.after(LIMIT_S + 30.0)
    assert at.reason is EndReason.HANG, "at the same place"


@scene
async def test_a_supervisor_that_does_not_answer_is_not_waited_for() -> None:
    at = Scene(2, elastic=False)
    at.mute.add(1)
    await at.train()
    await at.after(LIMIT_S + STACKS_S + 5.0)
    assert at.reason is EndReason.HANG
    assert at.stacks == {0: "stack of 0", 1: "Its supervisor did not report it within 20 s."}


@scene
async def test_a_step_that_ends_while_the_stacks_are_taken_saves_the_attempt() -> None:
    at = Scene(2, elastic=False)
    at.mute.add(1)
    await at.train()
    await at.after(LIMIT_S + 2.0)
    assert at.stage.messages("dump") == [0, 1]
    await at.train(1)
    await at.after(STACKS_S + 5.0)
    assert at.reason is None


@pytest.mark.parametrize("occupation", ["saving", "draining", "done", "starting", "stopping"])
def test_time_in_which_no_step_can_end_does_not_count(occupation: str) -> None:
    async def act() -> None:
        at = Scene(2, elastic=False)
        await at.train()
        attempt = at.stage.attempt
        match occupation:
            case "saving":
                at.say(1, "saving", step=at.step)
            case "draining":
                attempt.request_stop("drain", "A node goes.", NEVER)
            case "done":
                at.say(0, "report", step=at.step + 1, total_steps=at.step + 1)
            case "starting":
                attempt.group_could_not_start("as planned")
                attempt.open_group(at.stage.new_members(2), None)
            case _:
                attempt.stop(EndReason.CANCELLED)
        await at.after(LIMIT_S - 30.0)
        assert (at.reason, at.stacks) == (None, {})
        if occupation == "saving":
            at.say(1, "abandoned", step=at.step)
            await at.after(LIMIT_S - 30.0)
            assert at.reason is None, "it counts from the end of the checkpoint"
            await at.after(60.0)
            assert at.reason is EndReason.HANG
        else:
            await at.after(LIMIT_S * 2)
            assert at.reason is None

    play(act())


@scene
async def test_a_checkpoint_that_never_ends_is_a_hang_in_the_end() -> None:
    at = Scene(2, elastic=False)
    await at.train()
    at.say(1, "saving", step=at.step)
    await at.after(600.0 + LIMIT_S + 60.0)
    assert at.reason is EndReason.HANG

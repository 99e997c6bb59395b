"""The driver sorts what supervisors deliver: by worker group, by worker, and by what is still of use."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.driver import Driver


class Desk:
    """A driver whose workers are a stage's."""

    def __init__(self, workers: int = 2) -> None:
        self.stage = Stage(workers)
        self.driver = Driver()
        self.driver.take(self.stage.attempt.plan)
        self.driver._account = self.stage.account
        self.driver._crew = self.stage.crew
        self.driver._attempt = self.stage.attempt
        self.driver._in_place = self.stage.in_place

    async def deliver(self, slot: int, *messages: dict[str, Any], generation: int = 1) -> dict[str, Any]:
        return await self.driver.deliver(generation, slot, list(messages))


def desk(act: Any) -> Any:
    def played() -> None:
        async def scene() -> None:
            work: Coroutine[Any, Any, None] = act(Desk())
            await work

        play(scene())

    played.__name__ = act.__name__
    return played


@desk
async def test_reports_of_the_present_group_count_and_others_do_not(at: Desk) -> None:
    await at.deliver(0, {"type": "report", "step": 12, "metrics": {"loss": 1.0}})
    await at.deliver(0, {"type": "report", "step": 99, "metrics": {"loss": 2.0}}, generation=7)
    await at.deliver(5, {"type": "report", "step": 99, "metrics": {"loss": 2.0}})
    metrics = [one.body for one in at.stage.account.records(0, 100) if one.kind == "metric"]
    assert [metric["step"] for metric in metrics] == [12]
    assert at.stage.attempt.progress.step == 12


@desk
async def test_lines_of_anybody_are_kept(at: Desk) -> None:
    line = {"type": "log", "stream": "stdout", "text": "hello"}
    await at.deliver(1, line)
    await at.deliver(1, line, generation=7)
    await at.deliver(5, line)
    lines = [one.body for one in at.stage.account.records(0, 100) if one.kind == "log"]
    assert [line["rank"] for line in lines] == [1, 1, -1]


@desk
async def test_an_end_counts_whatever_group_the_worker_thought_it_was_in(at: Desk) -> None:
    at.stage.attempt.follow(2)
    await at.deliver(1, {"type": "exit", "exit_code": 3}, generation=1)
    group = at.stage.attempt.group
    assert group is not None
    assert group.exits[1].exit_code == 3


@desk
async def test_the_end_of_a_worker_that_has_left_says_nothing_about_the_group(at: Desk) -> None:
    at.stage.kill(1)
    await at.deliver(1, {"type": "exit", "exit_code": 1})
    group = at.stage.attempt.group
    assert group is not None
    assert group.exits == {}


@desk
async def test_those_who_wait_to_join_end_with_the_others(at: Desk) -> None:
    joiner = at.stage.join(is_ready=False)
    for slot in (0, 1):
        await at.deliver(slot, {"type": "exit", "exit_code": 0})
    await at.stage.after(0.1)
    assert at.stage.messages("stop") == [joiner]


@desk
async def test_nonsense_from_a_script_does_not_reach_the_supervisor_as_an_error(at: Desk) -> None:
    answer = await at.deliver(
        1, {"type": "parted"}, {"type": "joined", "generation": "?"}, {"type": "report"}
    )
    assert answer == {"log_is_full": False}
    assert len(at.stage.log) == 3


@desk
async def test_a_stop_is_told_once_and_ends_a_change_in_place(at: Desk) -> None:
    at.stage.hanging.add(0)
    at.stage.kill(1)
    await at.driver.stop(EndReason.CANCELLED)
    await at.driver.stop(EndReason.RUN_TIME_EXCEEDED)
    assert not at.stage.in_place.is_changing
    assert at.stage.messages("stop") == [0]
    assert at.stage.attempt.stop_reason is EndReason.CANCELLED
    assert at.stage.account.records(0, 100)[-1].body == {"state": "draining"}


@desk
async def test_after_its_last_word_nothing_is_stopped(at: Desk) -> None:
    await at.driver._end(None)
    await at.driver.stop(EndReason.CANCELLED)
    records = await at.driver.poll(0, 100)
    assert records[-1].body["end_reason"] == "completed"


@pytest.mark.parametrize("elastic", [True, False])
def test_a_group_grows_in_one_way_only(elastic: bool) -> None:
    async def scene() -> None:
        at = Desk()
        if not elastic:
            at.stage.crew.elastic.clear()
        at.driver._call = lambda function: function()  # type: ignore[method-assign,assignment]
        assert at.driver.grows_in_place() is elastic
        assert at.driver.may_grow() is not elastic

    play(scene())

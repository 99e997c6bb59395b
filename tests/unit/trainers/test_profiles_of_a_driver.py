"""A driver has one rank profiled at a time, and every request ends with a trace or a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.profiles import Profiles
from trainers.plan import ProfileRequest
from trainers.profiles import PROFILE_S

STORED = {"steps": 5, "size_bytes": 9, "sha256": "ab" * 32}


class Scene:
    """A stage whose supervisors answer requests for profiles."""

    def __init__(self, workers: int = 3) -> None:
        self.stage = Stage(workers)
        self.profiles = Profiles(self.stage.group_members, self.stage.account)
        self.stage.watch = self._react
        #: What a supervisor answers, by slot; one that is not named does not answer.
        self.answers: dict[int, dict[str, Any]] = {}
        self.asked: list[tuple[int, dict[str, Any]]] = []

    def _react(self, slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "profile":
            self.asked.append((slot, message))
            if slot in self.answers:
                answer = {"type": "profile", "token": message["token"], **self.answers[slot]}
                self.stage.loop.call_later(0.1, self.profiles.receive, slot, answer)

    def ask(self, number: int = 1, rank: int = 0) -> None:
        self.stage.attempt.spawn(
            self.profiles.take(ProfileRequest(number=number, rank=rank, steps=5)),
        )

    @property
    def reported(self) -> list[dict[str, Any]]:
        records = self.stage.account.records(0, 10_000)
        return [one.body for one in records if one.kind == "profile"]

    @property
    def why(self) -> str:
        (only,) = self.reported
        return str(only["message"])


def scene(act: Any) -> Any:
    def played() -> None:
        play(act())

    played.__name__ = act.__name__
    return played


@scene
async def test_the_supervisor_of_the_rank_stores_the_trace_under_the_drivers_name() -> None:
    at = Scene()
    at.answers = {1: STORED}
    at.ask(rank=1)
    await at.stage.after(1.0)
    ((slot, message),) = at.asked
    assert (slot, message["steps"]) == (1, 5)
    assert at.reported == [{"number": 1, "file": message["token"], **STORED}]
    assert at.stage.events("worker.profile") == [{"rank": 1, "profile": 1}]


@scene
async def test_what_a_rank_says_is_passed_on() -> None:
    at = Scene()
    at.answers = {0: {"error": "its script has not imported PyTorch"}}
    at.ask()
    await at.stage.after(1.0)
    assert at.why == "its script has not imported PyTorch"


@scene
async def test_a_rank_that_is_not_there_is_said_at_once() -> None:
    at = Scene(2)
    at.ask(rank=2)
    await at.stage.after(0.5)
    assert at.why == "the worker group has 2 ranks now, from 0"


@scene
async def test_a_frozen_node_ends_the_request() -> None:
    at = Scene()
    at.stage.frozen.add(0)
    at.ask()
    await at.stage.after(30.0)
    assert "its supervisor does not answer" in at.why


@scene
async def test_a_rank_that_takes_no_step_ends_the_request_in_time() -> None:
    at = Scene()
    at.ask()
    await at.stage.after(PROFILE_S)
    assert at.reported == []
    await at.stage.after(70.0)
    assert at.why == "it did not take 5 steps within 300 s: ask for fewer of them"


@pytest.mark.parametrize("how", ["lost in place", "ended", "replaced"])
def test_a_rank_that_is_lost_while_it_is_profiled_ends_the_request(how: str) -> None:
    async def act() -> None:
        at = Scene()
        at.ask(rank=2)
        await at.stage.after(5.0)
        match how:
            case "lost in place":
                at.stage.kill(2)
            case "ended":
                at.stage.group_members.ended.add(2)
            case "replaced":
                members = at.stage.group_members
                members.open([replace(one) for one in members.by_slot.values()])
        await at.stage.after(3.0)
        assert at.why == "its process ended, or was lost, before the profile was there"

    play(act())


@scene
async def test_a_rank_goes_on_when_another_one_is_lost() -> None:
    at = Scene()
    at.ask(rank=0)
    await at.stage.after(5.0)
    at.stage.kill(2)
    await at.stage.after(30.0)
    assert at.reported == []
    (slot, message) = at.asked[0]
    at.profiles.receive(slot, {"type": "profile", "token": message["token"], **STORED})
    await at.stage.after(1.0)
    assert [one["file"] for one in at.reported] == [message["token"]]


@scene
async def test_one_is_made_at_a_time_and_answers_to_another_question_do_not_count() -> None:
    at = Scene()
    at.ask(1)
    at.ask(2)
    await at.stage.after(2.0)
    ((slot, first),) = at.asked
    at.profiles.receive(slot, {"type": "profile", "token": "of before", **STORED})
    at.profiles.receive(1, {"type": "profile", "token": first["token"], **STORED})
    await at.stage.after(2.0)
    assert at.reported == []
    at.profiles.receive(slot, {"type": "profile", "token": first["token"], **STORED})
    await at.stage.after(2.0)
    assert [one["number"] for one in at.reported] == [1]
    assert len(at.asked) == 2

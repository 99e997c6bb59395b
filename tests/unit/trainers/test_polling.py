"""What drivers answer when they are polled: one that answers wrongly concerns its own attempt alone."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RaySystemError, RayTaskError

from remora.states import EndReason
from trainers import driver_actors, launch
from trainers.launch import RayLauncher
from trainers.plan import DriverGone, Record

RECORD = Record(seq=1, at=2.0, kind="log", body={"rank": 0, "stream": "stdout", "text": "x"})


class Driver:
    """An actor that answers each poll with the same, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.poll = self

    def remote(self, after: int, limit: int) -> Driver:
        assert (after, limit) == (0, launch.ROWS_AT_ONCE)
        return self


def get(reference: Driver) -> Any:
    if isinstance(reference.answer, Exception):
        raise reference.answer
    return reference.answer


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Driver]:
    made: dict[str, Driver] = {}
    monkeypatch.setattr(launch.ray, "wait", lambda references, **_: (references, []))
    monkeypatch.setattr(launch.ray, "get", get)
    monkeypatch.setattr(driver_actors, "name_of", lambda attempt_id: attempt_id)
    monkeypatch.setattr(driver_actors, "find", made.get)
    monkeypatch.setattr(launch, "free_resources", lambda attempt_id: None)
    return made


@pytest.mark.parametrize(
    "answer",
    [7, "text", {"a": 1}, (RECORD,), [RECORD, "x"], [Record.__new__(Record)],
     [replace(RECORD, body=7)], [replace(RECORD, seq="1")], pickle.UnpicklingError("code"), RaySystemError("refused"),
     RayTaskError("poll", "a traceback", KeyError("a")), AttributeError("cause")],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_a_driver_that_answers_wrongly_is_asked_again_and_the_others_are_heard(
    drivers: dict[str, Driver], caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    drivers.update(hostile=Driver(answer), ours=Driver([RECORD]))
    launcher = RayLauncher()
    with caplog.at_level(logging.WARNING):
        assert launcher.poll(["hostile", "ours"], {}) == {"ours": [RECORD]}
    assert "attempt hostile" in caplog.text
    drivers["hostile"].answer = [RECORD]
    assert launcher.poll(["ours", "hostile"], {}) == {"ours": [RECORD], "hostile": [RECORD]}


def test_an_actor_that_is_no_driver_is_looked_up_again_and_the_others_are_heard(
    drivers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    drivers.update(hostile=object(), ours=Driver([RECORD]))
    launcher = RayLauncher()
    assert launcher.poll(["hostile", "ours"], {}) == {"ours": [RECORD]}
    assert "attempt hostile" in caplog.text
    drivers["hostile"] = Driver([RECORD])
    assert launcher.poll(["hostile"], {}) == {"hostile": [RECORD]}


def test_a_driver_that_died_or_lost_its_plan_ends_its_attempt(drivers: dict[str, Driver]) -> None:
    drivers.update(died=Driver(ActorDiedError()), empty=Driver(None), ours=Driver([RECORD]))
    answers = RayLauncher().poll(["died", "empty", "ours"], {})
    assert answers.pop("ours") == [RECORD]
    assert {one: said.reason for one, said in answers.items() if isinstance(said, DriverGone)} == {
        "died": EndReason.DRIVER_LOST,
        "empty": EndReason.DRIVER_LOST,
    }

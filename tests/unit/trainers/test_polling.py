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
from trainers.driver_protocol import PROTOCOL, spoken_with
from trainers.launch import RayLauncher
from trainers.plan import DriverGone, Record

RECORD = Record(seq=1, at=2.0, kind="log", body={"rank": 0, "stream": "stdout", "text": "x"})


class Driver:
    """An actor that answers each poll with the same, or raises it."""

    def __init__(self, answer: object, protocol: object = None) -> None:
        self.answer = answer
        self.poll = self
        if protocol is not None:
            self.protocol = Said(protocol)

    def remote(self, after: int, limit: int) -> Driver:
        assert (after, limit) == (0, launch.ROWS_AT_ONCE)
        return self


class Said:
    """A call, and its answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def remote(self) -> Said:
        return self


def get(reference: Driver | Said) -> Any:
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


@pytest.mark.parametrize("spoken", [0, 1, PROTOCOL - 1, PROTOCOL, PROTOCOL + 1, "2", 2.0, None])
def test_drivers_of_this_protocol_and_the_one_before_are_heard(
    drivers: dict[str, Driver], spoken: object
) -> None:
    drivers.update(other=Driver([RECORD], spoken), ours=Driver([RECORD], PROTOCOL))
    answers = RayLauncher().poll(["other", "ours"], {})
    assert answers.pop("ours") == [RECORD]
    # None: a driver of a release that has no such call.
    if spoken is None or (type(spoken) is int and spoken in (PROTOCOL - 1, PROTOCOL)):
        assert answers == {"other": [RECORD]}
        return
    (said,) = answers.values()
    assert isinstance(said, DriverGone)
    assert said.reason is EndReason.DRIVER_LOST
    assert said.message == (
        f"The driver of this attempt speaks protocol {spoken}, and this release protocols {PROTOCOL - 1} and"
        f" {PROTOCOL}: another driver goes on from the newest checkpoint."
    )


def test_a_driver_that_cannot_be_read_at_all_is_known_by_its_number(drivers: dict[str, Driver]) -> None:
    drivers["other"] = Driver(pickle.UnpicklingError("a class of a later release"), PROTOCOL + 1)
    launcher = RayLauncher()
    said = launcher.poll(["other"], {}).get("other") or launcher.poll(["other"], {})["other"]
    assert isinstance(said, DriverGone)


def test_what_a_driver_reports_waits_for_its_number(
    drivers: dict[str, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers["late"] = Driver([RECORD], PROTOCOL)
    late = drivers["late"].protocol
    monkeypatch.setattr(
        launch.ray, "wait", lambda found, **_: ([one for one in found if one is not late], [])
    )
    launcher = RayLauncher()
    assert launcher.poll(["late"], {}) == {}
    monkeypatch.setattr(launch.ray, "wait", lambda found, **_: (found, []))
    assert launcher.poll(["late"], {}) == {"late": [RECORD]}


def test_a_driver_that_this_release_started_on_a_node_of_one_without_numbers_is_heard(
    drivers: dict[str, Driver],
) -> None:
    drivers["first"] = Driver([RECORD], RayTaskError("protocol", "a traceback", AttributeError("protocol")))
    assert RayLauncher().poll(["first"], {}) == {"first": [RECORD]}


@pytest.mark.parametrize(
    ("service", "spoken"),
    [(PROTOCOL - 2, None), (PROTOCOL - 1, PROTOCOL - 1), (PROTOCOL, PROTOCOL), (PROTOCOL + 1, PROTOCOL)],
)
def test_a_driver_speaks_what_its_service_knows(service: int, spoken: int | None) -> None:
    assert spoken_with(service) == spoken

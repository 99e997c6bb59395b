"""The service answers what drivers ask of storages: for the scopes of their attempts, whatever becomes of a driver."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from queue import SimpleQueue
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RaySystemError

from trainers import driver_actors, storage_server
from trainers.storage_grants import Scope, Scopes, StorageAnswer, StorageRequest
from trainers.storage_server import StorageServer

RED, BLUE = {"az://x": Scope(writes=("jobs/red",))}, {"az://x": Scope(writes=("jobs/blue",))}
REQUEST = StorageRequest(url="az://x", action="read", names=("jobs/blue/a",))


class Driver:
    """An actor that is polled: its answer comes when it asks for something, or when it dies."""

    def __init__(self) -> None:
        self.polls: SimpleQueue[Future[Any]] = SimpleQueue()
        self.answers: SimpleQueue[dict[int, StorageAnswer]] = SimpleQueue()
        self.storage_poll = self.storage_answer = self

    def remote(self, *answers: dict[int, StorageAnswer]) -> Future[Any] | None:
        if answers:
            self.answers.put(*answers)
            return None
        made: Future[Any] = Future()
        self.polls.put(made)
        return made

    def ask(self, number: int) -> StorageAnswer:
        """Ask for something, once it is polled; the answer."""
        self.polls.get(timeout=10.0).set_result([(number, REQUEST)])
        return self.answers.get(timeout=10.0)[number]

    def die(self) -> None:
        self.polls.get(timeout=10.0).set_exception(ActorDiedError())


class Ray:
    """Of Ray what the server uses, on futures."""

    def __init__(self) -> None:
        self.drivers: dict[str, Driver] = {}
        self.is_gone = threading.Event()

    def find(self, name: str) -> Driver | None:
        return self.drivers.get(name)

    def wait(self, references: Sequence[Future[Any]], num_returns: int, timeout: float) -> tuple[Any, Any]:
        assert num_returns == 1
        if self.is_gone.is_set():
            self.is_gone.clear()
            raise ConnectionError("Ray is gone")
        return wait(references, timeout, FIRST_COMPLETED)

    def get(self, reference: Future[Any]) -> Any:
        return reference.result(0)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setattr(storage_server.ray, "wait", made.wait)
    monkeypatch.setattr(storage_server.ray, "get", made.get)
    monkeypatch.setattr(driver_actors, "find", made.find)
    monkeypatch.setattr(driver_actors, "name_of", lambda attempt_id: attempt_id)
    monkeypatch.setattr(storage_server, "_PAUSE_S", 0.01)
    return made


@pytest.fixture
def serve(ray: Ray) -> Iterator[Callable[[dict[str, Scopes]], None]]:
    def answer(scopes: Scopes, _: StorageRequest) -> StorageAnswer:
        return StorageAnswer(refusal=str(scopes["az://x"].writes[0]))

    server = StorageServer(answer)
    yield server.serve
    server.close()
    if server._thread is not None:
        server._thread.join(10.0)
        assert not server._thread.is_alive()


def test_each_driver_is_answered_for_the_scopes_of_its_attempt(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None]
) -> None:
    red, blue = ray.drivers["a"], ray.drivers["b"] = Driver(), Driver()
    serve({"a": RED, "b": BLUE})
    # Both ask for a file of blue.
    assert red.ask(1).refusal == "jobs/red"
    assert blue.ask(7).refusal == "jobs/blue"
    assert red.ask(2).refusal == "jobs/red", "it is polled again"


def test_a_driver_that_died_is_replaced_by_the_next_one_of_its_name(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None]
) -> None:
    first = ray.drivers["a"] = Driver()
    serve({"a": RED})
    assert first.ask(1).refusal == "jobs/red"
    second = Driver()
    ray.drivers["a"] = second
    first.die()
    assert second.ask(1).refusal == "jobs/red"


def test_one_that_is_not_there_yet_is_found_later_and_others_do_not_wait_for_it(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None]
) -> None:
    red = ray.drivers["a"] = Driver()
    serve({"late": BLUE, "a": RED})
    assert red.ask(1).refusal == "jobs/red"
    late = ray.drivers["late"] = Driver()
    assert late.ask(1).refusal == "jobs/blue"


def test_an_attempt_that_is_served_no_more_is_not_answered(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None]
) -> None:
    red, blue = ray.drivers["a"], ray.drivers["b"] = Driver(), Driver()
    serve({"a": RED, "b": BLUE})
    asked = red.polls.get(timeout=10.0)
    assert blue.ask(1).refusal == "jobs/blue"
    serve({"b": BLUE})
    # A step passes in which it is no longer served.
    assert blue.ask(2).refusal == "jobs/blue"
    asked.set_result([(1, REQUEST)])
    for number in range(3, 6):
        assert blue.ask(number).refusal == "jobs/blue"
    assert red.answers.empty()


def test_an_actor_that_is_no_driver_keeps_no_other_waiting(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_server, "_PAUSE_S", 3600.0)
    monkeypatch.setitem(ray.drivers, "a", object())  # type: ignore[arg-type]
    blue = ray.drivers["b"] = Driver()
    serve({"a": RED, "b": BLUE})
    assert blue.ask(1).refusal == "jobs/blue"


def test_it_goes_on_when_ray_does_not_answer_for_a_moment(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None]
) -> None:
    red = ray.drivers["a"] = Driver()
    ray.is_gone.set()
    serve({"a": RED})
    assert red.ask(1).refusal == "jobs/red"
    assert not ray.is_gone.is_set()


@pytest.mark.parametrize(
    "answer",
    [7, None, [7], [(1, "a")], [("a", REQUEST)], [(1, REQUEST, 2)], {1: REQUEST}, pickle.UnpicklingError("code"),
     RaySystemError("refused"), KeyError("cause")],
    ids=repr,
)  # fmt: skip
def test_what_is_no_list_of_requests_pauses_its_driver_alone(
    ray: Ray, serve: Callable[[dict[str, Scopes]], None], monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    monkeypatch.setattr(storage_server, "_PAUSE_S", 3600.0)
    hostile, blue = ray.drivers["a"], ray.drivers["b"] = Driver(), Driver()
    serve({"a": RED, "b": BLUE})
    asked = hostile.polls.get(timeout=10.0)
    if isinstance(answer, Exception):
        asked.set_exception(answer)
    else:
        asked.set_result(answer)
    for number in range(3):
        assert blue.ask(number).refusal == "jobs/blue"
    assert hostile.polls.empty()

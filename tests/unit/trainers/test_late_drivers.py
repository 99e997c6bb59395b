"""Drivers that Ray has not begun with are asked for again after another head came, and for no other reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainers import driver_actors, launch
from trainers.launch import RayLauncher
from trainers.ray_train.start_limit import AFTER_HEAD_S

PLAN: Any = SimpleNamespace(attempt_id="att_one", closed_nodes=())
DRIVER = "driver-att_one"


class Ray:
    """What controllers see of Ray: its store, its heads, and drivers, of which none answers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.heads = frozenset({"head-1"})
        self.store: dict[bytes, bytes] = {}
        self.reads: list[bytes] = []
        self.drivers: dict[str, Any] = {}
        self.ended: list[str] = []
        self.pending = True
        #: Drivers that the head calls dead; handles of them are still found.
        self.lost: set[str] = set()

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True, namespace: bytes) -> None:
        assert namespace == driver_actors.KV_NAMESPACE
        if overwrite or key not in self.store:
            self.store[key] = value

    def get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        assert namespace == driver_actors.KV_NAMESPACE
        self.reads.append(key)
        return self.store.get(key)

    def delete(self, key: bytes, *, namespace: bytes) -> int:
        assert namespace == driver_actors.KV_NAMESPACE
        return int(self.store.pop(key, None) is not None)

    def make(self, name: str) -> Any:
        answers = SimpleNamespace(remote=lambda *_: object())
        return self.drivers.setdefault(name, SimpleNamespace(start=answers))

    def end(self, name: str) -> None:
        self.ended.append(name)
        self.drivers.pop(name, None)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setattr(driver_actors.internal_kv, "_internal_kv_put", ray.put)
    monkeypatch.setattr(driver_actors.internal_kv, "_internal_kv_get", ray.get)
    monkeypatch.setattr(driver_actors, "make", ray.make)
    monkeypatch.setattr(driver_actors, "find", ray.drivers.get)
    monkeypatch.setattr(driver_actors, "end", ray.end)
    monkeypatch.setattr(driver_actors, "is_pending", lambda name: ray.pending)
    monkeypatch.setattr(driver_actors, "is_lost", lambda name: name in ray.lost)
    monkeypatch.setattr(driver_actors.internal_kv, "_internal_kv_del", ray.delete)
    monkeypatch.setattr(launch, "living_heads", lambda: ray.heads)
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: ray.now))
    monkeypatch.setattr(launch.ray, "wait", lambda references, **_: ([], references))
    return ray


def look(ray: Ray, launcher: RayLauncher, seconds: float) -> None:
    """That controller asks once a second."""
    for _ in range(int(seconds)):
        ray.now += 1.0
        launcher.start(PLAN)


def test_a_controller_that_takes_over_ends_no_driver_of_the_head_that_is_there(ray: Ray) -> None:
    look(ray, RayLauncher(), 5.0)
    look(ray, RayLauncher(), 5 * AFTER_HEAD_S)
    assert ray.ended == [], "it only starts slowly"


def test_a_driver_that_a_killed_head_was_asked_for_is_asked_for_again_by_the_next_controller(
    ray: Ray,
) -> None:
    look(ray, RayLauncher(), 5.0)
    ray.heads = frozenset({"head-2"})
    later = RayLauncher()
    look(ray, later, AFTER_HEAD_S)
    assert ray.ended == []
    look(ray, later, 3.0)
    assert ray.ended == [DRIVER]
    look(ray, later, 1.0)
    assert DRIVER in ray.drivers
    # Now it is the next head that was asked, also for a third controller.
    look(ray, RayLauncher(), 5 * AFTER_HEAD_S)
    assert ray.ended == [DRIVER]


def test_one_that_a_controller_of_an_earlier_release_asked_for_counts_as_of_this_head(ray: Ray) -> None:
    driver_actors.give(PLAN.attempt_id, DRIVER)
    ray.make(DRIVER)
    later = RayLauncher()
    look(ray, later, 5 * AFTER_HEAD_S)
    assert ray.ended == []
    ray.heads = frozenset({"head-2"})
    look(ray, later, AFTER_HEAD_S + 2.0)
    assert ray.ended == [DRIVER]


def test_one_that_the_next_head_calls_dead_is_asked_for_again_under_another_name(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = RayLauncher()
    look(ray, launcher, 1.0)
    # It was not placed yet when the head was killed, and this process was not informed: it finds its handle on and on.
    ray.heads, ray.pending, ray.lost = frozenset({"head-2"}), False, {DRIVER}
    monkeypatch.setattr(driver_actors, "end", ray.ended.append)
    look(ray, launcher, AFTER_HEAD_S + 3.0)
    assert ray.ended == [DRIVER]
    (name,) = ray.drivers.keys() - {DRIVER}
    assert driver_actors.name_of(PLAN.attempt_id) == name
    look(ray, launcher, 5 * AFTER_HEAD_S)
    assert ray.ended == [DRIVER], "the next one is given its time"


def test_one_that_was_lost_from_sight_is_ended_before_its_attempt_counts_as_over(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = RayLauncher()
    look(ray, launcher, 1.0)
    ray.heads, ray.pending, ray.lost = frozenset({"head-2"}), False, {DRIVER}
    monkeypatch.setattr(driver_actors, "end", ray.ended.append)
    look(ray, launcher, AFTER_HEAD_S + 3.0)
    (name,) = ray.drivers.keys() - {DRIVER}
    # It lives after all, and another controller ends the attempt.
    ray.lost = set()
    ray.ended.clear()
    monkeypatch.setattr(launch.ray, "kill", lambda *_, **__: ray.drivers.pop(name, None))
    monkeypatch.setattr(launch, "free_resources", lambda _: None)
    later = RayLauncher()
    assert not later.kill(PLAN.attempt_id)
    assert ray.ended == [DRIVER]
    ray.lost = {DRIVER}
    assert later.kill(PLAN.attempt_id)
    assert (driver_actors.former(PLAN.attempt_id), driver_actors.name_of(PLAN.attempt_id)) == ((), None)
    ray.ended.clear()
    assert later.kill(PLAN.attempt_id)
    assert ray.ended == [], "nothing is ended twice"


def test_one_that_has_begun_is_not_ended(ray: Ray) -> None:
    launcher = RayLauncher()
    look(ray, launcher, 1.0)
    ray.heads, ray.pending = frozenset({"head-2"}), False
    look(ray, launcher, 5 * AFTER_HEAD_S)
    assert ray.ended == []


def test_looks_at_a_driver_that_starts_ask_the_store_nothing(ray: Ray) -> None:
    launcher = RayLauncher()
    look(ray, launcher, 1.0)
    ray.reads.clear()
    look(ray, launcher, 100.0)
    assert ray.reads == []

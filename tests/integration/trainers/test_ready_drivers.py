"""Drivers wait for the next attempts: each is given away once, whichever controller dies or stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from tests.integration.trainers.lab import Lab, until
from trainers import driver_actors, ready_drivers
from trainers.launch import RayLauncher
from trainers.plan import AttemptPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Of the attempt, as its ranks have it in their environment.
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> Iterator[None]:
    """They are made without waiting for a quiet time, and none is left for the tests that follow."""
    monkeypatch.setattr("trainers.launch._QUIET_AFTER_S", 0.0)
    monkeypatch.setattr("trainers.launch._LOOK_S", 0.0)
    lab.nodes(2)
    yield
    RayLauncher(ready_drivers=0).prepare(1000)
    until(lambda: not ready(), "no driver waits for the tests that follow")


def ready() -> set[str]:
    """Names of the drivers that were made ready, those that an attempt has got included."""
    return {name for name in ray.util.list_named_actors() if name.startswith("driver-ready-")}


def made_ready(launcher: RayLauncher, token: int, count: int = 2) -> set[str]:
    """Names of that number of drivers that wait, made by that launcher under that lease."""

    def look() -> set[str]:
        launcher.prepare(token)
        return {name for name in ready() if name.startswith(f"driver-ready-{token}-")}

    names: set[str] = until(lambda: len(found := look()) == count and found, f"{count} drivers wait")
    return names


def a_plan(lab: Lab) -> AttemptPlan:
    script = "import os\nprint('done in', os.environ['TRACEPARENT'])"
    return lab.plan(
        {"train.py": script}, "python", "train.py", min_workers=1, max_workers=1, traceparent=TRACE
    )


def run_to_its_end(lab: Lab, *plans: AttemptPlan) -> None:
    """Each of them runs, and its driver ends."""
    for plan in plans:
        run = lab.start(plan)
        assert run.end()["end_reason"] == "completed"
        assert run.text("stdout") == f"done in {TRACE}"
        until(lambda: run.launcher.kill(plan.attempt_id), "its driver is gone")  # noqa: B023


def test_two_attempts_in_a_row_get_a_ready_driver_each(lab: Lab) -> None:
    launcher = RayLauncher(ready_drivers=2)
    both = made_ready(launcher, 1)
    plans = [a_plan(lab) for _ in range(3)]
    for plan in plans:
        launcher.start(plan)
    names = [driver_actors.name_of(plan.attempt_id) for plan in plans]
    assert set(names[:2]) == both
    assert names[2] == f"driver-{plans[2].attempt_id}", "the third one starts its own"
    # Starting again, by whomever, starts nothing.
    for plan in plans:
        lab.start(plan)
    assert [driver_actors.name_of(plan.attempt_id) for plan in plans] == names
    launcher.prepare(1)
    assert both <= ready(), "those that attempts have got are no ready ones any more"
    run_to_its_end(lab, *plans)


def test_a_driver_that_died_while_it_waited_is_given_to_no_attempt(lab: Lab) -> None:
    launcher = RayLauncher(ready_drivers=2)
    first, second = sorted(made_ready(launcher, 1))
    ray.kill(ray.get_actor(first, namespace=driver_actors.NAMESPACE))
    until(lambda: first not in ready(), "it is dead")
    plans = [a_plan(lab) for _ in range(2)]
    for plan in plans:
        launcher.start(plan)
    names = [driver_actors.name_of(plan.attempt_id) for plan in plans]
    assert names == [second, f"driver-{plans[1].attempt_id}"]
    run_to_its_end(lab, *plans)


def test_a_stopped_controller_that_goes_on_neither_takes_nor_ends_those_of_the_acting_one(lab: Lab) -> None:
    stopped, acting = RayLauncher(ready_drivers=2), RayLauncher(ready_drivers=2)
    old = made_ready(stopped, 1)
    new = made_ready(acting, 2)
    until(lambda: not ready() & old, "the later controller ends those of the earlier one")
    # It goes on: within its tick it makes drivers ready and starts an attempt.
    for _ in range(3):
        stopped.prepare(1)
    assert new <= ready()
    plan = a_plan(lab)
    stopped.start(plan)
    assert driver_actors.name_of(plan.attempt_id) not in new
    own = ready() - new
    acting.prepare(2)
    taken = {driver_actors.name_of(plan.attempt_id)}
    until(lambda: not ready() & own - taken, "what it has made ready is ended")
    plans = [a_plan(lab) for _ in range(2)]
    for one in plans:
        acting.start(one)
    assert {driver_actors.name_of(one.attempt_id) for one in plans} == new
    run_to_its_end(lab, plan, *plans)


def test_a_controller_that_was_stopped_as_it_took_one_goes_on_when_another_has_ended_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, acting = RayLauncher(ready_drivers=1), RayLauncher(ready_drivers=0)
    (name,) = made_ready(stopped, 1, 1)
    plan = a_plan(lab)
    give = driver_actors.give

    def stops(attempt_id: str, found: str) -> str:
        cut.undo()
        acting.start(plan)
        acting.prepare(2)
        until(lambda: name not in ready(), "it is ended")
        return give(attempt_id, found)

    with monkeypatch.context() as cut:
        cut.setattr(driver_actors, "give", stops)
        stopped.start(plan)
    assert driver_actors.name_of(plan.attempt_id) == f"driver-{plan.attempt_id}"
    run_to_its_end(lab, plan)
    assert ready() == set(), "the driver that it had taken does not come to life again"


def test_what_a_controller_leaves_that_died_as_it_made_or_took_one_is_ended(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = RayLauncher(ready_drivers=2)
    made_ready(died, 1, 2)
    # It took one, and stored for no attempt that it has it.
    assert died._ready_drivers.take() is not None
    # It wrote down that it makes one, and made none.
    with monkeypatch.context() as cut:
        cut.setattr(driver_actors, "make", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            died._ready_drivers._start(frozenset())
    later = RayLauncher(ready_drivers=0)
    later.prepare(2)
    until(lambda: ready() == set(), "no driver of it is left")
    assert ready_drivers._entries() == set()


def test_when_the_setting_is_none_no_driver_waits(lab: Lab) -> None:
    launcher = RayLauncher(ready_drivers=0)
    launcher.prepare(1)
    assert ready() == set()
    plan = a_plan(lab)
    launcher.start(plan)
    assert driver_actors.name_of(plan.attempt_id) == f"driver-{plan.attempt_id}"
    run_to_its_end(lab, plan)

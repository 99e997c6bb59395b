"""What is bought for a job that waits is kept for it, and the drivers of the others hear of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.states import JobState, NodeState
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store.database import Database
from tests.contracts.service.buying import DOCUMENT, SOLD, apply, living, train
from tests.service_fakes import FakeDriver, World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    world = World(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    world.buys = True
    world.supply.sold = SOLD
    world.controller = world.new_controller()
    return world


def bought_for(world: World, job_id: str) -> list[NodeRow]:
    return [node for node in living(world) if node.bought_for == job_id]


def one_that_grows(world: World) -> FakeDriver:
    """The driver of a job that could use three nodes, and has the two that there may be."""
    apply(world, DOCUMENT.format(max_nodes=2))
    grows = world.submit(min_workers=1, max_workers=3)
    for _ in world.ticks_until("two nodes are ready and it starts"):
        ready = [node for node in living(world) if node.state is NodeState.READY]
        if len(ready) == 2 and world.job(grows).state is JobState.ADMITTED:
            break
    train(world, grows)
    return world.launcher.driver_of(grows)


def one_that_waits(world: World) -> tuple[str, NodeRow]:
    """Another job, and the third node, which was just bought for it."""
    apply(world, DOCUMENT.format(max_nodes=3))
    waits = world.submit(min_workers=1, max_workers=1)
    for _ in world.ticks_until("a node is bought for it"):
        if found := bought_for(world, waits):
            return waits, found[0]
    raise AssertionError("unreachable")


def starts(world: World, job_id: str) -> None:
    for _ in world.ticks_until("it starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            return


def test_the_job_starts_on_it_beside_one_that_could_grow_there(world: World) -> None:
    one_that_grows(world)
    waits, _ = one_that_waits(world)
    starts(world, waits)


def test_drivers_hear_of_it_before_the_node_is_ready_and_once_and_when_the_job_trains(world: World) -> None:
    driver = one_that_grows(world)
    waits, node = one_that_waits(world)
    assert node.state is not NodeState.READY
    assert driver.heard == [{node.id: waits}]
    starts(world, waits)
    world.tick(5)
    own = world.launcher.driver_of(waits)
    assert own.heard == driver.heard == [{node.id: waits}], "its own driver, too, and none of them twice"

    (node,) = bought_for(world, waits)
    own.report("progress", at=world.now, state="running", world_size=1, workers={node.address: 1})
    world.tick(2)
    assert own.heard[1:] == driver.heard[1:] == [{}]


def test_nothing_is_kept_for_a_job_that_was_cancelled(world: World) -> None:
    driver = one_that_grows(world)
    waits, node = one_that_waits(world)
    world.cancel(waits)
    world.tick(2)
    assert driver.heard == [{node.id: waits}, {}]


def test_nothing_is_kept_for_a_job_that_nothing_can_hold_any_more(world: World) -> None:
    driver = one_that_grows(world)
    waits, node = one_that_waits(world)
    apply(
        world,
        DOCUMENT.format(max_nodes=3).replace("cpu:", "other:").replace("Standard_D4s_v5", "Standard_D8s_v5"),
    )
    world.tick(2)
    assert world.job(waits).state is JobState.QUEUED
    assert driver.heard == [{node.id: waits}, {}]


def test_a_driver_that_could_not_be_reached_is_sent_it_later_and_no_other_one_is_delayed(
    world: World,
) -> None:
    driver = one_that_grows(world)
    world.launcher.failing["keep"] = RuntimeError("the head does not answer")
    waits, node = one_that_waits(world)
    world.tick()
    assert driver.heard == []
    del world.launcher.failing["keep"]
    world.tick()
    assert driver.heard == [{node.id: waits}]
    starts(world, waits)


def test_of_one_that_cannot_be_sent_it_the_others_get_it_in_that_tick(world: World) -> None:
    driver = one_that_grows(world)
    waits, _ = one_that_waits(world)
    starts(world, waits)
    world.tick(5)
    own = world.launcher.driver_of(waits)
    (node,) = bought_for(world, waits)
    world.launcher.failing[f"keep {driver.plan.attempt_id}"] = AttributeError("keep")
    own.report("progress", at=world.now, state="running", world_size=1, workers={node.address: 1})
    world.tick(2)
    assert (own.heard[1:], driver.heard[1:]) == ([{}], [])
    world.launcher.failing.clear()
    world.tick()
    assert driver.heard[1:] == [{}]

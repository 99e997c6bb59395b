"""Which environments nodes are asked to build while jobs wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.isolation import Isolation
from remora.spec.spec import JobSpec
from remora.states import JobState, NodeState
from service.settings import Settings
from service.store.database import Database
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    world = World(database, Settings(home=tmp_path, nodes=2, node_cpus=1, lease_s=5.0))
    for _ in world.ticks_until("the nodes are ready"):
        if [node.state for node in world.nodes()] == [NodeState.READY] * 2:
            break
    return world


def with_environment(**fields: object) -> dict[str, object]:
    spec = JobSpec.from_mapping(
        {"command": "python train.py", "environment": {"pip": ["tiny==1.0"]}, **fields}
    )
    return spec.to_mapping()


def on_nodes(world: World) -> dict[str, tuple[str, ...]]:
    """The nodes that shall build the environment of each job."""
    return {one.job_id: tuple(sorted(one.nodes)) for one in world.launcher.preparations}


def test_nodes_build_the_environment_of_a_job_until_it_starts(world: World) -> None:
    busy = world.submit(spec=with_environment(), min_workers=2, max_workers=2)
    world.tick()
    assert world.job(busy).state is JobState.ADMITTED
    assert on_nodes(world) == {busy: ()}, "its attempt builds it, and a build that has begun goes on"
    waits = world.submit(spec=with_environment())
    world.submit()
    world.tick()
    assert on_nodes(world) == {waits: tuple(sorted(node.id for node in world.nodes())), busy: ()}
    assert {one.request.pip for one in world.launcher.preparations} == {("tiny==1.0",)}
    world.launcher.driver_of(busy).report("ended", end_reason="completed", message="done", exit_code=0)
    for _ in world.ticks_until("it starts"):
        if world.job(waits).state is JobState.ADMITTED:
            break
    assert on_nodes(world) == {waits: ()}, "its workers may wait for a build that has begun"


def test_nothing_is_built_any_more_for_a_job_that_was_cancelled(world: World) -> None:
    world.submit(min_workers=2, max_workers=2)
    waits = world.submit(spec=with_environment())
    world.tick()
    assert [one.job_id for one in world.launcher.preparations] == [waits]
    world.cancel(waits)
    world.tick()
    assert world.launcher.preparations == ()


@pytest.mark.parametrize(
    ("asked", "host", "expected"), [("auto", "0.0.0.0", "users"), ("none", "::1", "none")]
)
def test_what_is_built_ahead_is_kept_apart_as_the_job_is(
    asked: Isolation, host: str, expected: str, database: Database, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, nodes=1, node_cpus=1, lease_s=5.0, host=host, isolation=asked)
    world = World(database, settings)
    for _ in world.ticks_until("the node is ready"):
        if [node.state for node in world.nodes()] == [NodeState.READY]:
            break
    world.submit(spec=with_environment())
    world.submit(spec=with_environment())
    world.tick()
    assert len(world.launcher.preparations) == 2, "one that starts, and one that waits"
    assert {one.isolation for one in world.launcher.preparations} == {expected}

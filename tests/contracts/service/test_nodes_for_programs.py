"""Nodes for Ray programs that are no jobs, through the controller's loops; on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cluster.scheduling.ray_programs import Bundle, Gang, RayDemand, Strategy
from remora.states import JobState, NodeState
from remora.views import ClusterEvent, Page, RayRequest
from service.api.app import create_app
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import spending
from service.store.database import Database
from tests.contracts.service.buying import DOCUMENT, apply, buying_world, living
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

SERVING = DOCUMENT.format(max_nodes=4) + "projects: {{ray: {{usd_per_day: {usd}}}}}\nray_programs: {{}}\n"
CPU = Bundle({"CPU": 1.0})
GANG = RayDemand(gangs=(Gang("ab" * 18, Strategy.STRICT_SPREAD, (CPU, CPU)),))


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home", database_url=database_url, nodes=2, cloud="azure-emulated", lease_s=5.0
    )


@pytest.fixture
def world(database: Database, settings: Settings) -> World:
    world = buying_world(database, settings)
    apply(world, SERVING.format(usd=5))
    return world


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def asked(client: TestClient) -> list[RayRequest]:
    answer = client.get("/v1/ray-requests")
    assert answer.status_code == 200, answer.text
    return Page[RayRequest].model_validate_json(answer.content).items


def refusals(client: TestClient) -> list[ClusterEvent]:
    events = Page[ClusterEvent].model_validate_json(client.get("/v1/events").content).items
    return [event for event in events if event.kind == "ray_program.refused"]


def ready(world: World) -> list[NodeRow]:
    return [node for node in living(world) if node.state is NodeState.READY]


def test_a_gang_gets_its_nodes_and_they_are_given_back_once_it_has_ended(
    world: World, client: TestClient
) -> None:
    world.ray_programs.demand = GANG
    for _ in world.ticks_until("nodes for the gang"):
        if len(ready(world)) == 2:
            break
    assert {node.project for node in living(world)} == {"ray"}
    (request,) = asked(client)
    assert (request.kind, request.strategy, request.count, request.project) == (
        *("placement_group", "STRICT_SPREAD", 2),
        "ray",
    )
    # It runs, on nodes that Ray says are in use.
    world.ray_programs.demand = RayDemand(held={node.id: {"CPU": 1.0} for node in ready(world)})
    world.cluster.in_use = {node.id for node in ready(world)}
    world.tick()
    assert asked(client) == []
    world.now += 3600.0
    world.tick(3)
    assert len(ready(world)) == 2, "what a program uses is not idle"
    assert len(living(world)) == 2, "and nothing more is bought for it"
    _, projects = world.database.query(lambda c: spending.spent(c, world.now))
    assert projects["ray"].today == pytest.approx(2 * 0.04, rel=0.05)
    # It ends.
    world.ray_programs.demand, world.cluster.in_use = RayDemand(), set()
    for _ in world.ticks_until("the nodes go"):
        world.now += 10.0
        if not living(world):
            break


def test_a_program_of_which_nothing_is_counted_keeps_its_node(world: World) -> None:
    """An actor without resources: Ray calls the node's resources free."""
    world.ray_programs.demand = GANG
    for _ in world.ticks_until("nodes for the gang"):
        if len(ready(world)) == 2:
            break
    kept = ready(world)[0].id
    world.ray_programs.demand = RayDemand(held={kept: {}})
    for _ in range(30):
        world.now += 10.0
        world.tick()
    assert [node.id for node in living(world)] == [kept]


def test_what_no_pool_can_hold_is_refused_once_with_an_event(world: World, client: TestClient) -> None:
    world.ray_programs.demand = RayDemand(tasks=((Bundle({"TPU": 1.0}), 3),))
    for _ in world.ticks_until("it is refused"):
        if asked(client):
            break
    (request,) = asked(client)
    assert request.is_refused
    assert request.reason == "no node of the pools (cpu) has 1 TPU"
    world.tick(5)
    world.succeed()
    for _ in range(20):
        world.tick()
    (event,) = refusals(client)
    assert event.message == (
        "nothing is bought for tasks and actors (3 of 1 TPU) of a Ray program: no node of the pools (cpu) has 1 TPU"
    )
    assert living(world) == []


def test_of_a_group_of_different_bundles_a_part_may_be_bought_which_its_reasons_say(
    world: World, client: TestClient
) -> None:
    apply(world, SERVING.format(usd=5).replace("max_nodes: 4", "max_nodes: 1"))
    half = Bundle({"CPU": 0.5})
    world.ray_programs.demand = RayDemand(gangs=(Gang("ab" * 18, Strategy.PACK, (CPU, half)),))
    for _ in world.ticks_until("a node for one of them"):
        if len(ready(world)) == 1:
            break
    world.tick()
    said = [one.reason for one in asked(client)]
    assert len(said) == 2
    for reason in said:
        assert reason.endswith(
            "; nodes for other bundles of its placement group may be there already, and stay while it waits"
        )
    assert any("pool 'cpu' may have 1 node" in reason for reason in said)
    world.now += 600.0
    world.tick(3)
    assert len(ready(world)) == 1, "it stays"


def test_a_spent_budget_of_the_project_stops_growth_with_its_reason(world: World, client: TestClient) -> None:
    apply(world, SERVING.format(usd=0))
    world.ray_programs.demand = GANG
    for _ in world.ticks_until("it is shown"):
        if asked(client):
            break
    world.tick(3)
    assert living(world) == []
    assert asked(client)[0].reason.startswith("project 'ray' has spent 0.00 of 0.00 USD of the day")


def test_no_job_starts_on_what_a_program_holds(world: World) -> None:
    world.ray_programs.demand = GANG
    for _ in world.ticks_until("nodes for the gang"):
        if len(ready(world)) == 2:
            break
    world.ray_programs.demand = RayDemand(held={node.id: {"CPU": 1.0} for node in ready(world)})
    world.tick()
    job_id = world.submit(min_workers=1, max_workers=1)
    world.tick()
    assert world.job(job_id).state is JobState.QUEUED
    for _ in world.ticks_until("a node for the job"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    (own,) = [node for node in ready(world) if node.project is None]
    assert own.bought_for == job_id


@pytest.mark.parametrize("change", ["leader", "policies"])
def test_no_job_starts_before_it_is_known_what_programs_hold(world: World, change: str) -> None:
    """The loops that start jobs do not wait for the one that asks Ray."""
    world.ray_programs.demand = GANG
    for _ in world.ticks_until("nodes for the gang"):
        if len(ready(world)) == 2:
            break
    held = ready(world)[0]
    world.ray_programs.demand = RayDemand(held={held.id: {"CPU": 1.0}})
    if change == "leader":
        controller = world.succeed()
    else:
        controller = world.controller
        apply(world, DOCUMENT.format(max_nodes=2))
        world.tick(2)
        apply(world, SERVING.format(usd=5))
    world.now += 0.25
    jobs = [world.submit(min_workers=1, max_workers=1) for _ in range(2)]
    assert controller.holder.step(world.now) is not None
    assert controller.work(lambda: world.now)
    assert [world.job(one).state for one in jobs] == [JobState.QUEUED, JobState.QUEUED]
    # The first observation of a leader asks Ray; after new policies, the second one does.
    world.tick(1 if change == "leader" else 2)
    assert [world.job(one).state for one in jobs] == [JobState.ADMITTED, JobState.QUEUED]


def test_where_programs_are_not_served_nothing_is_asked_bought_or_shown(
    world: World, client: TestClient
) -> None:
    world.ray_programs.demand = GANG
    for _ in world.ticks_until("it is shown"):
        if asked(client):
            break
    apply(world, DOCUMENT.format(max_nodes=4))
    world.tick(2)
    assert asked(client) == []

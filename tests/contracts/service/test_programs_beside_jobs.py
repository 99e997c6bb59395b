"""Ray programs that hold nodes: their drain, what is shown of it, and their share beside jobs; on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cluster.scheduling.ray_programs import Bundle, RayDemand
from remora.states import JobState, NodeState
from service.api.app import create_app
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store.database import Database
from tests.contracts.service.buying import DOCUMENT, apply, buying_world, living
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

CPU = Bundle({"CPU": 1.0})


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home", database_url=database_url, nodes=2, cloud="azure-emulated", lease_s=5.0
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def document(max_nodes: int, **shares: int) -> str:
    projects = "".join(f"  {name}: {{share: {share}}}\n" for name, share in shares.items())
    pools = DOCUMENT.format(max_nodes=max_nodes).replace("drain_s: 60", "drain_s: 40")
    return f"{pools}{f'projects:{chr(10)}{projects}' if shares else ''}ray_programs: {{}}\n"


class Program:
    """Tasks of one CPU: as Ray would, it takes nodes that were bought for them, and others only when the test says."""

    def __init__(self, world: World, tasks: int) -> None:
        self.world = world
        self.waiting = tasks
        self.held: dict[str, dict[str, float]] = {}
        self.say()

    def say(self) -> None:
        """What Ray answers from now on."""
        tasks = ((CPU, self.waiting),) if self.waiting else ()
        self.world.ray_programs.demand = RayDemand(tasks=tasks, held=dict(self.held))
        self.world.cluster.in_use |= {node for node, has in self.held.items() if has}

    def take(self, nodes: list[NodeRow]) -> None:
        """A task begins on each of these, as long as any waits."""
        for node in nodes[: self.waiting]:
            self.held[node.id] = {"CPU": 1.0}
            self.waiting -= 1
        self.say()

    def end(self, node_id: str) -> None:
        """The task, or actor, on it ends."""
        del self.held[node_id]
        self.world.cluster.in_use.discard(node_id)
        self.say()


class Team:
    """Jobs of project `team` with one worker each."""

    def __init__(self, world: World, jobs: int) -> None:
        self.world = world
        self.jobs = [world.submit(project="team", min_workers=1, max_workers=1) for _ in range(jobs)]
        #: Node by job.
        self.on: dict[str, str] = {}

    def take(self, nodes: list[NodeRow]) -> None:
        """A worker begins on one of these for each job that was admitted."""
        admitted = [
            one for one in self.jobs if one not in self.on and self.world.job(one).state is JobState.ADMITTED
        ]
        ordered = sorted(nodes, key=lambda node: node.project == "ray")
        for job_id, node in zip(admitted, ordered, strict=False):
            self.on[job_id] = node.id
            driver = self.world.launcher.driver_of(job_id)
            workers = {str(node.address): 1}
            driver.report("progress", at=self.world.now, state="running", world_size=1, workers=workers)


def free(world: World, program: Program, team: Team | None = None) -> list[NodeRow]:
    used = {*program.held, *(team.on.values() if team else ())}
    return [node for node in living(world) if node.state is NodeState.READY and node.id not in used]


def go_on(world: World, program: Program, team: Team, ticks: int = 8) -> None:
    """Jobs start where they were admitted, and tasks on what was bought for them."""
    for _ in range(ticks):
        world.tick()
        team.take(free(world, program, team))
        program.take([node for node in free(world, program, team) if node.project == "ray"])


def lose(world: World, node_id: str) -> None:
    """Its machine is gone, so that another one may be bought."""
    world.cluster.in_use.discard(node_id)
    world.cluster.lose(node_id)


def projects(client: TestClient) -> dict[str, Any]:
    return {one["name"]: one for one in client.get("/v1/projects").json()["items"]}


def with_two_nodes(world: World) -> Program:
    """A program that holds two nodes."""
    apply(world, document(2))
    program = Program(world, 2)
    for _ in world.ticks_until("two nodes are ready"):
        if len(free(world, program)) == 2:
            break
    program.take(free(world, program))
    world.tick()
    return program


@pytest.mark.parametrize("resources", [{"CPU": 1.0}, {}], ids=["counted", "without-resources"])
@pytest.mark.parametrize("ends_early", [False, True], ids=["stays", "ends"])
def test_a_node_that_a_program_uses_is_drained_with_a_deadline(
    database: Database, settings: Settings, resources: dict[str, float], ends_early: bool
) -> None:
    world = buying_world(database, settings)
    program = with_two_nodes(world)
    if not resources:
        # An actor with `num_cpus=0` is on each: Ray calls their resources free.
        program.held = {node_id: {} for node_id in program.held}
        world.cluster.in_use.clear()
        program.say()
    world.now += 600.0
    world.tick(3)
    assert [node.state for node in living(world)] == [NodeState.READY] * 2, "what is used is not idle"
    apply(world, document(1))
    world.tick(2)
    (leaving,) = [node for node in living(world) if node.state is NodeState.DRAINING]
    assert leaving.deadline_at is not None
    assert leaving.deadline_at == pytest.approx(world.now + 40.0, abs=1.0)
    assert world.cluster.drains == {leaving.id: leaving.deadline_at}
    world.now = leaving.deadline_at - 5.0
    world.tick(3)
    assert {node.state for node in living(world)} == {NodeState.READY, NodeState.DRAINING}
    assert len(world.nodes()) == 2, "nothing is bought in its place"
    if ends_early:
        program.end(leaving.id)
    else:
        world.now = leaving.deadline_at
    world.tick(3)
    (gone,) = [node for node in world.nodes() if node.ended_at is not None]
    assert gone.id == leaving.id
    assert gone.ended_at is not None
    assert (gone.ended_at < leaving.deadline_at) is ends_early
    assert str(gone.message) == (
        "it is drained, and nothing runs on it any more" if ends_early else "its drain deadline passed"
    )


def test_what_programs_hold_is_shown_of_their_project(
    database: Database, settings: Settings, client: TestClient
) -> None:
    world = buying_world(database, settings)
    world.supply.sold = tuple(replace(one, resources={"CPU": 1.0, "GPU": 2.0}) for one in world.supply.sold)
    apply(world, document(4, ray=1, team=3))
    program = Program(world, 3)
    for _ in world.ticks_until("three nodes are ready"):
        if len(free(world, program)) == 3:
            break
    one, other, _ = free(world, program)
    assert projects(client)["ray"]["uses"]["gpus"] == {"used": 0, "limit": None}
    program.waiting = 0
    program.held = {one.id: {"CPU": 1.0, "GPU": 1.5}, other.id: {"CPU": 1.0}}
    program.say()
    world.tick()
    shown = projects(client)["ray"]
    assert shown["uses"]["gpus"] == {"used": 2, "limit": None}, "rounded up"
    # Of four CPUs two, of eight GPUs one and a half.
    assert shown["share_held"] == pytest.approx(0.5)
    assert client.get("/v1/ray-requests").json()["items"] == [], "it waits for nothing"
    assert projects(client)["team"]["share_held"] == 0.0
    # A new controller has not asked Ray yet; what was known stays.
    world.succeed()
    assert projects(client)["ray"] == shown
    program.end(one.id)
    program.end(other.id)
    world.tick(2)
    assert projects(client)["ray"]["share_held"] == 0.0
    program.held = {one.id: {"CPU": 1.0}}
    program.say()
    world.tick()
    assert projects(client)["ray"]["share_held"] == pytest.approx(0.25)
    apply(world, document(4, ray=1, team=3).replace("ray_programs: {}\n", ""))
    world.tick(3)
    assert projects(client)["ray"]["share_held"] == 0.0, "programs are not served any more"


@pytest.mark.parametrize(("ray", "team", "nodes_of_ray"), [(1, 3, 1), (3, 1, 3), (1, 1, 2)])
def test_what_there_is_goes_to_programs_and_jobs_by_their_shares(
    database: Database, settings: Settings, client: TestClient, ray: int, team: int, nodes_of_ray: int
) -> None:
    world = buying_world(database, settings)
    apply(world, document(4, ray=ray, team=team))
    program = Program(world, 8)
    world.tick()
    world.now += 3.0  # what is asked for counts once it has lasted
    jobs = Team(world, 8)
    go_on(world, program, jobs)
    assert (len(program.held), len(jobs.on)) == (nodes_of_ray, 4 - nodes_of_ray)
    shown = projects(client)
    assert shown["ray"]["share_held"] == pytest.approx(nodes_of_ray / 4)
    assert shown["team"]["share_held"] == pytest.approx(1 - nodes_of_ray / 4)


def test_programs_borrow_what_jobs_do_not_use_and_the_next_nodes_are_the_jobs(
    database: Database, settings: Settings
) -> None:
    world = buying_world(database, settings)
    apply(world, document(4, ray=1, team=3))
    program, jobs = Program(world, 8), Team(world, 0)
    go_on(world, program, jobs, 20)
    assert len(program.held) == 4
    jobs = Team(world, 8)
    go_on(world, program, jobs)
    assert (len(program.held), len(jobs.on)) == (4, 0), "what runs goes on"
    # While tasks wait as well: three places are the team's, and then one is the program's again.
    for held, running in ((3, 1), (2, 2), (1, 3), (1, 3)):
        lost = next(iter(program.held))
        program.end(lost)
        lose(world, lost)
        go_on(world, program, jobs)
        assert (len(program.held), len(jobs.on)) == (held, running)


def test_jobs_borrow_what_programs_do_not_use_and_the_next_node_is_the_programs(
    database: Database, settings: Settings
) -> None:
    world = buying_world(database, settings)
    apply(world, document(4, ray=1, team=3))
    program, jobs = Program(world, 0), Team(world, 8)
    go_on(world, program, jobs)
    assert len(jobs.on) == 4
    program.waiting = 4
    program.say()
    go_on(world, program, jobs, 12)
    assert (len(program.held), len(jobs.on)) == (0, 4), "what runs goes on"
    # The next places are the program's until both hold what is theirs: 1 to 3.
    for max_nodes, held, running in ((5, 1, 4), (6, 2, 4), (7, 2, 5), (8, 2, 6)):
        apply(world, document(max_nodes, ray=1, team=3))
        go_on(world, program, jobs)
        assert (len(program.held), len(jobs.on)) == (held, running)

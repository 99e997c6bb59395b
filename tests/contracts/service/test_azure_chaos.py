"""The whole controller over Azure's own clients, while an emulated cloud does everything that clouds do; by seed.

What is checked after every turn stands in the emulator's own books, not in what the provider says.  They are read where
they lie: a request for each look took a third of the time.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.azure.body import NODE_TAG
from cluster.azure.emulator.faults import Fault
from cluster.azure.emulator.state import CREATING, SUCCEEDED, Machine
from cluster.provider import NodeRequest, ProvidedNode
from remora.states import NodeState
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import CPU_SIZE, AzureRig
from tests.service_fakes import FakeMember, World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEEDS = range(30)
NODES = 3
TURNS = 40
OFFERINGS = [f"{CPU_SIZE}/{zone}/{capacity}" for zone in ("1", "any") for capacity in ("spot", "on-demand")]

NO_CAPACITY = {"code": "ZonalAllocationFailed", "message": "We do not have sufficient capacity"}
#: What may go wrong, and how.
FAULTS: list[dict[str, Any]] = [
    {"at": "create", "status": 409, "code": "SkuNotAvailable"},
    {
        "at": "create",
        "status": 409,
        "code": "OperationNotAllowed",
        "message": "exceeding LowPriorityCores quota",
    },
    {
        "at": "create",
        "status": 429,
        "code": "OperationNotAllowed",
        "message": "too many requests",
        "retry_after": 5,
    },
    {"at": "create", "status": 429, "code": "TooManyRequests", "retry_after": 1},
    {"at": "create", "status": 500},
    {"at": "create", "status": 500, "effect": "done-but-refuse"},
    {"at": "create", "effect": "lose-answer"},
    {"at": "create-later", **NO_CAPACITY},
    {"at": "create-later", "effect": "evict"},
    {"at": "delete", "status": 500},
    {"at": "delete", "status": 429, "code": "TooManyRequests", "retry_after": 2},
    {"at": "delete", "effect": "lose-answer"},
    {"at": "delete", "effect": "leak"},
    {"at": "delete-later", "code": "InternalOperationError", "message": "try again"},
    {"at": "list", "status": 500},
    {"at": "list", "status": 429, "code": "TooManyRequests", "retry_after": 4},
    {"at": "list", "status": 500, "page": 2},
    {"at": "list", "effect": "lose-answer"},
    {"at": "poll", "status": 500},
    {"at": "get", "status": 503},
    {"at": "usages", "status": 500},
]


class CloudOfRig:
    """Provider and membership of the controller: machines that run are members at once."""

    def __init__(self, rig: AzureRig, choose: random.Random) -> None:
        self.rig = rig
        self.choose = choose

    def create(self, request: NodeRequest) -> None:
        self.rig.create(replace(request, offering=self.choose.choice(OFFERINGS)))

    def list(self) -> list[ProvidedNode]:
        return self.rig.list()

    def delete(self, node_id: str) -> None:
        self.rig.delete(node_id)

    def observe(self) -> dict[str, FakeMember]:
        running = [one for one in machines_of(self.rig) if one.state == SUCCEEDED]
        return {
            node_of(one): FakeMember(
                address="10.0.0.9", is_alive=True, is_draining=False, resources={"CPU": 1.0}
            )
            for one in running
        }


def machines_of(rig: AzureRig) -> list[Machine]:
    """What exists now; nobody asks the emulator for anything meanwhile."""
    rig.cloud.advance(rig.clock())
    return list(rig.cloud.machines.values())


def node_of(machine: Machine) -> str:
    """Our node that a machine is."""
    return str(machine.body["tags"][NODE_TAG])


class Storm:
    """A controller of three nodes, a cloud, and what happens to them."""

    def __init__(self, rig: AzureRig, world: World, seed: int) -> None:
        self.rig = rig
        self.world = world
        self.random = random.Random(seed)
        world.now = rig.clock()
        world.cluster = CloudOfRig(rig, self.random)  # type: ignore[assignment]
        world.controller = world.new_controller()

    def turn(self, passes_s: float) -> None:
        """One turn of the controller, so many seconds after the last one."""
        self.rig.clock.passed_s += passes_s
        self.world.now = self.rig.clock()
        self.world.controller.tick(self.world.now)

    def strike(self) -> None:
        """Something goes wrong, or nothing."""
        # In order of creation: names differ from run to run.
        machines = [one.name for one in machines_of(self.rig)]
        match self.random.randrange(8):
            case 0 | 1 | 2 | 3:
                fault = {**self.random.choice(FAULTS), "times": self.random.randint(1, 2)}
                self.rig.cloud.faults.all.append(Fault.model_validate(fault))
            case 4 if machines:
                self.rig.control(f"machines/{self.random.choice(machines)}/evict", {})
            case 5 if machines:
                self.rig.control(f"machines/{self.random.choice(machines)}/fail", {})
            case 6:
                # The controller dies between two turns: what its process knew is gone.
                self.rig.azure = self.rig.another()
                self.world.controller.resign()
                self.world.controller = self.world.new_controller()
            case _:
                self.rig.knobs(create_s=self.random.choice([0, 0, 6]), delete_s=self.random.choice([0, 0, 6]))

    def check(self) -> None:
        """What holds at every moment."""
        machines = machines_of(self.rig)
        nodes = Counter(map(node_of, machines))
        assert max(nodes.values(), default=0) <= 1, "a node has two machines"
        alive = [one for one in machines if one.state in (CREATING, SUCCEEDED)]
        assert len(alive) <= NODES, "more machines than were wished for"

    def calm(self) -> None:
        """The cloud behaves again: what it was told to do wrong is over."""
        self.rig.server.cloud.faults.all.clear()
        self.rig.knobs(create_s=0, delete_s=0)


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(own_time=True) as rig:
        rig.knobs(page_size=2)
        yield rig


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    # What differs between databases is not struck here.
    opened = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_weather_there_are_as_many_machines_as_wished_and_nothing_else(
    rig: AzureRig, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    world = World(database, Settings(home=tmp_path, nodes=NODES, node_cpus=1, lease_s=1e6))
    storm = Storm(rig, world, seed)
    for _ in range(TURNS):
        storm.strike()
        storm.turn(storm.random.uniform(0.2, 8.0))
        storm.check()
    assert sum(rig.fired()) > 0
    storm.calm()
    # The longest pause of the planner after failed starts, twice, and two looks for what was left behind.
    for _ in range(25):
        storm.turn(32.0)
        storm.check()
    ready = {node.id for node in world.nodes() if node.state is NodeState.READY}
    state = rig.state()
    assert {one["node"] for one in state["machines"].values()} == ready
    assert len(ready) == NODES
    assert len(state["interfaces"]) == len(state["disks"]) == NODES, "parts of machines that are gone"
    assert not [one for one in caplog.records if one.exc_info and one.levelno >= logging.ERROR]

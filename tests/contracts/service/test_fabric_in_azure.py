"""From `placement.fabric` to a scale set of the emulated Azure, and back to the domain of an attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.policies.documents import digest_of
from cluster.provider import NodeRequest, ProvidedNode
from remora.spec.spec import JobSpec
from remora.states import JobState, NodeState
from service.clouds.fixed_pool import fixed_pool
from service.queue.policy_versions import PolicyRequest, next_version
from service.settings import Settings
from service.store import policies
from service.store.database import Database
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import CPU_SIZE, IB_SIZE, AzureRig
from tests.service_fakes import FakeMember, World

SPEC = JobSpec.from_mapping(
    {"command": "python train.py", "placement": {"fabric": "infiniband"}}
).to_mapping()
RESOURCES = {"CPU": 96.0, "GPU": 8.0}
DOCUMENT = f"""\
pools:
  gpu:
    sizes: [{CPU_SIZE}, {IB_SIZE}]
    zones: [1]
    capacity: spot
    max_nodes: 4
"""


class Machines:
    """Provider and membership: machines that run and know who they are have joined."""

    def __init__(self, rig: AzureRig) -> None:
        self._rig = rig
        self.requests: list[NodeRequest] = []

    def create(self, request: NodeRequest) -> None:
        self.requests.append(request)
        self._rig.create(request)

    def list(self) -> list[ProvidedNode]:
        return self._rig.list()

    def delete(self, node_id: str) -> None:
        self._rig.delete(node_id)

    def observe(self) -> dict[str, FakeMember]:
        machines = self._rig.state()["machines"].values()
        running = [one["node"] for one in machines if one["state"] == "Succeeded" and one["node"]]
        return {name: FakeMember(f"10.0.0.{at}", True, False, RESOURCES) for at, name in enumerate(running)}


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        yield rig


@pytest.fixture
def world(rig: AzureRig, tmp_path: Path) -> Iterator[World]:
    # What differs between databases is not asked here.
    database = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(database)
    world = World(database, Settings(home=tmp_path, nodes=0, lease_s=1e6))
    world.buys, world.now = True, rig.clock()
    world.supply.sold = tuple(rig.offerings)
    world.cluster = Machines(rig)  # type: ignore[assignment]
    world.controller = world.new_controller()
    newest = fixed_pool(world.settings)
    request = PolicyRequest(document=DOCUMENT, digest=digest_of(DOCUMENT), based_on=newest.version)
    database.transact(
        lambda connection: policies.insert_policies(connection, next_version(newest, request, world.now))
    )
    yield world
    database.close()


def ticks(rig: AzureRig, world: World) -> Iterator[None]:
    """Ticks of the controller, a second apart, until the test breaks out of the loop."""
    for _ in range(60):
        rig.clock.passed_s += 1.0
        world.now = rig.clock()
        world.controller.tick(world.now)
        yield
    raise AssertionError("60 ticks passed")


def test_all_workers_are_instances_of_one_set_and_its_label_is_what_ray_gets(
    rig: AzureRig, world: World
) -> None:
    job_id = world.submit(min_workers=2, max_workers=2, worker_resources={"GPU": 8.0}, spec=SPEC)
    for _ in ticks(rig, world):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    (attempt,) = world.attempts(job_id)
    (only,) = rig.state()["sets"].values()
    ready = {node.id for node in world.nodes() if node.state is NodeState.READY}
    assert only["capacity"] == len(ready) == 2
    assert {one["node"] for one in rig.state()["machines"].values()} == ready
    reported = {(request.fabric, request.labels["remora-fabric"]) for request in world.cluster.requests}
    assert reported == {(attempt.fabric, attempt.fabric)}
    assert world.launcher.driver_of(job_id).plan.labels == {"remora-fabric": (attempt.fabric,)}


def test_machines_that_take_the_place_of_a_whole_set_are_of_the_same_set(rig: AzureRig, world: World) -> None:
    job_id = world.submit(min_workers=2, max_workers=2, worker_resources={"GPU": 8.0}, spec=SPEC)
    for _ in ticks(rig, world):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    before = {node.id for node in world.nodes()}
    for node_id in before:
        rig.evict(node_id)
    for _ in ticks(rig, world):
        others = {node.id: node for node in world.nodes() if node.id not in before}
        if [node.state for node in others.values()] == [NodeState.READY] * 2:
            break
    (attempt,) = world.attempts(job_id)
    assert {node.fabric for node in others.values()} == {attempt.fabric}
    assert attempt.stop_reason is None
    assert len(rig.state()["sets"]) == 1

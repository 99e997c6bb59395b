"""A job that asks for InfiniBand gets one scale set of Azure, with the whole controller before the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.azure import catalogue
from cluster.policies.documents import digest_of
from cluster.provider import NodeRequest, ProvidedNode
from remora.spec.spec import JobSpec
from remora.states import JobState, NodeState
from service.clouds.fixed_pool import fixed_pool
from service.queue.policy_versions import PolicyRequest, next_version
from service.settings import Settings
from service.store import policies
from service.store.database import Database
from tests.contracts.cluster.azure_rig import IB_SIZE, REGION, AzureRig
from tests.service_fakes import FakeCluster, FakeMember, World

pytestmark = pytest.mark.postgresql_in_soak

DOCUMENT = f"""\
pools:
  gpu:
    sizes: [{IB_SIZE}]
    zones: [1, 2]
    capacity: spot
    max_nodes: 8
    idle_s: 5
    drain_s: 5
"""
SPEC = JobSpec.from_mapping(
    {"command": "python train.py", "placement": {"fabric": "infiniband"}, "resources": {"gpus": 8}}
).to_mapping()


class CloudOfRig(FakeCluster):
    """Machines of the emulated Azure are members as soon as their tags say which nodes they are."""

    def __init__(self, rig: AzureRig) -> None:
        super().__init__()
        self.rig = rig

    def create(self, request: NodeRequest) -> None:
        self.created.append(request.node_id)
        self.rig.create(request)

    def list(self) -> list[ProvidedNode]:
        return self.rig.list()

    def delete(self, node_id: str) -> None:
        self.rig.delete(node_id)

    def observe(self) -> dict[str, FakeMember]:
        return {
            one["node"]: FakeMember(
                address=self.address_of(one["node"]),
                is_alive=True,
                is_draining=one["node"] in self.draining,
                resources={"CPU": 96.0, "GPU": 8.0},
            )
            for one in self.rig.state()["machines"].values()
            if one["node"] and one["state"] == "Succeeded"
        }


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        yield rig


@pytest.fixture
def world(rig: AzureRig, database: Database, tmp_path: Path) -> World:
    world = World(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    world.now = rig.clock()
    world.buys = True
    world.supply.sold = tuple(one for one in catalogue.offerings(REGION) if one.size == IB_SIZE)
    world.cluster = CloudOfRig(rig)
    world.controller = world.new_controller()
    newest = fixed_pool(world.settings)
    request = PolicyRequest(document=DOCUMENT, digest=digest_of(DOCUMENT), based_on=newest.version)
    database.transact(
        lambda connection: policies.insert_policies(connection, next_version(newest, request, world.now))
    )
    return world


def until_admitted(world: World, rig: AzureRig, job_id: str) -> None:
    for _ in world.ticks_until("the job is admitted"):
        rig.clock.passed_s += 0.25
        if world.job(job_id).state is JobState.ADMITTED:
            return


def used(world: World) -> set[tuple[str | None, str]]:
    return {(node.fabric, node.offering) for node in world.nodes() if node.state is NodeState.READY}


def test_all_its_nodes_are_instances_of_one_set(world: World, rig: AzureRig) -> None:
    job_id = world.submit(min_workers=2, max_workers=3, worker_resources={"GPU": 8.0}, spec=SPEC)
    until_admitted(world, rig, job_id)
    ((domain, offering),) = used(world)
    assert domain == f"gpu-{job_id}"
    (seen,) = rig.state()["sets"].values()
    assert (seen["tags"]["remora:fabric"], seen["tags"]["remora:offering"]) == (domain, offering)
    ready = {node.id for node in world.nodes() if node.state is NodeState.READY}
    machines = rig.state()["machines"].values()
    assert ready <= {one["node"] for one in machines}
    assert len({one["set"] for one in machines}) == 1


def test_a_set_of_which_azure_can_make_only_a_part_is_left_for_another(world: World, rig: AzureRig) -> None:
    rig.knobs(most_machines=[{"size": IB_SIZE, "zone": "1", "capacity": "spot", "machines": 1}])
    job_id = world.submit(min_workers=2, max_workers=2, worker_resources={"GPU": 8.0}, spec=SPEC)
    until_admitted(world, rig, job_id)
    labels = world.launcher.driver_of(job_id).plan.labels
    (domain,) = labels["remora-fabric"]
    there = [one for one in rig.state()["sets"].values() if one["tags"]["remora:fabric"] == domain]
    assert [(one["capacity"], one["tags"]["remora:offering"]) for one in there] == [(2, f"{IB_SIZE}/2/spot")]

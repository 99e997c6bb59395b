"""Nodes in two subscriptions: the second one's machines are bought, paid for, drained, ended and found again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from azure.identity.aio import ManagedIdentityCredential

from cluster.azure.body import NODE_TAG
from cluster.azure.catalogue import offerings
from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.emulated_cloud import Cloud
from cluster.azure.emulator.faults import Effect, EmulatorFault, FaultPoint
from cluster.azure.emulator.server import GROUP, REGION, SUBSCRIPTION, EmulatorServer
from cluster.azure.orphans import GRACE_S
from cluster.azure.place_names import sold_at
from cluster.azure.places import PlacesProvider
from cluster.azure.provider import AzureProvider
from cluster.provider import InvalidRequest, NodeRequest, ProvidedNode
from remora.states import JobState, NodeState
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import ledger
from service.store.database import Database
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import CPU_SIZE, RigClock
from tests.contracts.cluster.azure_rig import settings as azure_settings
from tests.contracts.service.buying import apply, living, train
from tests.service_fakes import FakeMember, World

TOKENS = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
SECOND = "11111111-1111-1111-1111-111111111111"
SUBNET = f"/subscriptions/{SECOND}/resourceGroups/{GROUP}/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes"
DOCUMENT = f"""\
pools:
  here: {{sizes: [{CPU_SIZE}], capacity: on-demand, max_nodes: 4}}
  there: {{place: second, sizes: [{CPU_SIZE}], capacity: on-demand, max_nodes: 4, idle_s: 30, drain_s: 30}}
"""


class Subscriptions:
    """Two emulated subscriptions with a resource group of the same name, and the machines in them."""

    def __init__(self) -> None:
        self.clock = RigClock(stands=True)
        self.first, self.second = Cloud(), Cloud()
        here = EmulatorServer(self.first, clock=Clock(self.clock), subscription=SUBSCRIPTION)
        there = EmulatorServer(self.second, clock=Clock(self.clock), tokens=here.tokens, subscription=SECOND)
        self._servers = [here, there]
        self._providers: list[PlacesProvider] = []
        self.drained: set[str] = set()
        self.own_notice_s = None
        self.sold = tuple(one for one in offerings(REGION) if one.size == CPU_SIZE)

    def __enter__(self) -> Subscriptions:
        first, second = (server.__enter__().url for server in self._servers)
        os.environ[TOKENS] = first
        place = {
            "region": REGION, "resource_group": GROUP, "subnet": SUBNET, "subscription": SECOND, "endpoint": second
        }  # fmt: skip
        self.settings = azure_settings(first, places={"second": place})
        self.machines = self.provider()
        return self

    def __exit__(self, *_: object) -> None:
        for provider in self._providers:
            provider.close()
        for server in self._servers:
            server.__exit__(None, None, None)

    def provider(self) -> PlacesProvider:
        """One more, as after a restart: it knows nothing of machines."""
        made = PlacesProvider(
            {
                place: AzureProvider(
                    there,
                    ManagedIdentityCredential(client_id="rig"),
                    "10.0.0.4:6379",
                    lambda: self.sold,
                    self.clock,
                )
                for place, there in self.settings.by_place().items()
            }
        )
        self._providers.append(made)
        return made

    # What a controller asks.

    def create(self, request: NodeRequest) -> None:
        self.machines.create(request)

    def list(self) -> list[ProvidedNode]:
        return self.machines.list()

    def delete(self, node_id: str) -> None:
        self.machines.delete(node_id)

    def observe(self) -> dict[str, FakeMember]:
        """Machines that run have joined."""
        nodes = [
            one.body["tags"][NODE_TAG]
            for cloud in (self.first, self.second)
            for one in cloud.machines.values()
            if one.state == "Succeeded"
        ]
        return {
            name: FakeMember(f"10.0.0.{at}", True, name in self.drained, {"CPU": 4.0})
            for at, name in enumerate(sorted(nodes), 1)
        }

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        self.drained.add(node_id)


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Subscriptions]:
    monkeypatch.setenv(TOKENS, os.environ.get(TOKENS, ""))
    with Subscriptions() as clouds:
        yield clouds


@pytest.fixture
def world(clouds: Subscriptions, tmp_path: Path) -> Iterator[World]:
    database = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(database)
    settings = Settings(home=tmp_path, nodes=0, lease_s=100.0, cloud="azure-emulated")
    settings.azure.write_text(clouds.settings.model_dump_json())
    world = World(database, settings)
    world.buys, world.now = True, clouds.clock()
    world.supply.sold = (*clouds.sold, *sold_at(clouds.sold, "second"))
    # The team has no quota in the first subscription.
    quotas = {one.quota.lower() for one in clouds.sold}
    world.supply.left = dict.fromkeys(quotas, 0)
    world.cluster = clouds  # type: ignore[assignment]
    world.controller = world.new_controller()
    apply(world, DOCUMENT)
    yield world
    database.close()


def ticks(world: World, clouds: Subscriptions) -> Iterator[None]:
    """Ticks of the controller, a second apart, until the test breaks out of the loop."""
    for _ in range(300):
        clouds.clock.passed_s += 1.0
        world.now = clouds.clock()
        world.controller.tick(world.now)
        yield
    raise AssertionError("300 ticks passed")


def pass_minutes(world: World, clouds: Subscriptions, minutes: int) -> None:
    """Time passes under a job that trains, with a tick of the controller each minute."""
    for _ in range(minutes):
        clouds.clock.passed_s += 59.0
        next(ticks(world, clouds))


def machines(cloud: Cloud) -> list[str]:
    """Nodes whose machines are there and are not being deleted."""
    return [one.body["tags"][NODE_TAG] for one in cloud.machines.values() if one.state != "Deleting"]


def trains(world: World, clouds: Subscriptions) -> tuple[str, NodeRow]:
    """A job that trains on a node that was bought for it."""
    job_id = world.submit(min_workers=1, max_workers=1, worker_resources={"CPU": 4.0})
    for _ in ticks(world, clouds):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    (node,) = living(world)
    return job_id, node


def test_a_machine_is_bought_in_the_second_subscription_paid_for_drained_and_ended(
    world: World, clouds: Subscriptions
) -> None:
    job_id, node = trains(world, clouds)
    assert (node.pool, node.state) == ("there", NodeState.READY)
    assert node.offering == f"{CPU_SIZE}@second/any/on-demand"
    assert machines(clouds.first) == []
    assert machines(clouds.second) == [node.id]
    assert [one.node_id for one in clouds.list()] == [node.id]
    (price,) = [one.price_per_hour for one in clouds.sold if one.id == f"{CPU_SIZE}/any/on-demand"]
    assert node.price_per_hour == price
    pass_minutes(world, clouds, 15)
    spent = world.database.query(lambda c: ledger.spent(c, [job_id], world.now))
    assert spent[job_id] == pytest.approx(price / 4, rel=0.05)
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    for _ in ticks(world, clouds):
        if not machines(clouds.second):
            break
    assert clouds.drained == {node.id}
    for _ in ticks(world, clouds):
        if not living(world) and not clouds.second.machines:
            break
    assert not clouds.second.interfaces
    assert not clouds.second.disks


def test_a_controller_that_starts_again_finds_what_is_in_the_second_subscription(
    world: World, clouds: Subscriptions
) -> None:
    job_id, node = trains(world, clouds)
    # Of this one the database knows nothing, as after the restoration of a backup.
    stray = NodeRequest(node_id="node_stray", pool="there", resources={"CPU": 4.0}, offering=node.offering)
    clouds.create(stray)
    # Its machine is gone already, and its parts were left behind in the second subscription.
    leaves = replace(stray, node_id="node_leaves")
    clouds.create(leaves)
    clouds.list()
    clouds.second.faults.all.append(EmulatorFault(at=FaultPoint.DELETE, effect=Effect.LEAK))
    clouds.delete("node_leaves")
    assert sorted(machines(clouds.second)) == sorted([node.id, "node_stray"])
    # The process ends; another one has its memory from the clouds alone.
    clouds.machines = clouds.provider()
    world.succeed()
    clouds.clock.passed_s += world.settings.lease_s
    for _ in ticks(world, clouds):
        if machines(clouds.second) == [node.id]:
            break
    assert world.job(job_id).attempt == 1
    assert any("leaves" in name for name in clouds.second.interfaces), "there is something to find"
    # Looks for leftovers are minutes apart, and what is left behind goes at the second one.
    pass_minutes(world, clouds, 3 * int(GRACE_S / 60.0))
    assert len(clouds.second.interfaces) == 1
    assert machines(clouds.second) == [node.id]
    assert len(living(world)) == 1


def test_each_subscription_is_asked_for_its_own_machines_alone(clouds: Subscriptions) -> None:
    wrong = clouds.settings.model_copy(update={"subscription": SECOND, "places": {}})
    provider = AzureProvider(
        wrong, ManagedIdentityCredential(client_id="rig"), "10.0.0.4:6379", lambda: clouds.sold, clouds.clock
    )
    try:
        with pytest.raises(InvalidRequest, match="subscription"):
            provider.list()
    finally:
        provider.close()

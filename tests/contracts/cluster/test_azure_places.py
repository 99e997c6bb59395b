"""Two regions of Azure as places of one cluster: machines, refusals, prices and quotas of each are its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.azure.emulator.emulated_cloud import Cloud as EmulatedCloud
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import EmulatorServer
from cluster.policies.documents import read_document
from cluster.policies.policy_problems import PoliciesRefused
from cluster.provider import InsufficientCapacity, InvalidRequest, NodeRequest, ProviderError
from cluster.ray.membership import RayMembership
from service.clouds.clouds import Cloud, cloud_of
from service.clouds.fixed_pool import known
from service.settings import Settings
from tests.contracts.cluster.azure_rig import CPU_SIZE, settings

TOKENS = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
HEAD = "10.0.0.4:6379"
SUBNET = "/subscriptions/s/resourceGroups/w/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes"
HERE, WEST = f"{CPU_SIZE}/any/on-demand", f"{CPU_SIZE}@west/any/on-demand"
POLICIES = f"""\
pools:
  here: {{sizes: [{CPU_SIZE}], max_nodes: 4}}
  there: {{place: west, sizes: [{CPU_SIZE}], max_nodes: 4}}
"""


class TwoRegions:
    """Two emulated clouds, and the service's access to both."""

    def __init__(self, home: Path) -> None:
        self.east, self.west = EmulatedCloud(), EmulatedCloud()
        first = EmulatorServer(self.east)
        second = EmulatorServer(self.west, region="westeurope", group="remora-west", tokens=first.tokens)
        self._servers = [first, second]
        self.settings = Settings(home=home, cloud="azure-emulated", azure_file=None)

    def __enter__(self) -> TwoRegions:
        east, west = (server.__enter__().url for server in self._servers)
        place = {"region": "westeurope", "resource_group": "remora-west", "subnet": SUBNET, "endpoint": west}
        self.settings.azure.write_text(settings(east, places={"west": place}).model_dump_json())
        self.cloud: Cloud = cloud_of(self.settings, HEAD, RayMembership())
        return self

    def __exit__(self, *_: object) -> None:
        self.cloud.close()
        for server in self._servers:
            server.__exit__(None, None, None)


@pytest.fixture
def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoRegions]:
    monkeypatch.setenv(TOKENS, os.environ.get(TOKENS, ""))
    with TwoRegions(tmp_path) as regions:
        yield regions


def request(number: int, offering: str) -> NodeRequest:
    return NodeRequest(node_id=f"node_{number:026d}", pool="p", resources={"CPU": 4.0}, offering=offering)


def living(cloud: EmulatedCloud) -> list[str]:
    """Machines that are not being deleted."""
    return [name for name, one in cloud.machines.items() if one.state != "Deleting"]


def until(seen: Callable[[], bool], what: str) -> None:
    """Wait for what happens in a thread of its own."""
    pause = threading.Event()
    for _ in range(600):
        if seen():
            return
        pause.wait(0.1)
    pytest.fail(f"not within a minute: {what}")


def test_each_machine_is_made_in_its_place_and_ended_there(regions: TwoRegions) -> None:
    provider = regions.cloud.provider
    provider.create(request(1, HERE))
    provider.create(request(2, WEST))
    (east,), (west,) = regions.east.machines.values(), regions.west.machines.values()
    assert (east.body["location"], west.body["location"]) == ("eastus", "westeurope")
    assert west.size == CPU_SIZE, "the cloud knows nothing of names of places"
    assert {node.node_id for node in provider.list()} == {request(1, HERE).node_id, request(2, WEST).node_id}
    provider.delete(request(2, WEST).node_id)
    assert [node.node_id for node in provider.list()] == [request(1, HERE).node_id]
    until(lambda: not living(regions.west), "the machine in the west goes")
    assert living(regions.east)


def test_after_a_restart_a_machine_is_ended_wherever_it_is(regions: TwoRegions) -> None:
    regions.cloud.provider.create(request(1, HERE))
    regions.cloud.provider.create(request(2, WEST))
    another = cloud_of(regions.settings, HEAD, RayMembership())
    try:
        for number in (1, 2):
            another.provider.delete(request(number, HERE).node_id)
    finally:
        another.close()
    assert not living(regions.east)
    assert not living(regions.west)


def test_a_refusal_closes_the_offering_of_its_place_alone(regions: TwoRegions) -> None:
    regions.west.most_machines[CPU_SIZE, "", "on-demand"] = 0
    regions.west.limits["cores"] = 100
    regions.cloud.provider.create(request(1, WEST))
    for _ in range(2):  # the answer comes late, and is the same at each look
        (late,) = regions.cloud.provider.list()
        assert isinstance(late.refusal, InsufficientCapacity)
        assert late.refusal.offering == WEST
        assert WEST in late.refusal.closes
        assert HERE not in late.refusal.closes
    regions.west.faults.all.append(EmulatorFault(at=FaultPoint.CREATE, status=409, code="SkuNotAvailable"))
    with pytest.raises(InsufficientCapacity) as refused:
        regions.cloud.provider.create(request(3, WEST))
    assert refused.value.closes
    assert all("@west/" in one for one in refused.value.closes)
    regions.cloud.provider.create(request(2, HERE))
    assert len(regions.east.machines) == 1


def test_what_is_sold_and_how_much_is_left_is_known_for_each_place(regions: TwoRegions) -> None:
    regions.east.limits.update({"cores": 40, "standardDSv5Family": 40})
    regions.west.limits.update({"cores": 8, "standardDSv5Family": 8})
    supply = regions.cloud.supply
    sold = {one.id: one for one in supply.offerings()}
    assert sold[WEST].quota == "standardDSv5Family@west"
    assert sold[WEST].price_per_hour > sold[HERE].price_per_hour, (
        "a region that the table does not know is dear"
    )
    until(
        lambda: len({*supply.quota_left()} & {"standarddsv5family", "standarddsv5family@west"}) == 2,
        "both are read",
    )
    assert supply.quota_left()["standarddsv5family"] == 40
    assert supply.quota_left()[sold[WEST].quota.lower()] == 8


def test_a_place_without_an_answer_hides_all(regions: TwoRegions) -> None:
    regions.cloud.provider.create(request(1, HERE))
    regions.cloud.provider.create(request(2, WEST))
    regions._servers[1].__exit__(None, None, None)
    with pytest.raises(ProviderError):
        regions.cloud.provider.list()
    regions._servers.pop()


def test_pools_name_their_place_and_others_are_refused_with_the_known_ones(regions: TwoRegions) -> None:
    facts = known(regions.settings)
    policies = read_document(POLICIES, facts)
    assert policies.pools["there"].sizes == (f"{CPU_SIZE}@west",)
    assert policies.pools["here"].sizes == (CPU_SIZE,)
    for document, said in (
        (POLICIES.replace("west", "wset"), "there is no place 'wset' in the file of Azure; known are west"),
        (f"pools: {{a: {{sizes: [{CPU_SIZE}, {CPU_SIZE}@west]}}}}", "make a pool for each place"),
        (f"pools: {{a: {{place: West, sizes: [{CPU_SIZE}]}}}}", "is no name"),
        ("pools: {a: {place: west, sizes: [Standard_D4s_v6]}}", "did you mean Standard_D4s_v5@west"),
    ):
        with pytest.raises(PoliciesRefused, match=said):
            read_document(document, facts)


def test_a_place_that_was_taken_out_makes_nothing(regions: TwoRegions) -> None:
    with pytest.raises(InvalidRequest, match="no place 'gone'"):
        regions.cloud.provider.create(request(1, f"{CPU_SIZE}@gone/any/spot"))
    assert not {**regions.east.machines, **regions.west.machines}


def test_places_that_share_a_resource_group_are_refused() -> None:
    place: dict[str, Any] = {"region": "westeurope", "resource_group": "Remora-Nodes", "subnet": SUBNET}
    with pytest.raises(ValidationError, match="have the same resource group"):
        settings("http://127.0.0.1:1", places={"west": place})
    assert settings("http://127.0.0.1:1", places={"west": {**place, "subscription": "other"}})
    with pytest.raises(ValidationError, match="places"):
        settings("http://127.0.0.1:1", places={"West": {**place, "resource_group": "x"}})

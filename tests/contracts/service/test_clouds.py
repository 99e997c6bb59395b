"""The controller's access to each cloud: the real providers before this machine and before the emulator."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.azure import prices
from cluster.azure.catalogue import BY_NAME
from cluster.azure.emulator.books import FACTOR
from cluster.local import certificates
from cluster.provider import NodeRequest, ProviderError, Unanswered
from cluster.ray.heartbeats import SILENT_S, AgentStatus, Heartbeat, listen
from cluster.ray.membership import RayMembership
from service.clouds.clouds import OBSERVATION_INTERVAL_S, SPARING_INTERVAL_S, Cloud, cloud_of
from service.clouds.place_files import CloudUnusable
from service.loops.observation import ClusterAccess, ObservationFailed, observe_cluster
from service.settings import Settings
from tests.contracts.cluster.azure_rig import A100, CPU_SIZE, AzureRig, settings
from tests.service_fakes import FakeCluster

HEAD = "127.0.0.9:6379"
ON_DEMAND = f"{CPU_SIZE}/any/on-demand"


def until(seen: Callable[[], bool], what: str) -> None:
    """Wait for what happens in a thread of its own."""
    pause = threading.Event()
    for _ in range(600):
        if seen():
            return
        pause.wait(0.1)
    pytest.fail(f"not within a minute: {what}")


def threads() -> list[str]:
    """Those that are about Azure."""
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("azure"))


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig() as rig:
        yield rig


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Cloud]]:
    """Opens the cloud of some settings; all of them are closed at the end."""
    clouds: list[Cloud] = []

    def opens(**chosen: Any) -> Cloud:
        clouds.append(cloud_of(Settings(home=tmp_path, **chosen), HEAD, RayMembership()))
        return clouds[-1]

    yield opens
    for cloud in clouds:
        cloud.close()


def write_azure_settings(folder: Path, endpoint: str, name: str = "azure-emulated.json", **more: Any) -> Path:
    """The file that says where in the emulated Azure the nodes stand."""
    path = folder / name
    path.write_text(settings(endpoint, **more).model_dump_json())
    return path


def test_on_this_machine_there_is_one_thing_to_buy_and_pools_are_kept_full(
    opened: Callable[..., Cloud],
) -> None:
    cloud = opened(node_cpus=2)
    (offering,) = cloud.supply.offerings()
    assert (offering.size, dict(offering.resources)) == ("local", {"CPU": 2.0})
    assert cloud.supply.quota_left() == {}
    assert cloud.provider.list() == []
    assert cloud.rehearsal is not None
    assert not cloud.follows_policies


def test_the_emulated_cloud_sells_makes_and_ends_machines(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path
) -> None:
    write_azure_settings(tmp_path, rig.server.url)
    cloud = opened(cloud="azure-emulated")
    assert cloud.follows_policies
    assert ON_DEMAND in {offering.id for offering in cloud.supply.offerings()}
    cloud.provider.create(
        NodeRequest(node_id="node_a", pool="cpu", resources={"CPU": 4.0}, offering=ON_DEMAND)
    )
    assert [node.node_id for node in cloud.provider.list()] == ["node_a"]
    assert [one["node"] for one in rig.state()["machines"].values()] == ["node_a"]
    assert cloud.rehearsal is not None
    cloud.rehearsal.take("node_a")
    assert cloud.provider.list() == []


def test_what_azure_says_of_prices_and_quotas_comes_to_be_known_by_itself(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path
) -> None:
    write_azure_settings(tmp_path, rig.server.url)
    rig.knobs(limits={"cores": 10})
    cloud = opened(cloud="azure-emulated")

    def price() -> float:
        sold = (one for one in cloud.supply.offerings() if one.id == ON_DEMAND)
        return next(sold).price_per_hour

    until(lambda: price() == FACTOR * BY_NAME[CPU_SIZE].on_demand_usd, "the list of prices was read")
    until(lambda: cloud.supply.quota_left().get("cores") == 10, "the quotas were read")
    cloud.provider.create(
        NodeRequest(node_id="node_a", pool="cpu", resources={"CPU": 4.0}, offering=ON_DEMAND)
    )
    assert cloud.supply.quota_left()["cores"] == 6, "what was asked for counts at once"
    assert cloud.supply.quota_limits()["cores"] == 10


def test_a_file_of_another_name_may_be_yaml(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path
) -> None:
    path = tmp_path / "place.yaml"
    document = settings(rig.server.url).model_dump(exclude_defaults=True)
    path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in document.items()))
    assert opened(cloud="azure-emulated", azure_file=path).provider.list() == []


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, "there is no file"),
        ("[1", "cannot be read"),
        ("just words", "no mapping"),
        ('{"region": "East US"}', "region: "),
        # Machines that can never have the cluster's secret would be bought for ever.
        ("{}", "vault: Field required"),
        ("{}", "node_identity: Field required"),
        ('{"vault": "http://vault.example"}', "vault: "),
    ],
)
def test_a_file_that_does_not_say_where_is_reported_in_a_sentence(
    opened: Callable[..., Cloud], tmp_path: Path, written: str | None, message: str
) -> None:
    path = tmp_path / "azure.json"
    if written is not None:
        path.write_text(written)
    with pytest.raises(CloudUnusable, match=message) as caught:
        opened(cloud="azure")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_an_authority_no_machine_of_azure_is_bought(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "ENDPOINT", rig.server.url)
    write_azure_settings(tmp_path, rig.server.url, "azure.json")
    with pytest.raises(
        CloudUnusable, match=r"cluster.local.certificates .* or set REMORA_RAY_TLS=off"
    ) as caught:
        opened(cloud="azure")
    assert "\n" not in str(caught.value)
    assert certificates.main([str(tmp_path), "10.1.0.4"]) == 0
    opened(cloud="azure")


def test_an_identity_that_azure_refuses_is_reported_in_a_sentence(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path
) -> None:
    write_azure_settings(tmp_path, rig.server.url)
    rig.fault("token", status=400, code="invalid_request", message="Identity not found", times=9)
    cloud = opened(cloud="azure-emulated")
    access = ClusterAccess(cloud.provider, FakeCluster(), cloud.supply, FakeCluster())
    with pytest.raises(ObservationFailed, match="identity and its roles") as caught:
        observe_cluster(access)
    assert "\n" not in str(caught.value)


def test_a_cloud_that_lets_hardly_anybody_ask_is_looked_at_less_often(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path
) -> None:
    write_azure_settings(tmp_path, rig.server.url)
    cloud = opened(cloud="azure-emulated")
    assert cloud.observation_interval_s() == OBSERVATION_INTERVAL_S
    rig.knobs(reads_left=1)
    cloud.provider.list()
    assert cloud.observation_interval_s() == SPARING_INTERVAL_S


def test_an_agent_is_found_silent_in_time_also_where_the_cloud_is_looked_at_less_often() -> None:
    # One tick comes a little late each time.
    heartbeats, pause_s, passed_s = (
        {"node_a": Heartbeat(at=7.0)},
        SPARING_INTERVAL_S + OBSERVATION_INTERVAL_S,
        0.0,
    )
    heard: dict[str, AgentStatus] = listen({}, heartbeats, pause_s)
    while not heard["node_a"].is_silent:
        heard, passed_s = listen(heard, heartbeats, pause_s), passed_s + pause_s
    assert SILENT_S < heard["node_a"].unchanged_s == passed_s <= SILENT_S + pause_s


def test_where_nothing_is_under_way_azure_itself_is_asked_less_often_than_the_emulated_one(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "ENDPOINT", rig.server.url)
    write_azure_settings(tmp_path, rig.server.url, "azure.json", disk_gb=64)
    write_azure_settings(tmp_path, rig.server.url)
    azure, emulated = opened(cloud="azure", ray_tls="off"), opened(cloud="azure-emulated")
    placed = {one.labels.get("azure-disk-placement") for one in azure.supply.offerings() if one.size == A100}
    assert placed == {"ResourceDisk"}, "the disk of the place fits there"
    for cloud in (azure, emulated):
        assert cloud.provider.list() == []
    rig.fault("list", status=500, times=0)
    assert azure.provider.list() == []
    with pytest.raises(Unanswered):
        emulated.provider.list()


def test_a_cloud_that_does_not_answer_now_is_used_all_the_same(
    rig: AzureRig, opened: Callable[..., Cloud], tmp_path: Path
) -> None:
    write_azure_settings(tmp_path, rig.server.url)
    rig.fault("list", status=500)
    cloud = opened(cloud="azure-emulated")
    with pytest.raises(ProviderError):
        cloud.provider.list()
    assert cloud.provider.list() == []

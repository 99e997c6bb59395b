"""What the machines of a deployment are given is what the service reads: settings, place, credentials and ports."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.azure.body import authority_name, secret_name
from cluster.azure.catalogue import BY_NAME
from cluster.azure.emulator.deployments.kinds import IDENTITIES, MACHINES, Json
from cluster.azure.settings import AzureSettings
from cluster.local.folders import ClusterFolders
from service.azure_storage import azure_account, azure_place
from service.listening import isolation_of, listening
from service.settings import Settings
from tests.architecture.repository import ROOT, pages
from tests.contracts.deploy.subscription import KEY, Subscription

SERVICE, HEAD = "remora-remora-service", "remora-remora-head"


def settings_of(document: Json, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As the processes read them from the environment that the file gives."""
    lines = document["files"]["/etc/remora/service.env"].splitlines()
    for line in lines:
        name, _, value = line.partition("=")
        assert name.removeprefix("REMORA_").lower() in Settings.model_fields, name
        assert f"| `{name}` |" in pages()["docs/settings.md"]
        monkeypatch.setenv(name, value)
    return Settings()


@pytest.mark.parametrize("size", ["trial", "team"])
def test_the_service_starts_with_its_settings(
    azure: Subscription, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.up(size)
    settings = settings_of(azure.machine(SERVICE), monkeypatch)
    assert settings.cloud == "azure"
    assert settings.authentication == "required"
    place = listening(settings)
    assert place.port == Settings.model_fields["port"].default
    assert place.is_public == (size == "team")
    assert place.scheme == ("https" if size == "team" else "http")
    if size == "team":
        name = azure.outputs()["serviceName"]["value"]
        assert place.has_name(name)
        assert isolation_of(settings) == "users"


@pytest.mark.parametrize(("size", "count"), [("trial", 1), ("team", 2)])
def test_a_team_has_two_processes_of_the_api_and_two_controllers(
    azure: Subscription, size: str, count: int
) -> None:
    azure.up(size)
    assert azure.machine(SERVICE)["service_count"] == count
    second = any("https://" in line and line.endswith(":7266") for line in azure.said)
    assert second == (count == 2), azure.said
    assert azure.up(size, "--set", "serviceCount=3") == 2


def test_the_budget_of_a_size_is_the_one_that_the_page_names(azure: Subscription) -> None:
    azure.up()
    (budget,) = [one for one in azure.resources if one["type"].endswith("/budgets")]
    found = {}
    for size in ("trial", "team"):
        parameters = json.loads((ROOT / f"deploy/azure/{size}.parameters.json").read_text())["parameters"]
        found[size] = parameters["budgetUsd"]["value"]
    assert budget["properties"]["amount"] == found["trial"]
    row = f"| [budget](#the-budget) | {found['trial']} USD a month | {found['team']} USD a month |"
    assert row in pages()["docs/deploy.md"]
    months = {size: re.search(r"about (\d+) USD a day", cell) for size, cell in _costs().items()}
    # A deployment without nodes does not reach the budget, and a month of 5 USD a day is that of the trial.
    assert found["trial"] == 30 * 5
    assert all(match is not None and 31 * int(match[1]) < found[size] for size, match in months.items())


def _costs() -> dict[str, str]:
    """The cells of the page with what each size costs."""
    (row,) = [line for line in pages()["docs/deploy.md"].splitlines() if line.startswith("| [costs]")]
    return dict(zip(("trial", "team"), row.split("|")[2:4], strict=True))


@pytest.mark.parametrize("size", ["trial", "team"])
def test_the_place_of_the_nodes_is_one(azure: Subscription, size: str) -> None:
    azure.up(size)
    document = azure.machine(SERVICE)
    place = AzureSettings(**json.loads(document["files"]["/etc/remora/azure.json"]))
    assert place.cluster == "remora"
    assert place.ssh_public_key == KEY
    assert azure.resources.find(place.group_id) is not None
    identities = {one["id"]: one["properties"]["clientId"] for one in azure.resources.of_type(IDENTITIES)}
    assert identities[place.node_identity] == place.node_identity_client_id
    assert place.controller_client_id == document["client_id"]
    assert place.node_identity_client_id != place.controller_client_id
    image, _, version = place.image.rpartition("/versions/")
    assert azure.resources.find(image) is not None
    assert version == "1.0.0"


def test_the_storage_and_its_credentials_are_understood(
    azure: Subscription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.up()
    document = azure.machine(SERVICE)
    settings = settings_of(document, monkeypatch)
    file = tmp_path / "storage.json"
    file.write_text(document["files"][str(settings.storage_credentials)])
    file.chmod(0o600)
    place = azure_place(settings.storage_url)
    assert place is not None
    account = azure_account(place, file)
    assert account.client_id == document["client_id"]
    names = {one["name"] for one in azure.resources}
    assert {place.container, place.account} <= names


def test_the_head_knows_nothing_of_the_cloud_and_reads_the_secrets_of_ray_alone(azure: Subscription) -> None:
    azure.up("team")
    head, service = azure.machine(HEAD), azure.machine(SERVICE)
    assert (head["role"], service["role"]) == ("head", "service")
    assert list(head["files"]) == ["/etc/remora/service.env"]
    of_ray = {"ray.token": secret_name("remora"), "ray-tls/authority.pem": authority_name("remora")}
    assert head["secrets"] == of_ray
    assert set(service["secrets"]) == {*of_ray, "postgres.password", "tls.pem"}
    shared = "REMORA_RAY_ADDRESS=10.70.0.5:6379"
    assert shared in head["files"]["/etc/remora/service.env"]
    assert shared in service["files"]["/etc/remora/service.env"]
    assert azure.machine(HEAD)["client_id"] != service["client_id"]


def test_the_secret_of_the_cluster_is_the_file_that_processes_read(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.up()
    document = azure.machine(SERVICE)
    folders = ClusterFolders(settings_of(document, monkeypatch).home)
    read = [folders.token, folders.authority]
    assert [Path("/var/lib/remora", file) for file in document["secrets"]] == read
    assert document["role"] == "both"


def test_no_machine_has_a_secret_in_its_data(azure: Subscription) -> None:
    azure.up("team")
    values = [
        azure.resources.secret(one["name"]) for one in azure.resources if one["type"].endswith("/secrets")
    ]
    data = json.dumps([azure.machine(SERVICE), azure.machine(HEAD), azure.resources.of_type(MACHINES)])
    assert len(values) == 5
    assert not [value for value in values if value in data]


def test_only_settings_change_with_the_size_and_not_the_start_up_data(azure: Subscription) -> None:
    azure.up()
    machine = azure.resources.of_type(MACHINES)[0]
    before, data = machine["properties"]["osProfile"]["customData"], azure.machine(SERVICE)
    assert azure.up("trial", "--set", "publicApi=true") == 0
    machine = azure.resources.of_type(MACHINES)[0]
    assert machine["properties"]["osProfile"]["customData"] == before
    assert azure.machine(SERVICE) != data
    document = yaml.safe_load(base64.b64decode(before))
    compile(document["write_files"][0]["content"], "remora-apply", "exec")


# --- the network


def rules_of(azure: Subscription, name: str) -> list[dict[str, Any]]:
    (group,) = [
        one
        for one in azure.resources
        if one["type"].endswith("/networkSecurityGroups") and one["name"] == name
    ]
    return [one["properties"] for one in group["properties"]["securityRules"]]


@pytest.mark.parametrize(("size", "ports"), [("trial", ["22"]), ("team", ["22", "7265-7266"])])
def test_only_operators_come_in_and_only_by_the_ports_that_they_need(
    azure: Subscription, size: str, ports: list[str]
) -> None:
    azure.up(size)
    rules = rules_of(azure, SERVICE)
    from_outside = [one for one in rules if one.get("sourceAddressPrefixes") == ["203.0.113.7"]]
    assert [one["destinationPortRanges"] for one in from_outside] == [ports]
    assert [one["access"] for one in rules] == ["Allow", "Allow", "Deny"]


def test_no_node_has_a_public_address_and_all_go_out_by_the_gateway(azure: Subscription) -> None:
    azure.up("team")
    (network,) = [one for one in azure.resources if one["type"].endswith("/virtualNetworks")]
    nodes = next(one for one in network["properties"]["subnets"] if one["name"] == "nodes")["properties"]
    assert nodes["natGateway"]
    assert nodes["defaultOutboundAccess"] is False
    rules = rules_of(azure, "remora-remora-nodes")
    assert [one.get("sourceAddressPrefixes") for one in rules if one["access"] == "Allow"] == [
        ["10.70.0.0/24", "10.70.128.0/17"],
        # What builds images comes to its machine by SSH.
        ["10.70.3.0/24"],
    ]
    interfaces = [one for one in azure.resources if one["type"].endswith("/networkInterfaces")]
    public = [one["name"] for one in interfaces if '"publicIPAddress": {' in json.dumps(one)]
    assert public == [SERVICE]


def test_what_of_ray_runs_on_the_service_and_the_head_reaches_each_other_at_all_ports(
    azure: Subscription,
) -> None:
    azure.up("team")
    for name in (SERVICE, "remora-remora-nodes"):
        allowed = [one for one in rules_of(azure, name) if one["access"] == "Allow"]
        (inside,) = [one for one in allowed if "10.70.0.0/24" in one["sourceAddressPrefixes"]]
        assert (inside["protocol"], inside["destinationPortRange"]) == ("*", "*")
    (network,) = [one for one in azure.resources if one["type"].endswith("/virtualNetworks")]
    service = next(one for one in network["properties"]["subnets"] if one["name"] == "service")
    assert service["properties"]["addressPrefix"] == "10.70.0.0/24"
    addresses = [
        one["properties"]["ipConfigurations"][0]["properties"]["privateIPAddress"]
        for one in azure.resources
        if one["type"].endswith("/networkInterfaces") and one["name"] in (SERVICE, HEAD)
    ]
    assert sorted(addresses) == ["10.70.0.4", "10.70.0.5"]


# --- what pages and other files say


#: The version of the package postgresql-client in the images of the machines: packages.ubuntu.com.
CLIENTS = {"ubuntu-24_04-lts": 16}


def test_the_client_of_postgresql_is_not_older_than_its_server() -> None:
    """pg_dump refuses a server that is newer than itself."""
    image = re.search(r"offer: '(.+)'", (ROOT / "deploy/azure/modules/machine.bicep").read_text())
    server = re.search(r"version: '(\d+)'", (ROOT / "deploy/azure/modules/database.bicep").read_text())
    assert image is not None
    assert server is not None
    assert CLIENTS[image[1]] >= int(server[1])
    assert f"PostgreSQL {server[1]}," in pages()["docs/deploy.md"]


def test_the_sizes_are_ones_of_which_the_price_is_known() -> None:
    prices = json.loads((ROOT / "deploy/azure/prices.json").read_text())["machines"]
    for size in ("trial", "team"):
        parameters = json.loads((ROOT / f"deploy/azure/{size}.parameters.json").read_text())["parameters"]
        for name in ("serviceSize", "headSize"):
            if name in parameters:
                assert parameters[name]["value"] in BY_NAME.keys() | prices.keys()


def test_the_image_is_the_one_that_is_built() -> None:
    module = (ROOT / "deploy/azure/modules/images.bicep").read_text()
    packer = (ROOT / "deploy/node/image.pkr.hcl").read_text()
    assert re.search(r'image_name\s+= "remora-node"', packer)
    page = pages()["docs/azure-first-run.md"]
    for words in ("name: 'remora-node'", "publisher: 'remora'", "offer: 'node'", "sku: 'ubuntu-hpc-2404'"):
        assert words in module
    assert "--publisher remora --offer node --sku ubuntu-hpc-2404" in page

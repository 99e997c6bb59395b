"""Further places by the template: made in two subscriptions, kept, used by the provider for a node, and taken away."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from cluster.azure.emulator.deployments.kinds import (
    ACCOUNTS,
    ASSIGNMENTS,
    BUDGETS,
    DEFINITIONS,
    GROUPS,
    IDENTITIES,
    MACHINES,
    NETWORKS,
    PEERINGS,
    VAULTS,
    VERSIONS,
)
from cluster.azure.emulator.deployments.template import DEPLOYMENTS, Wanted
from cluster.azure.emulator.emulated_cloud import Cloud, Refused
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import SUBSCRIPTION, EmulatorServer
from cluster.azure.settings import MOST_PLACES, AzureSettings
from cluster.provider import NodeRequest
from cluster.ray.membership import RayMembership
from deploy.azure.client.resource_manager import ResourceManager
from service.clouds.clouds import cloud_of
from service.settings import Settings
from tests.contracts.cluster.azure_rig import CPU_SIZE
from tests.contracts.deploy.subscription import Subscription

SECOND = "11111111-1111-1111-1111-111111111111"
WEST, RESEARCH = "west=westeurope", f"research=eastus2@{SECOND}"
BOTH = ("--place", WEST, "--place", RESEARCH)
IMAGE = "1.0.0"


def settings_of(azure: Subscription) -> AzureSettings:
    """/etc/remora/azure.json of the service, by the reader of the service."""
    document = azure.machine("remora-remora-service")["files"]["/etc/remora/azure.json"]
    return AzureSettings(**json.loads(document))


def named(azure: Subscription, id: str) -> dict[str, Any]:
    """A resource that has to be there."""
    found = azure.resources.find(id)
    assert found is not None, id
    return found


def network_of(azure: Subscription, place: AzureSettings) -> dict[str, Any]:
    return named(azure, place.subnet.rpartition("/subnets/")[0])


def in_second(azure: Subscription) -> list[str]:
    return [one["id"] for one in azure.resources if one["id"].startswith(f"/subscriptions/{SECOND}/")]


def cut_off_at(words: str, delete: Callable[..., None]) -> Callable[..., None]:
    """`ResourceManager.delete` that is stopped by Ctrl-C before the first one of a path with these words."""

    def cut(self: ResourceManager, path: str, version: str) -> None:
        if words in path:
            raise KeyboardInterrupt
        delete(self, path, version)

    return cut


# --- made


def test_the_service_reads_the_places_that_were_made(azure: Subscription) -> None:
    assert azure.up("trial", *BOTH) == 0
    settings = settings_of(azure)
    assert list(settings.by_place()) == ["", "research", "west"]
    west, research = settings.by_place()["west"], settings.by_place()["research"]
    assert (west.region, west.subscription) == ("westeurope", SUBSCRIPTION)
    assert (research.region, research.subscription) == ("eastus2", SECOND)
    for place in settings.by_place().values():
        group = named(azure, place.group_id)
        assert group["tags"]["remora:cluster"] == "remora"
        assert group["location"] == network_of(azure, place)["location"] == place.region
        named(azure, str(place.network_security_group))
        (subnet,) = [
            one["properties"]
            for one in network_of(azure, place)["properties"]["subnets"]
            if place.subnet.endswith(f"/{one['name']}")
        ]
        assert subnet["natGateway"]
        assert subnet["defaultOutboundAccess"] is False
        assert subnet["networkSecurityGroup"]["id"] == place.network_security_group
    assert "place research: eastus2, subscription " + SECOND + ", 10.71.0.0/16" in azure.said
    assert "place west: westeurope, 10.72.0.0/16" in azure.said


def test_as_many_places_as_there_can_be_fit_into_what_azure_takes(azure: Subscription) -> None:
    names = [f"p{number:02d}" + "x" * 17 for number in range(MOST_PLACES)]
    given = [word for name in names for word in ("--place", f"{name}=germanywestcentral@{SECOND}")]
    assert azure.up("team", "--cluster", "c" * 20, *given) == 0
    (machine,) = [one for one in azure.resources.of_type(MACHINES) if one["name"].endswith("-service")]
    data = azure.resources.hidden[machine["id"].lower()]["userData"]
    assert len(data) <= 64 * 1024, "of user data Azure takes 64 KiB"
    document = json.loads(base64.b64decode(data))["files"]["/etc/remora/azure.json"]
    assert list(AzureSettings(**json.loads(document)).places) == names
    assert len(azure.resources.of_type(PEERINGS)) == MOST_PLACES * (MOST_PLACES + 1)
    # Limits of the names of a resource group, a network, a deployment and a budget.
    for kind, most in ((GROUPS, 90), (NETWORKS, 64), (DEPLOYMENTS, 64), (BUDGETS, 63)):
        assert max(len(one["name"]) for one in azure.resources.of_type(kind)) <= most, kind


def test_nodes_of_all_places_reach_each_other_and_the_head_and_no_one_else_comes_in(
    azure: Subscription,
) -> None:
    azure.up("trial", *BOTH)
    networks = {one["id"]: one for one in azure.resources.of_type(NETWORKS)}
    peered = {
        (one["id"].rpartition("/virtualNetworkPeerings/")[0], one["properties"]["remoteVirtualNetwork"]["id"])
        for one in azure.resources.of_type(PEERINGS)
    }
    assert peered == set(permutations(networks, 2))
    assert len(networks) == 3
    spaces = ["10.70.0.0/24", "10.70.128.0/17", "10.71.0.0/16", "10.72.0.0/16"]
    rules = [one for one in azure.resources if one["type"].endswith("/networkSecurityGroups")]
    assert len(rules) == 4
    for group in rules:
        *admitted, last = [one["properties"] for one in group["properties"]["securityRules"]]
        assert last["access"] == "Deny"
        assert [one["sourceAddressPrefixes"] for one in admitted if one["protocol"] == "*"] == [spaces]
    addresses = [one for one in azure.resources if one["type"].endswith("/publicIPAddresses")]
    assert sorted(one["name"] for one in addresses) == [
        "remora-remora-nat",
        "remora-remora-research-nat",
        "remora-remora-service",
        "remora-remora-west-nat",
    ]


def test_vault_and_storage_admit_the_subnets_of_all_places(azure: Subscription) -> None:
    azure.up("trial", *BOTH)
    subnets = {place.subnet for place in settings_of(azure).by_place().values()}
    for kind in (VAULTS, ACCOUNTS):
        (one,) = azure.resources.of_type(kind)
        admitted = [rule["id"] for rule in one["properties"]["networkAcls"]["virtualNetworkRules"]]
        assert subnets == {id for id in admitted if id.endswith("/nodes")}
        # Those of the service, of the three places, and for the storage that of the builder of the image.
        assert len(admitted) == (5 if kind == ACCOUNTS else 4)


def test_the_names_of_private_endpoints_are_known_in_all_places(azure: Subscription) -> None:
    assert azure.up("team", *BOTH) == 0
    networks = {one["id"] for one in azure.resources.of_type(NETWORKS)}
    links = [one for one in azure.resources if one["type"].endswith("/virtualNetworkLinks")]
    by_zone: dict[str, set[str]] = {}
    for link in links:
        zone = link["id"].split("/privateDnsZones/")[1].partition("/")[0]
        by_zone.setdefault(zone, set()).add(link["properties"]["virtualNetwork"]["id"])
    assert len(by_zone) == 4
    # Only the service asks the database.
    assert [zone for zone, found in by_zone.items() if found != networks] == [
        "remora-remora.private.postgres.database.azure.com"
    ]


def test_each_subscription_has_a_budget_of_its_groups_that_begins_in_a_month_that_azure_takes(
    azure: Subscription,
) -> None:
    azure.up("trial", "--place", WEST)
    (first,) = azure.resources.of_type(BUDGETS)
    first["properties"]["timePeriod"]["startDate"] = "2026-01-01T00:00:00Z"
    assert azure.up("trial", "--place", RESEARCH) == 0
    budgets = {one["id"].split("/")[2]: one for one in azure.resources.of_type(BUDGETS)}
    groups = {id: one["properties"]["filter"]["dimensions"]["values"] for id, one in budgets.items()}
    assert groups == {
        SUBSCRIPTION: [
            "remora-remora",
            "remora-remora-nodes",
            "remora-remora_image",
            "remora-remora-nodes_west",
        ],
        SECOND: ["remora-remora-nodes_research"] * 2,
    }
    begun = {id: one["properties"]["timePeriod"]["startDate"] for id, one in budgets.items()}
    assert begun[SUBSCRIPTION] == "2026-01-01T00:00:00Z"
    assert begun[SECOND] > begun[SUBSCRIPTION], "a new budget cannot begin in an earlier month"


def test_what_nodes_are_made_of_is_registered_in_the_other_subscription_before_anything_is_made_there(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    put = ResourceManager.put

    def noted(self: ResourceManager, path: str, *arguments: Any) -> Any:
        if "/deployments/" in path:
            made.extend(space for id, space in azure.resources.registered if id == SECOND)
        return put(self, path, *arguments)

    monkeypatch.setattr(ResourceManager, "put", noted)
    azure.up("trial", "--place", RESEARCH)
    assert sorted(made) == [
        "Microsoft.Compute",
        "Microsoft.KeyVault",
        "Microsoft.Network",
        "Microsoft.Storage",
    ]


# --- what the service may do there


def may(azure: Subscription, principal: str, action: str, scope: str) -> bool:
    """Whether the roles of one identity allow an action at a scope, or above it."""
    allowed: set[str] = set()
    for one in azure.resources.of_type(ASSIGNMENTS):
        role = azure.resources.role(one["properties"]["roleDefinitionId"], one["id"])
        above = one["id"].partition("/providers/Microsoft.Authorization/")[0]
        is_above = f"{scope.lower()}/".startswith(f"{above.lower()}/")
        if role is not None and is_above and one["properties"]["principalId"] == principal:
            allowed.update(role["properties"]["permissions"][0]["actions"])
    return action in allowed


def test_the_service_may_make_nodes_in_each_place_and_nothing_beside_them(azure: Subscription) -> None:
    azure.up("trial", *BOTH)
    (service,) = [one for one in azure.resources.of_type(IDENTITIES) if one["name"].endswith("-service")]
    principal = service["properties"]["principalId"]
    settings = settings_of(azure)
    for place in settings.by_place().values():
        needed = {
            place.group_id: [
                "Microsoft.Compute/virtualMachines/write",
                "Microsoft.Compute/disks/write",
                "Microsoft.Network/networkInterfaces/join/action",
            ],
            place.subnet: ["Microsoft.Network/virtualNetworks/subnets/join/action"],
            str(place.network_security_group): ["Microsoft.Network/networkSecurityGroups/join/action"],
            place.node_identity: ["Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"],
            place.image: ["Microsoft.Compute/galleries/images/versions/read"],
            f"/subscriptions/{place.subscription}": ["Microsoft.Compute/locations/usages/read"],
        }
        for scope, actions in needed.items():
            assert [one for one in actions if not may(azure, principal, one, scope)] == [], scope
        network = network_of(azure, place)["id"]
        assert not may(azure, principal, "Microsoft.Network/virtualNetworks/subnets/join/action", network)
        root = f"/subscriptions/{place.subscription}"
        assert not may(azure, principal, "Microsoft.Compute/virtualMachines/write", root)
    written = {
        one["id"].partition("/providers/")[0]
        for one in azure.resources.of_type(ASSIGNMENTS)
        if one["properties"]["principalId"] == principal and one["id"].startswith(f"/subscriptions/{SECOND}")
    }
    assert written == {f"/subscriptions/{SECOND}", settings.by_place()["research"].group_id}


@pytest.fixture
def places(azure: Subscription) -> Iterator[dict[str, EmulatorServer]]:
    """The machines of each place of the deployment, behind an endpoint of its own."""
    azure.up("trial", *BOTH)
    servers = {
        name: EmulatorServer(
            Cloud(),
            region=place.region,
            group=place.resource_group,
            subscription=place.subscription,
            tokens=azure.server.tokens,
        )
        for name, place in settings_of(azure).by_place().items()
    }
    for one in servers.values():
        one.__enter__()
    yield servers
    for one in servers.values():
        one.__exit__(None, None, None)


def test_the_provider_makes_a_node_of_what_the_template_made_in_the_second_subscription(
    azure: Subscription, places: dict[str, EmulatorServer], tmp_path: Path
) -> None:
    document = json.loads(azure.machine("remora-remora-service")["files"]["/etc/remora/azure.json"])
    document["endpoint"] = places[""].url
    for name, place in document["places"].items():
        place["endpoint"] = places[name].url
    service = Settings(home=tmp_path, cloud="azure-emulated", azure_file=None)
    service.azure.write_text(json.dumps(document))
    cloud = cloud_of(service, "10.70.0.4:6379", RayMembership())
    request = NodeRequest(
        node_id="node_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        pool="p",
        resources={"CPU": 4.0},
        offering=f"{CPU_SIZE}@research/any/on-demand",
    )
    try:
        cloud.provider.create(request)
        assert [node.node_id for node in cloud.provider.list()] == [request.node_id]
    finally:
        cloud.close()
    (machine,) = places["research"].cloud.machines.values()
    assert not places[""].cloud.machines
    assert not places["west"].cloud.machines
    assert machine.body["location"] == "eastus2"
    properties = machine.body["properties"]
    (interface,) = properties["networkProfile"]["networkInterfaceConfigurations"]
    (address,) = interface["properties"]["ipConfigurations"]
    subnet = address["properties"]["subnet"]["id"]
    assert named(azure, subnet.rpartition("/subnets/")[0])["location"] == "eastus2"
    assert f"/subscriptions/{SECOND}/" in subnet
    assert named(azure, interface["properties"]["networkSecurityGroup"]["id"])["location"] == "eastus2"
    (identity,) = machine.body["identity"]["userAssignedIdentities"]
    assert named(azure, identity)["name"] == "remora-remora-nodes"
    image = properties["storageProfile"]["imageReference"]["id"]
    named(azure, image.rpartition("/versions/")[0])
    assert (SECOND, "Microsoft.Compute") in azure.resources.registered


# --- kept


def test_a_second_run_changes_nothing_whether_it_names_the_places_or_not(azure: Subscription) -> None:
    azure.up("trial", *BOTH)
    before = azure.shot()
    for more in (BOTH, ("--place", WEST), ()):
        assert azure.up("trial", *more, "--what-if") == 0
        assert azure.said[-1].endswith("unchanged"), azure.said
        assert not [line for line in azure.said if line[:2] in ("+ ", "~ ", "- ")]
        assert azure.up("trial", *more) == 0
        assert azure.shot() == before


def test_a_place_keeps_its_addresses_when_others_come(azure: Subscription) -> None:
    azure.up("trial", "--place", WEST)
    west = network_of(azure, settings_of(azure).by_place()["west"])
    assert azure.up("trial", "--place", "a=uksouth") == 0
    settings = settings_of(azure).by_place()
    assert network_of(azure, settings["west"]) == west
    assert network_of(azure, settings["a"])["properties"]["addressSpace"] == {
        "addressPrefixes": ["10.72.0.0/16"]
    }


def test_a_place_that_would_move_is_refused_and_nothing_changes(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("trial", "--place", WEST)
    before = azure.shot()
    for other in ("west=eastus2", f"west=westeurope@{SECOND}"):
        assert azure.up("trial", "--place", other) == 2
        assert "no place can be moved" in capsys.readouterr().err
    assert azure.shot() == before


def test_what_if_names_the_other_subscription(azure: Subscription) -> None:
    assert azure.up("trial", *BOTH, "--what-if") == 0
    there = [line for line in azure.said if line.startswith(f"+ /subscriptions/{SECOND}/")]
    assert f"+ /subscriptions/{SECOND}/resourceGroups/remora-remora-nodes_research" in there
    assert any("/virtualNetworks/remora-remora-research" in line for line in there)
    assert not [line for line in azure.said if SUBSCRIPTION in line]
    assert azure.leftovers() == []


def test_cut_off_at_any_kind_of_resource_and_called_again_it_ends_where_it_would_have(
    azure: Subscription,
) -> None:
    azure.up("trial", *BOTH)
    wanted = set(azure.shot())
    azure.down()
    azure.resources.deleted_vaults.clear()
    for kind in (GROUPS, DEFINITIONS, NETWORKS, PEERINGS, BUDGETS, VAULTS):
        azure.faults.all.append(EmulatorFault(at=FaultPoint.DEPLOY_RESOURCE, kind=kind))
        assert azure.up("trial", *BOTH) == 1
    assert azure.up("trial", *BOTH) == 0
    assert set(azure.shot()) == wanted


# --- the image


def put_image(azure: Subscription, *regions: str) -> str:
    """An image, as Packer leaves it, replicated to some regions; its id."""
    (gallery,) = [one for one in azure.resources if one["type"].endswith("/galleries")]
    id = f"{gallery['id']}/images/remora-node/versions/{IMAGE}"
    profile = {"targetRegions": [{"name": one} for one in regions]}
    body = {"name": IMAGE, "location": "eastus", "properties": {"publishingProfile": profile}}
    azure.resources.put(Wanted(id=id, type=VERSIONS, body=body))
    return id


def test_the_image_is_built_for_the_regions_of_all_places_at_once(azure: Subscription) -> None:
    assert azure.up("trial", *BOTH) == 0
    (gallery,) = [one for one in azure.resources if one["type"].endswith("/galleries")]
    version = named(azure, f"{gallery['id']}/images/remora-node/versions/{IMAGE}")
    regions = version["properties"]["publishingProfile"]["targetRegions"]
    assert [one["name"] for one in regions] == ["eastus", "eastus2", "westeurope"]
    assert not [line for line in azure.said if "is copied to" in line]


def test_the_image_is_copied_to_the_region_of_each_place_as_soon_as_there_is_one(azure: Subscription) -> None:
    azure.up("trial", *BOTH, "--without-image")
    lines = [line for line in azure.said if "there is no image 1.0.0 yet" in line]
    assert [line.endswith("to copy it to eastus, eastus2, westeurope") for line in lines] == [True]
    image = put_image(azure, "East US")
    assert azure.up("trial") == 0
    assert any(line.startswith("the image 1.0.0 is copied to") for line in azure.said)
    regions = named(azure, image)["properties"]["publishingProfile"]["targetRegions"]
    assert [one["name"] for one in regions] == ["East US", "eastus2", "westeurope"]
    azure.up("trial")
    assert not [line for line in azure.said if "is copied to" in line]


# --- one place taken away


def test_a_place_without_nodes_is_taken_away_and_can_be_made_again(azure: Subscription) -> None:
    azure.up("team", "--place", WEST, "--without-image")
    before = azure.shot()
    assert azure.up("team", "--place", RESEARCH, "--without-image") == 0
    assert azure.up("team", "--remove-place", "research", "--without-image") == 0
    assert f"deleted remora-remora-nodes_research of the subscription {SECOND}" in azure.said
    assert list(settings_of(azure).by_place()) == ["", "west"]
    assert in_second(azure) == []
    # The roles may be assigned there for good, so that nothing there is ever lost.
    roles = {one["id"] for one in azure.resources.of_type(DEFINITIONS)}
    assert {id: one for id, one in azure.shot().items() if id not in roles} == {
        id: one for id, one in before.items() if id not in roles
    }
    assert azure.up("team", "--remove-place", "research") == 0
    assert "place 'research': there is none" in azure.said
    assert azure.up("team", "--place", RESEARCH) == 0
    assert azure.down() == 0
    assert azure.leftovers() == []


def test_a_place_with_nodes_is_not_taken_away(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("trial", *BOTH)
    group = settings_of(azure).by_place()["research"].group_id
    for kind in (MACHINES, f"{MACHINES[:-1]}ScaleSets"):
        node = Wanted(id=f"{group}/providers/{kind}/n", type=kind, body={"name": "n", "properties": {}})
        azure.resources.put(node)
    before = azure.shot()
    assert azure.up("trial", "--remove-place", "research") == 2
    assert "the place research has 2 machines or scale sets" in capsys.readouterr().err
    assert azure.up("trial", *BOTH, "--remove-place", "west") == 2
    assert "the place west is to be made and to be removed" in capsys.readouterr().err
    assert azure.shot() == before


def test_a_removal_that_was_cut_off_is_done_by_the_next_call(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = ResourceManager.delete
    azure.up("trial", *BOTH)
    for words in (
        "/virtualNetworkPeerings/",
        "/resourcegroups/",
        "/roleAssignments/",
        "/budgets/",
        "/deployments/",
    ):
        monkeypatch.setattr(ResourceManager, "delete", cut_off_at(words, delete))
        assert azure.up("trial", "--remove-place", "research") == 130
    monkeypatch.setattr(ResourceManager, "delete", delete)
    assert azure.up("trial", "--remove-place", "research") == 0
    assert in_second(azure) == []
    assert not [one for one in azure.resources.of_type(PEERINGS) if one["name"].endswith("-research")]


# --- taken away


@pytest.mark.parametrize("size", ["trial", "team"])
def test_down_leaves_nothing_in_any_region_or_subscription(azure: Subscription, size: str) -> None:
    azure.up(size, *BOTH)
    assert in_second(azure)
    assert azure.down() == 0
    assert azure.leftovers() == []
    assert any(
        line.startswith(f"remora-remora-nodes_research of the subscription {SECOND}: ") for line in azure.said
    )
    assert any(line.startswith("remora-remora-nodes_west: ") for line in azure.said)
    assert f"deleted the budget remora-remora_places_{SUBSCRIPTION[:8]}" in azure.said
    assert azure.said[-1] == "nothing is left"


def test_down_stops_a_deployment_that_makes_places_and_leaves_nothing(azure: Subscription) -> None:
    azure.up("trial", *BOTH)
    (deployment,) = azure.server.deployer.all.values()
    deployment.state = "Running"
    azure.server.deployer._steps[deployment.id] = iter([None])
    azure.server.deployer._due_at[deployment.id] = float("inf")
    assert azure.down() == 0
    assert "a deployment still runs and is stopped" in azure.said
    assert azure.leftovers() == []


def test_down_after_a_first_deployment_that_failed_anywhere_leaves_nothing(azure: Subscription) -> None:
    for kind in (GROUPS, DEFINITIONS, NETWORKS, PEERINGS, BUDGETS, ASSIGNMENTS):
        azure.faults.all.append(EmulatorFault(at=FaultPoint.DEPLOY_RESOURCE, kind=kind))
        assert azure.up("trial", *BOTH) == 1
        azure.down()
        assert azure.leftovers() == [], kind
        azure.resources.deleted_vaults.clear()


def test_down_cut_off_before_each_kind_of_deletion_finds_the_rest_in_the_other_subscription(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = ResourceManager.delete
    for words in (
        "/roleAssignments/",
        "/resourcegroups/",
        f"{SECOND}/providers/Microsoft.Consumption/budgets/",
        f"{SECOND}/providers/Microsoft.Resources/deployments/",
        "/roleDefinitions/",
    ):
        azure.up("trial", *BOTH)
        monkeypatch.setattr(ResourceManager, "delete", cut_off_at(words, delete))
        assert azure.down() == 130, words
        monkeypatch.setattr(ResourceManager, "delete", delete)
        assert azure.down() == 0
        assert azure.leftovers() == []
        azure.resources.deleted_vaults.clear()


@pytest.mark.parametrize("command", ["up", "down"])
def test_the_other_subscription_is_not_taken_for_that_of_the_cluster(
    azure: Subscription, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("trial", *BOTH)
    before = azure.shot()
    common = [SECOND if one == SUBSCRIPTION else one for one in azure.common()]
    monkeypatch.setattr(azure, "common", lambda: common)
    assert getattr(azure, command)() == 1
    assert f"the cluster remora is one of the subscription {SUBSCRIPTION}" in capsys.readouterr().err
    assert azure.shot() == before


def test_places_of_a_cluster_of_the_same_name_in_another_subscription_stay(azure: Subscription) -> None:
    azure.up("trial", *BOTH)
    tags = {"remora:cluster": "remora", "remora:place": "x", "remora:network": "10.71.0.0/16"}
    id = f"/subscriptions/{SECOND}/resourceGroups/remora-remora-nodes_x"
    body = {
        "name": "remora-remora-nodes_x",
        "location": "eastus",
        "tags": {**tags, "remora:subscription": SECOND},
    }
    azure.resources.put(Wanted(id=id, type=GROUPS, body=body))
    assert azure.down() == 0
    assert azure.leftovers() == [id]


def test_what_is_in_a_subscription_that_the_login_does_not_see_is_said_and_can_be_taken_away_later(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("trial", *BOTH)
    azure.server.cloud.unseen.add(SECOND)
    assert azure.up("trial") == 1
    assert f"the subscription {SECOND} is not visible to this login" in capsys.readouterr().err
    assert azure.down() == 1
    assert (
        f"the subscription {SECOND} is not visible to this login: what is there of the cluster stays"
        in azure.said
    )
    assert azure.said[-1] == "something is left; call it again"
    azure.server.cloud.unseen.clear()
    assert azure.down() == 0
    assert azure.leftovers() == []


# --- what the emulator refuses as Azure does


def test_a_firewall_admits_no_subnet_of_another_region_without_the_endpoint_for_all_regions(
    azure: Subscription,
) -> None:
    azure.up("trial", "--place", WEST)
    network = network_of(azure, settings_of(azure).by_place()["west"])
    (subnet,) = network["properties"]["subnets"]
    (account,) = azure.resources.of_type(ACCOUNTS)
    wanted = Wanted(id=account["id"], type=ACCOUNTS, body=account)
    subnet["properties"]["serviceEndpoints"] = [{"service": "Microsoft.Storage"}]
    with pytest.raises(Refused, match="has no service endpoint of Microsoft"):
        azure.resources.put(wanted)
    subnet["properties"]["serviceEndpoints"].append({"service": "Microsoft.Storage.Global"})
    with pytest.raises(Refused, match="either of its region or of all regions"):
        azure.resources.put(Wanted(id=network["id"], type=NETWORKS, body=network))


def test_networks_with_the_same_addresses_are_not_peered(azure: Subscription) -> None:
    azure.up("trial", "--place", WEST)
    network_of(azure, settings_of(azure).by_place()["west"])["properties"]["addressSpace"] = {
        "addressPrefixes": ["10.70.128.0/24"]
    }
    peering = azure.resources.of_type(PEERINGS)[0]
    with pytest.raises(Refused, match="overlaps"):
        azure.resources.put(Wanted(id=peering["id"], type=PEERINGS, body=peering))


def test_a_role_is_not_assigned_in_a_subscription_that_it_is_not_for(azure: Subscription) -> None:
    azure.up("trial", *BOTH)
    (role, *_) = azure.resources.of_type(DEFINITIONS)
    role["properties"]["assignableScopes"].remove(f"/subscriptions/{SECOND}")
    (one, *_) = [
        one
        for one in azure.resources.of_type(ASSIGNMENTS, f"/subscriptions/{SECOND}")
        if one["properties"]["roleDefinitionId"].endswith(role["name"])
    ]
    with pytest.raises(Refused, match="does not exist"):
        azure.resources.put(Wanted(id=one["id"], type=ASSIGNMENTS, body=one))

"""The image of a node, which deploy/azure/up lets Azure Image Builder make: once, wherever it is cut off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cluster.azure.emulator.deployments.kinds import (
    ASSIGNMENTS,
    BUDGETS,
    DEFINITIONS,
    GROUPS,
    IDENTITIES,
    Json,
)
from cluster.azure.emulator.deployments.template import Wanted
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from deploy.azure.client import image, up
from deploy.azure.client.image_plan import IMAGE_VERSIONS, SOURCE_TAG, TEMPLATES
from deploy.azure.client.image_source import source_of
from deploy.azure.client.resource_manager import Refused, ResourceManager
from tests.contracts.deploy.subscription import Subscription

SERVICE = "remora-remora-service"


def versions(azure: Subscription) -> dict[str, Json]:
    return {one["name"]: one for one in azure.resources.of_type(IMAGE_VERSIONS)}


def place(azure: Subscription) -> Json:
    """The place of the nodes, as the machine of the service has it."""
    found: Json = json.loads(azure.machine(SERVICE)["files"]["/etc/remora/azure.json"])
    return found


@pytest.fixture
def templates(azure: Subscription, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """The documents of all templates that Azure was sent."""
    put, found = azure.server.images.put, []

    def kept(id: str, body: Json) -> Json:
        found.append(body)
        return put(id, body)

    monkeypatch.setattr(azure.server.images, "put", kept)
    return found


def test_the_version_that_nodes_are_made_of_is_built_once(azure: Subscription) -> None:
    assert azure.up() == 0
    (version,) = versions(azure).values()
    assert version["id"] == place(azure)["image"]
    assert version["tags"] == {"remora:cluster": "remora", SOURCE_TAG: source_of().digest}
    assert azure.said[-1] == "the gallery has the image 1.0.0 of a node"
    assert azure.up() == 0
    assert azure.server.images.runs == 1
    assert azure.resources.of_type(TEMPLATES) == [], "with a template go its logs and its resource group"


def test_what_if_says_whether_one_would_be_built_and_builds_none(azure: Subscription) -> None:
    line = "+ the image 1.0.0 of a node, which is built in about an hour"
    azure.up("trial", "--what-if")
    assert azure.said[-1] == line
    assert azure.server.images.runs == 0
    azure.up("trial", "--without-image")
    assert versions(azure) == {}
    azure.up()
    azure.up("trial", "--what-if")
    assert line not in azure.said
    azure.up("trial", "--set", "imageVersion=1.0.1", "--what-if")
    assert line.replace("1.0.0", "1.0.1") in azure.said


@pytest.mark.parametrize("size", ["trial", "team"])
def test_the_builder_reaches_what_it_needs_and_nothing_else(
    azure: Subscription, templates: list[Json], size: str
) -> None:
    azure.up(size, "--image-base", "24.04.2025061601")
    (body,) = templates
    (identity,) = body["identity"]["userAssignedIdentities"]
    properties = body["properties"]
    assert properties["source"]["version"] == "24.04.2025061601"
    (principal,) = [
        one["properties"]["principalId"]
        for one in azure.resources.of_type(IDENTITIES)
        if one["id"] == identity
    ]
    assert identity not in json.dumps(azure.machine(SERVICE)), "no machine of the service or of a node has it"
    roles = {one["id"]: one["properties"] for one in azure.resources.of_type(DEFINITIONS)}
    given = {
        one["id"].partition("/providers/Microsoft.Authorization")[0]: one["properties"]["roleDefinitionId"]
        for one in azure.resources.of_type(ASSIGNMENTS)
        if one["properties"]["principalId"] == principal
    }
    group, releases = sorted(given, key=len)
    assert (group.rpartition("/")[2], releases.rpartition("/")[2]) == ("remora-remora", "releases")
    (actions,) = [one["actions"] for one in roles[given[group]]["permissions"]]
    assert "Microsoft.Compute/galleries/images/versions/write" in actions
    assert not [
        one for one in actions if one.endswith("/delete") and one != "Microsoft.Compute/images/delete"
    ]
    assert not [one for one in actions if "*" in one or "virtualMachines" in one]

    network = properties["vmProfile"]["vnetConfig"]
    subnets = {
        one["name"]: one["properties"] for one in _only(azure, "/virtualNetworks")["properties"]["subnets"]
    }
    container = subnets[network["containerInstanceSubnetId"].rpartition("/")[2]]
    assert [one["properties"]["serviceName"] for one in container["delegations"]] == [
        "Microsoft.ContainerInstance/containerGroups"
    ]
    assert network["subnetId"].endswith("/subnets/nodes"), "which go out by the gateway"
    admitted = _only(azure, "/storageAccounts")["properties"]["networkAcls"]["virtualNetworkRules"]
    assert network["containerInstanceSubnetId"] in [one["id"] for one in admitted], "it fetches the source"


def _only(azure: Subscription, kind: str) -> Json:
    (found,) = [one for one in azure.resources if one["type"].endswith(kind)]
    return found


def test_a_build_that_fails_is_said_with_its_log_and_tried_again_by_the_next_call(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.faults.all.append(EmulatorFault(at=FaultPoint.IMAGE_BUILD, message="Script exited\nwith 1."))
    assert azure.up() == 1
    assert capsys.readouterr().err == (
        "up: the image 1.0.0 was not built: Script exited with 1.; its log is customization.log, in the container"
        " packerlogs of the storage account in the resource group remora-remora_image; repair what it names, and call"
        " deploy/azure/up again\n"
    )
    assert len(azure.resources.of_type(TEMPLATES)) == 1, "its log is still there"
    assert azure.up() == 0
    assert (list(versions(azure)), azure.server.images.runs) == (["1.0.0"], 2)


def test_a_template_that_azure_cannot_use_is_said_and_sent_again_by_the_next_call(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.faults.all.append(
        EmulatorFault(at=FaultPoint.IMAGE_CHECK, code="BadPIRSource", message="There is no such version.")
    )
    assert azure.up() == 1
    assert capsys.readouterr().err == (
        "up: Azure Image Builder refuses the image 1.0.0: BadPIRSource: There is no such version.\n"
    )
    assert azure.resources.of_type(TEMPLATES) == []
    # A role that is not known everywhere yet is waited for.
    azure.faults.all.append(
        EmulatorFault(at=FaultPoint.IMAGE_CHECK, times=2, message="The identity does not have authorization.")
    )
    assert azure.up() == 0
    assert azure.server.images.runs == 1


def test_a_region_without_image_builder_is_said(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "The provided location 'eastus' is not available for resource type."
    azure.faults.all.append(
        EmulatorFault(
            at=FaultPoint.IMAGE_TEMPLATE, status=400, code="LocationNotAvailableForResourceType", message=said
        )
    )
    assert azure.up() == 1
    assert capsys.readouterr().err == f"up: LocationNotAvailableForResourceType: {said}\n"


def stopped_while_it_builds(azure: Subscription) -> None:
    """Call `up` and press Ctrl-C when the build runs, which takes an hour."""
    azure.server.images.build_s = 3600.0

    def say(line: str) -> None:
        if line.startswith("  Building"):
            raise KeyboardInterrupt

    assert up.main(azure.arguments(), azure.credential(), say) == 130


def test_the_budget_counts_what_a_build_costs_and_its_group_goes_with_it(azure: Subscription) -> None:
    stopped_while_it_builds(azure)
    groups = {one["name"] for one in azure.resources.groups()}
    (budget,) = azure.resources.of_type(BUDGETS)
    assert budget["properties"]["filter"]["dimensions"]["name"] == "ResourceGroupName"
    assert set(budget["properties"]["filter"]["dimensions"]["values"]) == groups
    assert "remora-remora_image" in groups
    azure.server.images.build_s = 0.0
    assert azure.up() == 0
    assert {one["name"] for one in azure.resources.groups()} == groups - {"remora-remora_image"}


def test_a_build_waits_for_that_of_another_version_which_has_the_group_of_builds(azure: Subscription) -> None:
    stopped_while_it_builds(azure)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line == "another version is built, by remora-node-1.0.0, and is waited for":
            azure.server.images.build_s = 0.0

    arguments = azure.arguments("trial", "--set", "imageVersion=1.0.1")
    assert up.main(arguments, azure.credential(), say) == 0
    assert set(versions(azure)) == {"1.0.0", "1.0.1"}
    assert len([line for line in lines if line.startswith("another version")]) == 1
    assert azure.resources.of_type(TEMPLATES) == []


def test_a_failed_template_of_another_version_and_a_group_that_was_left_make_way(azure: Subscription) -> None:
    azure.faults.all.append(EmulatorFault(at=FaultPoint.IMAGE_BUILD))
    assert azure.up() == 1
    assert azure.up("trial", "--set", "imageVersion=1.0.1") == 0
    assert list(versions(azure)) == ["1.0.1"]
    id = f"/subscriptions/{azure.id}/resourceGroups/remora-remora_image"
    tags = {"createdBy": "AzureVMImageBuilder", "imageTemplateResourceGroupName": "remora-remora"}
    body = {"name": "remora-remora_image", "location": "eastus", "tags": tags}
    azure.resources.put(Wanted(id=id, type=GROUPS, body=body))
    assert azure.up("trial", "--set", "imageVersion=1.0.2") == 0
    azure.resources.put(Wanted(id=id, type=GROUPS, body=body))
    assert azure.down() == 0
    assert azure.leftovers() == []


def test_a_wait_that_was_ended_is_continued_by_the_next_call(azure: Subscription) -> None:
    stopped_while_it_builds(azure)
    azure.server.clock.skew_s += 1800.0
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("  Customizing"):
            azure.server.clock.skew_s += 1800.0

    assert up.main(azure.arguments(), azure.credential(), say) == 0
    assert azure.server.images.runs == 1
    assert lines[-1] == "the gallery has the image 1.0.0 of a node"


def test_what_is_of_another_release_is_said_with_the_version_to_set(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.up()
    other = replace(source_of(), digest="d" * 64)
    monkeypatch.setattr(image, "source_of", lambda: other)
    assert azure.up() == 0
    assert azure.said[-1] == (
        "the image 1.0.0 of a node is of another release than this checkout; for one of this release add --set"
        " imageVersion=1.0.1"
    )
    assert azure.server.images.runs == 1
    assert azure.up("trial", "--set", "imageVersion=1.0.1") == 0
    assert versions(azure)["1.0.1"]["tags"][SOURCE_TAG] == "d" * 64
    assert place(azure)["image"].endswith("/versions/1.0.1")
    azure.up()
    assert azure.said[-1].endswith("imageVersion=1.0.2"), "1.0.1 is there already"


def test_a_failed_template_of_another_source_is_not_run_again(
    azure: Subscription, templates: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.faults.all.append(EmulatorFault(at=FaultPoint.IMAGE_BUILD))
    azure.up()
    repaired = replace(source_of(), digest="e" * 64)
    monkeypatch.setattr(image, "source_of", lambda: repaired)
    assert azure.up() == 0
    assert [one["tags"][SOURCE_TAG] for one in templates] == [source_of().digest, "e" * 64]
    assert versions(azure)["1.0.0"]["tags"][SOURCE_TAG] == "e" * 64


def test_cut_off_after_any_change_it_is_built_once_by_the_next_call(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("put", "begin", "delete", "upload")
    kept: dict[str, Callable[..., Any]] = {name: getattr(ResourceManager, name) for name in changes}

    def cut_off_after(number: int) -> None:
        calls = iter(range(number))

        def cut(name: str) -> Callable[..., Any]:
            def changed(self: ResourceManager, *arguments: Any) -> Any:
                answer = kept[name](self, *arguments)
                if next(calls, None) is None:
                    raise Refused("the test ends it here")
                return answer

            return changed

        for name in changes:
            monkeypatch.setattr(ResourceManager, name, cut(name))

    azure.up("trial", "--without-image")
    number = 0
    while True:
        cut_off_after(number)
        is_cut = not builds(azure)
        for name in changes:
            monkeypatch.setattr(ResourceManager, name, kept[name])
        assert builds(azure)
        assert (list(versions(azure)), azure.server.images.runs) == (["1.0.0"], 1), number
        assert azure.resources.of_type(TEMPLATES) == []
        if not is_cut:
            break
        number += 1
        azure.resources.delete(versions(azure)["1.0.0"]["id"])
        azure.server.images.runs = 0
        azure.resources.registered.clear()
    assert number == 6, "two registrations, the source, the template, its run, its end"


def builds(azure: Subscription) -> bool:
    """Do of `up` what concerns the image; False where it is refused."""
    outputs = azure.outputs()
    manager = ResourceManager(azure.credential(), azure.common()[1], azure.server.url)
    try:
        image.build_image(
            manager,
            {name: one["value"] for name, one in outputs.items()},
            version="1.0.0",
            regions=["eastus"],
            cluster="remora",
            base="latest",
            poll_s=0.01,
            say=azure.said.append,
        )
    except Refused:
        return False
    finally:
        manager.close()
    return True


def test_down_ends_a_build_first(azure: Subscription) -> None:
    stopped_while_it_builds(azure)
    assert azure.down() == 0
    assert "stopping the build of remora-node-1.0.0" in azure.said
    assert azure.leftovers() == []


def test_a_version_that_the_gallery_could_not_store_is_not_waited_for(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up()
    versions(azure)["1.0.0"]["properties"]["provisioningState"] = "Failed"
    assert azure.up() == 1
    assert "build another one with --set imageVersion=1.0.1" in capsys.readouterr().err
